// Beginning and end of a stream's thread, and the reset of its device.
#include <csignal>
#include <cstdio>
#include <cstring>

#include "runtime/sim/Device.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {
namespace {

// Signals are for the host's threads, but for those that a thread raises itself. Threads that a chip thread creates
// inherit this.
sigset_t chipThreadMask() {
  sigset_t mask;
  sigfillset(&mask);
  for (const int synchronous : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    sigdelset(&mask, synchronous);
  }
  return mask;
}

} // namespace

void Stream::startThread() {
  const sigset_t mask = chipThreadMask();
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, &mask, &before);
  const int code = pthread_create(
      &thread_,
      nullptr,
      [](void* self) -> void* {
        static_cast<Stream*>(self)->loop();
        return nullptr;
      },
      this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (code != 0) {
    raise(KL_ERROR_RUNTIME, device_.index(), "cannot start the thread of a stream: %s", std::strerror(code));
  }
  char name[16]; // all that the kernel keeps
  std::snprintf(
      name,
      sizeof(name),
      "kl%u-s%u",
      static_cast<unsigned>(device_.index()) % 100u,
      static_cast<unsigned>(id_) % 1000000u);
  pthread_setname_np(thread_, name);
  started_ = true;
}

void Stream::beginReset(const Fault& why) {
  refuseOwnThread("device_reset");
  {
    std::lock_guard producer(producer_);
    std::lock_guard lock(fault_lock_);
    fault_ = why;
    reported_ = true;
    skip_through_ = enqueued_.load(std::memory_order_relaxed);
    state_.fetch_or(kFault, std::memory_order_acq_rel);
    state_.fetch_and(~uint32_t{kUnreported}, std::memory_order_acq_rel);
  }
  interrupted_.store(true, std::memory_order_seq_cst);
  std::lock_guard lock(wait_lock_);
  if (awaited_ != nullptr) {
    awaited_->poke();
  }
}

void Stream::endReset() {
  completed_.waitFor(enqueued());
  interrupted_.store(false, std::memory_order_seq_cst);
}

void Stream::destroy() {
  refuseOwnThread("stream_destroy");
  completed_.waitFor(enqueued());
  std::lock_guard lock(producer_);
  stopping_.store(true, std::memory_order_seq_cst);
  if (started_) {
    queue_.poke();
    pthread_join(thread_, nullptr);
    started_ = false;
  }
}

void Stream::stop() {
  stopping_.store(true, std::memory_order_seq_cst);
  interrupted_.store(true, std::memory_order_seq_cst);
  queue_.poke();
  std::lock_guard lock(wait_lock_);
  if (awaited_ != nullptr) {
    awaited_->poke();
  }
}

void Stream::join(const timespec& deadline) {
  std::lock_guard lock(producer_);
  // A host call may be what ends the process.
  if (!started_ || current() == this) {
    return;
  }
  if (pthread_timedjoin_np(thread_, nullptr, &deadline) != 0) {
    pthread_detach(thread_);
  }
  started_ = false;
}

} // namespace kunlun::sim
