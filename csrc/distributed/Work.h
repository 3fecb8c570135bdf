// The handle of one operation of ProcessGroupXCCL.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/Communicator.h"
#include "distributed/Completion.h"
#include "runtime/Event.h"
#include "runtime/Stream.h"

namespace kunlun::distributed {

class ProcessGroupXCCL;

// Semantics of torch.cuda's: wait() makes the caller's current stream wait and returns; with a timeout, or with
// XCCL_BLOCKING_WAIT=1, or for a barrier, it makes the host wait too and raises what went wrong.
class Work : public c10d::Work {
 public:
  Work(int rank, c10d::OpType type, const char* title, Stream stream, std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

  // What it is in an error: "all_reduce number 5".
  std::string describe() const;
  bool isDone() const {
    return completion_->isDone();
  }
  bool isExpired(Completion::Clock::time_point now) const {
    return now >= deadline_;
  }
  // Once it is done: gives its tensors back and answers getFutureResult, whose callbacks may be Python's. Not to be
  // called with a lock held.
  void retire();

 private:
  friend class ProcessGroupXCCL;

  void finishWaiting(std::chrono::milliseconds timeout);
  [[noreturn]] void raiseFailure();

  const Stream stream_; // that it runs on
  const c10::intrusive_ptr<Completion> completion_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  Completion::Clock::time_point deadline_;
  uint64_t sequence_ = 0;
  bool is_async_ = true; // on a stream of the group's own; otherwise on the caller's
  bool is_barrier_ = false;
  bool blocks_ = false;
  int source_rank_ = -1;
  std::optional<Completion::Clock::time_point> death_seen_; // of one of its ranks, while it runs; the watchdog's
  bool is_timed_ = false;
  std::optional<size_t> record_id_;
  Event end_;
  std::vector<std::shared_ptr<Communicator>> communicators_; // those that it runs on
  std::vector<at::Tensor> outputs_;
  std::mutex stash_lock_;         // guards the two below
  std::vector<at::Tensor> stash_; // kept alive until a wait or the end
  c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

} // namespace kunlun::distributed
