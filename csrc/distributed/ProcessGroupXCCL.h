// ProcessGroupXCCL: torch.distributed's backend for kunlun tensors, over the collectives of the chip interface.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/Communicator.h"
#include "distributed/Members.h"
#include "distributed/Work.h"

namespace kunlun::distributed {

// Semantics are those of torch's group for CUDA, and so are the names. A communicator is made at the first operation on
// a device, or at eagerConnectSingleDevice; each pair of ranks that sends gets one of its own. Operations with asyncOp
// run on the communicator's stream, others on the caller's current stream.
class ProcessGroupXCCL : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(bool is_high_priority_stream = false);
    Options(const Options&) = default;
    static c10::intrusive_ptr<Options> create(bool is_high_priority_stream = false) {
      return c10::make_intrusive<Options>(is_high_priority_stream);
    }
    bool is_high_priority_stream;
  };

  ProcessGroupXCCL(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      c10::intrusive_ptr<Options> options = Options::create());
  ~ProcessGroupXCCL() override;

  const std::string getBackendName() const override {
    return "xccl";
  }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return options_;
  }
  c10::intrusive_ptr<Options> options() const {
    return options_;
  }
  bool supportsSplitting() const override {
    return true;
  }
  bool supportsCoalescing() const override {
    return true;
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override {
    return false;
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts = {})
      override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts = {})
      override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceCoalescedOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts = {})
      override;
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work>
  _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::GatherOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> scatter(
      std::vector<at::Tensor>& outputs,
      std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ScatterOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs,
      std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work>
  _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> alltoall(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllToAllOptions& opts = {}) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts = {}) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks = false) override;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts,
      const int& rank,
      const int& size) override;
  void eagerConnectSingleDevice(at::Device device) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void enableCollectivesTiming() override;
  void waitForPendingWorks() override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // Whether a communicator has been made.
  bool isConnected();

  // In the default group, of a rank of this one.
  uint64_t globalRank(int rank) const;

  // For the watchdog: hands over what has ended, ends what is late. Returns when it wants to be called again.
  std::optional<Completion::Clock::time_point>
  watch(Completion::Clock::time_point now, std::vector<c10::intrusive_ptr<Work>>& ended, bool& has_expired);

 private:
  // One operation to be launched.
  struct Request {
    c10d::OpType type;
    const char* name;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    std::chrono::milliseconds timeout;
    bool is_async;
  };
  using Body = c10::function_ref<void(Communicator& communicator, kl_stream stream)>;

  struct Transfer {
    bool is_send;
    at::Tensor tensor;
    int peer;
  };
  // What is gathered between startCoalescing and endCoalescing.
  struct Batch {
    c10::intrusive_ptr<Work> work; // begins with the first collective
    std::vector<Transfer> transfers;
  };
  // In every operation: one that raises closes the open batch, because torch does not come back to end it.
  class BatchGuard {
   public:
    explicit BatchGuard(ProcessGroupXCCL& group) : group_(group) {}
    BatchGuard(const BatchGuard&) = delete;
    BatchGuard& operator=(const BatchGuard&) = delete;
    ~BatchGuard();

   private:
    ProcessGroupXCCL& group_;
    const int exceptions_ = std::uncaught_exceptions();
  };

  // Puts `body` on the stream that the request asks for, with marks around it. Tensor operations in `body` go to that
  // stream too.
  c10::intrusive_ptr<c10d::Work> launch(Request request, Body body);
  c10::intrusive_ptr<Work>
  begin(const Request& request, const std::shared_ptr<Communicator>& communicator, const Stream& stream);
  void finish(const c10::intrusive_ptr<Work>& work);
  void abandon(const c10::intrusive_ptr<Work>& work) noexcept; // instead of finish, after a failure
  // Closes the open batch. What has been enqueued of it goes on; its sends and receives have not been.
  void dropBatch() noexcept;
  c10::intrusive_ptr<c10d::Work> transfer(const Transfer& what);
  // Put the transfers of a batch on the stream of `work`, which is made where there is none.
  void enqueueTransfers(std::vector<Transfer>& transfers, c10::intrusive_ptr<Work>& work);
  void enqueueGroup(const std::vector<Transfer>& transfers, c10::DeviceIndex device, Work& work);

  // Checks that need no peer; raise ValueError before anything is enqueued.
  void checkTensor(const at::Tensor& tensor) const;
  void checkTensors(const std::vector<at::Tensor>& tensors) const;
  const at::Tensor& checkSingle(const std::vector<at::Tensor>& tensors) const;
  void checkRoot(int64_t root) const;
  void checkForNan(const std::vector<at::Tensor>& inputs, const char* name) const;
  void checkOpen() const;
  std::chrono::milliseconds timeoutOr(std::chrono::milliseconds timeout) const;

  std::shared_ptr<Communicator> communicator(c10::DeviceIndex device);
  // Of this rank and `peer`; the lower of the two is rank 0.
  std::shared_ptr<Communicator> pairCommunicator(c10::DeviceIndex device, int peer);
  // `ranks` of the group, in the order that they have in the communicator. Waits for all of them.
  std::shared_ptr<Communicator> connect(c10::DeviceIndex device, const std::string& key, const std::vector<int>& ranks);
  std::shared_ptr<Communicator>
  connectOnHost(c10::DeviceIndex device, const std::string& key, const std::vector<int>& ranks) const;
  void announce(int peer);
  c10::DeviceIndex deviceForBarrier(const c10d::BarrierOptions& opts) const;
  void record(
      const std::string& name,
      const std::vector<at::Tensor>& inputs,
      const std::vector<at::Tensor>& outputs,
      const Work& work,
      bool is_transfer);
  void expire(Work& work);
  // Ends what runs with a rank that has died. Returns when to look again, unless as usual.
  std::optional<Completion::Clock::time_point> endIfBereaved(Work& work, Completion::Clock::time_point now);
  void close(const char* why);
  std::vector<std::shared_ptr<Communicator>> allCommunicators();

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  const bool blocks_;
  const bool checks_nan_;
  std::atomic<bool> is_timed_;
  std::atomic<bool> is_closed_{false};
  std::string closed_because_; // written once, before is_closed_

  std::mutex lock_; // guards the communicators and their counters
  const std::shared_ptr<Members> members_;
  std::map<std::string, std::shared_ptr<Communicator>> communicators_;
  uint64_t communicators_made_ = 0;
  std::optional<c10::DeviceIndex> used_device_;
  std::optional<OwnStream> batch_stream_;

  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> transfers_{0};
  std::atomic<uint64_t> operations_{0};
  uint64_t monitored_barriers_ = 0;
  std::set<int> announced_;    // peers that know that this rank sends to them
  std::optional<Batch> batch_; // the calling thread's, as in torch's group for CUDA

  std::mutex pending_lock_; // guards pending_
  std::deque<c10::intrusive_ptr<Work>> pending_;
};

} // namespace kunlun::distributed
