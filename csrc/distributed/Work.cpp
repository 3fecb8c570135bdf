// Waiting for an operation, its futures and its end.
#include "distributed/Work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed {

Work::Work(int rank, c10d::OpType type, const char* title, Stream stream, std::chrono::milliseconds timeout)
    : c10d::Work(rank, type, title),
      stream_(stream),
      completion_(c10::make_intrusive<Completion>()),
      name_(title),
      timeout_(timeout),
      deadline_(Completion::Clock::now() + timeout) {}

bool Work::isCompleted() {
  return isDone();
}

bool Work::isSuccess() const {
  return completion_->isSuccess();
}

std::exception_ptr Work::exception() const {
  if (!isDone() || completion_->isSuccess()) {
    return nullptr;
  }
  try {
    raise(completion_->error());
  } catch (...) {
    return std::current_exception();
  }
}

int Work::sourceRank() const {
  TORCH_CHECK(source_rank_ >= 0, "the source rank is known for receives from any source only, not for ", name_);
  return source_rank_;
}

std::vector<at::Tensor> Work::result() {
  return outputs_;
}

void Work::synchronize() {
  if (is_async_) {
    end_.block(getCurrentStream(stream_.device_index()));
  }
  // From here on the order of the current stream protects the memory.
  std::vector<at::Tensor> released;
  std::lock_guard lock(stash_lock_);
  released.swap(stash_);
}

void Work::blockCurrentStream() {
  synchronize();
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (is_barrier_ || blocks_ || timeout != kNoTimeout) {
    finishWaiting(timeout == kNoTimeout || timeout == c10d::kUnsetTimeout ? timeout_ : timeout);
  } else if (completion_->isOnlyOneToTell() && isDone() && !isSuccess()) {
    raiseFailure();
  }
  synchronize();
  return true;
}

void Work::raiseFailure() {
  // The stream need not report once more what is raised here.
  chip::runtime().stream_synchronize(stream_.handle());
  std::rethrow_exception(exception());
}

void Work::finishWaiting(std::chrono::milliseconds timeout) {
  if (!completion_->waitUntil(Completion::Clock::now() + timeout)) {
    std::string late;
    for (const auto& communicator : communicators_) {
      for (const int rank : communicator->missingRanks()) {
        late += (late.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    const std::string text = c10::str(
        describe(),
        " did not end within ",
        timeout.count(),
        " ms",
        late.empty() ? "" : "; ranks of the group that have not joined it: ",
        late);
    // It cannot be taken back on this rank alone, so the communicator ends with it.
    for (const auto& communicator : communicators_) {
      communicator->abort(text);
    }
    C10_THROW_ERROR(DistBackendError, text);
  }
  if (!completion_->isSuccess()) {
    raiseFailure();
  }
}

void Work::abort() {
  for (const auto& communicator : communicators_) {
    communicator->abort("Work.abort() of " + describe());
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  std::lock_guard lock(stash_lock_);
  if (future_ == nullptr) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream_.device()});
    // Callbacks run at once, on streams that wait for what the group's stream has by now.
    const c10::StreamGuard guard(stream_.unwrap());
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFutureResult() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(stash_lock_);
    if (result_future_ == nullptr) {
      result_future_ = c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
    }
    future = result_future_;
  }
  if (isDone()) {
    retire(); // otherwise whoever finds it done does
  }
  return future;
}

void Work::retire() {
  std::vector<at::Tensor> released;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(stash_lock_);
    released.swap(stash_);
    future = result_future_;
  }
  if (future != nullptr && !future->completed()) {
    const auto outcome = completion_->isSuccess() ? c10d::WorkResult::SUCCESS : c10d::WorkResult::COMM_ERROR;
    future->markCompleted(c10::IValue(static_cast<uint8_t>(outcome)));
  }
}

float Work::getDuration() const {
  TORCH_CHECK(is_timed_, "getDuration needs timing: set XCCL_TIMING=1 or call _enable_collectives_timing()");
  TORCH_CHECK(isDone(), "getDuration of an operation that has not ended");
  return completion_->milliseconds();
}

uint64_t Work::getSequencenumber() const {
  return sequence_;
}

std::string Work::describe() const {
  return c10::str(name_, " number ", sequence_);
}

} // namespace kunlun::distributed
