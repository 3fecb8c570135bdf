// The callers' side of a stream: enqueueing, waiting, reports of failures, reset and end.
#include "runtime/sim/Stream.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "runtime/sim/Device.h"

namespace kunlun::sim {
namespace {

thread_local Stream* current_stream = nullptr;

// Payload of a host call. The name is copied: the caller's need not outlive the call.
struct HostCall {
  kl_host_fn fn;
  void* arg;
  char name[sizeof(kl_error::op)];
};

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

Stream* Stream::current() {
  return current_stream;
}

template <class Fill>
uint64_t Stream::push(Queue::Kind kind, const char* name, WorkFn run, void* context, size_t bytes, Fill&& fill) {
  struct Free {
    void operator()(void* memory) const {
      ::operator delete(memory);
    }
  };
  std::unique_ptr<void, Free> heap;
  if (bytes > Queue::kMaxPayload) {
    heap.reset(::operator new(bytes));
    fill(heap.get());
  }
  for (;;) {
    {
      std::lock_guard lock(producer_);
      if (!started_) [[unlikely]] {
        startThread();
      }
      if (Queue::Record* record = queue_.reserve(heap ? sizeof(void*) : bytes)) [[likely]] {
        record->kind = kind;
        record->name = name;
        record->run = run;
        record->context = context;
        record->sequence = enqueued_.load(std::memory_order_relaxed) + 1;
        if (heap) {
          record->on_heap = true;
          *static_cast<void**>(static_cast<void*>(record + 1)) = heap.release();
        } else {
          fill(static_cast<void*>(record + 1));
        }
        // A copy: the record may be gone once it is published.
        const uint64_t sequence = record->sequence;
        enqueued_.store(sequence, std::memory_order_release);
        queue_.append(record);
        if (!guest_) [[likely]] {
          queue_.publishAppended();
        }
        return sequence;
      }
    }
    // The ring is full. Nobody holds a lock while waiting for room.
    refuseOwnThread(name);
    queue_.waitForRoom();
    if (!usable()) {
      raise(KL_ERROR_RUNTIME, device_.index(), "the simulated chip has been shut down because the process is exiting");
    }
  }
}

uint64_t Stream::work(
    const char* name,
    WorkFn run,
    void* context,
    const void* head,
    size_t head_bytes,
    const void* bulk,
    size_t bulk_bytes) {
  return push(Queue::Kind::Work, name, run, context, head_bytes + bulk_bytes, [&](void* payload) {
    if (head_bytes != 0) {
      std::memcpy(payload, head, head_bytes);
    }
    if (bulk_bytes != 0) {
      std::memcpy(static_cast<char*>(payload) + head_bytes, bulk, bulk_bytes);
    }
  });
}

void Stream::host(const char* name, kl_host_fn fn, void* arg) {
  push(Queue::Kind::Host, nullptr, nullptr, nullptr, sizeof(HostCall), [&](void* payload) {
    auto* call = new (payload) HostCall;
    call->fn = fn;
    call->arg = arg;
    if (::memccpy(call->name, name == nullptr ? "host call" : name, '\0', sizeof(call->name)) == nullptr) {
      call->name[sizeof(call->name) - 1] = '\0';
    }
  });
}

bool Stream::tryHost(const char* name, kl_host_fn fn, void* arg) {
  if (current() != nullptr) {
    return false; // an item of some stream runs here: its rights and its place in the order are its own
  }
  uint64_t sequence = 0;
  {
    std::lock_guard lock(producer_);
    if (guest_ || state_.load(std::memory_order_acquire) != 0 || !isIdle() ||
        stopping_.load(std::memory_order_relaxed)) {
      return false;
    }
    // The stream's thread, if it has been started, has passed its last item, and nothing is published for it before
    // the call is over.
    guest_ = true;
    sequence = enqueued_.load(std::memory_order_relaxed) + 1;
    enqueued_.store(sequence, std::memory_order_release);
  }
  current_stream = this;
  {
    const GuestAccess access;
    callHost(name, fn, arg, nullptr, sequence);
  }
  current_stream = nullptr;
  // All under the lock: whoever sees the call completed may destroy the stream, but for the lock.
  std::lock_guard lock(producer_);
  guest_ = false;
  completed_.advance(sequence);
  if (enqueued_.load(std::memory_order_relaxed) != sequence) {
    queue_.publishAppended();
  }
  return true;
}

void Stream::record(const std::shared_ptr<EventRecord>& record) {
  push(Queue::Kind::Record, "event_record", nullptr, nullptr, sizeof(record), [&](void* payload) {
    new (payload) std::shared_ptr<EventRecord>(record);
  });
}

void Stream::waitFor(const std::shared_ptr<EventRecord>& record) {
  // Order within the stream already says so, or there is nothing left to wait for.
  if (record->stream.get() == this || (!record->isForeign() && record->isDone() && record->fault == nullptr)) {
    return;
  }
  push(Queue::Kind::Wait, "stream_wait_event", nullptr, nullptr, sizeof(record), [&](void* payload) {
    new (payload) std::shared_ptr<EventRecord>(record);
  });
}

void Stream::refuseOwnThread(const char* call) const {
  if (current() == this) {
    raise(
        KL_ERROR_RUNTIME,
        device_.index(),
        "%s: called by a host call of the very stream it would wait for, which would never return",
        call == nullptr ? "launch_host" : call);
  }
}

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

kl_result Stream::reportSlowly(const kl_error* only) {
  if ((state_.load(std::memory_order_acquire) & kPoisoned) != 0) {
    if (const Fault poison = device_.poison()) {
      return setLastError(*poison);
    }
  }
  std::lock_guard producer(producer_);
  std::lock_guard lock(fault_lock_);
  if (fault_ == nullptr || reported_ || (only != nullptr && fault_.get() != only)) {
    return KL_SUCCESS;
  }
  reported_ = true;
  skip_through_ = enqueued_.load(std::memory_order_relaxed);
  state_.fetch_and(~uint32_t{kUnreported}, std::memory_order_release);
  return setLastError(*fault_);
}

Fault Stream::unreported() const {
  std::lock_guard lock(fault_lock_);
  return reported_ ? nullptr : fault_;
}

void Stream::setPoisoned(bool poisoned) {
  if (poisoned) {
    state_.fetch_or(kPoisoned, std::memory_order_acq_rel);
  } else {
    state_.fetch_and(~uint32_t{kPoisoned}, std::memory_order_acq_rel);
  }
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

// ---- the stream's thread ------------------------------------------------

void Stream::loop() {
  current_stream = this;
  try {
    grantThread();
  } catch (const Failure& failure) {
    kl_error error = failure.error;
    error.code = KL_ERROR_DEVICE;
    fail(error);
  }
  while (Queue::Record* record = queue_.front(stopping_)) {
    execute(*record);
    if (!queue_.hasNext(record)) {
      access_.leave();
    }
    const uint64_t sequence = record->sequence;
    queue_.pop(record);
    completed_.advance(sequence);
  }
}

void Stream::execute(Queue::Record& record) {
  switch (record.kind) {
    case Queue::Kind::Work:
      runWork(record);
      break;
    case Queue::Kind::Host:
      runHost(record);
      break;
    case Queue::Kind::Record:
      completeRecord(record);
      break;
    case Queue::Kind::Wait:
      awaitRecord(record);
      break;
    case Queue::Kind::Pad: // Queue::front hands none out
      break;
  }
  if (record.on_heap) {
    ::operator delete(record.payload());
  }
}

namespace {

// What a driver's callback left in `error`, completed.
template <class Call>
kl_result guarded(Call&& call, kl_error& error) {
  error.code = KL_SUCCESS;
  error.device = -1;
  error.sequence = 0;
  error.op[0] = '\0';
  error.text[0] = '\0';
  kl_result code = KL_SUCCESS;
  try {
    code = call();
  } catch (const Failure& failure) {
    error = failure.error;
    code = static_cast<kl_result>(failure.error.code);
  } catch (const std::bad_alloc&) {
    code = KL_ERROR_OUT_OF_MEMORY;
    std::snprintf(error.text, sizeof(error.text), "the host ran out of memory while a kernel ran");
  } catch (const std::exception& failure) {
    code = KL_ERROR_RUNTIME;
    std::snprintf(error.text, sizeof(error.text), "%s", failure.what());
  } catch (...) {
    code = KL_ERROR_RUNTIME;
    std::snprintf(error.text, sizeof(error.text), "an exception of unknown type");
  }
  if (code != KL_SUCCESS && error.text[0] == '\0') {
    std::snprintf(error.text, sizeof(error.text), "failed without a message");
  }
  return code;
}

void complete(kl_error& error, kl_result code, int device, uint64_t sequence, const char* name) {
  error.code = code;
  error.device = device;
  error.sequence = sequence;
  if (error.op[0] == '\0') {
    std::snprintf(error.op, sizeof(error.op), "%s", name == nullptr ? "" : name);
  }
}

} // namespace

void Stream::runWork(Queue::Record& record) {
  if (faultFor(record.sequence) != nullptr) {
    return;
  }
  access_.enter();
  running_ = record.sequence;
  kl_error error;
  const kl_result code = guarded([&] { return record.run(record.context, record.payload(), &error); }, error);
  // A reset while it ran has dropped it, and its failure too.
  if (code != KL_SUCCESS && faultFor(record.sequence) == nullptr) [[unlikely]] {
    complete(error, code, device_.index(), record.sequence, record.name);
    fail(error);
  }
}

void Stream::runHost(Queue::Record& record) {
  // The process is exiting: what the call belongs to may be gone already.
  if (stopping_.load(std::memory_order_relaxed)) {
    return;
  }
  auto& call = *static_cast<HostCall*>(record.payload());
  const Fault fault = faultFor(record.sequence);
  access_.enter();
  callHost(call.name, call.fn, call.arg, fault, record.sequence);
}

void Stream::callHost(const char* name, kl_host_fn fn, void* arg, const Fault& fault, uint64_t sequence) {
  kl_error error;
  const kl_result code = guarded([&] { return fn(arg, fault.get(), &error); }, error);
  if (code != KL_SUCCESS && faultFor(sequence) == nullptr) {
    complete(error, code, device_.index(), sequence, name == nullptr ? "host call" : name);
    fail(error);
  }
}

void Stream::completeRecord(Queue::Record& record) {
  auto& held = *static_cast<std::shared_ptr<EventRecord>*>(record.payload());
  access_.leave();
  held->fault = faultFor(record.sequence);
  if (held->timing) {
    held->nanoseconds = steadyNanoseconds();
  }
  held->done.advance(1);
  if (held->shared != nullptr) {
    held->shared->finish(held->generation, held->fault != nullptr);
  }
  held.~shared_ptr();
}

void Stream::awaitForeign(const EventRecord& record, uint64_t sequence) {
  Fault fault;
  const auto interrupted = [this] { return interrupted_.load(std::memory_order_relaxed); };
  if (record.shared->waitFor(record.generation, interrupted, device_.index(), &fault) && fault != nullptr &&
      faultFor(sequence) == nullptr) {
    taint(fault);
  }
}

void Stream::awaitRecord(Queue::Record& record) {
  auto& held = *static_cast<std::shared_ptr<EventRecord>*>(record.payload());
  // A wait is kept even behind a failure: what comes after the report relies on it.
  if (held->isForeign()) {
    access_.leave();
    awaitForeign(*held, record.sequence);
    held.~shared_ptr();
    return;
  }
  const auto waited = pause(held->done, 1, Progress::kNever);
  if (waited == Progress::Waited::Reached && held->fault != nullptr && faultFor(record.sequence) == nullptr) {
    taint(held->fault);
  }
  held.~shared_ptr();
}

Progress::Waited Stream::pause(Progress& progress, uint64_t target, int64_t deadline) {
  const bool had_access = access_.leave();
  {
    std::lock_guard lock(wait_lock_);
    awaited_ = &progress;
  }
  const auto waited = progress.waitFor(target, &interrupted_, deadline);
  {
    std::lock_guard lock(wait_lock_);
    awaited_ = nullptr;
  }
  if (had_access) {
    access_.enter();
  }
  return waited;
}

bool Stream::claim() {
  std::lock_guard lock(claim_lock_);
  claimed_ = running_;
  const bool wanted = std::find(abandoned_.begin(), abandoned_.end(), running_) == abandoned_.end();
  // Items that were skipped behind a failure never asked.
  std::erase_if(abandoned_, [&](uint64_t sequence) { return sequence <= running_; });
  return wanted;
}

void Stream::waitForClaimed(uint64_t sequence) {
  if (waitUnlessInterrupted(completed_, sequence)) {
    return;
  }
  {
    std::lock_guard lock(claim_lock_);
    if (claimed_ < sequence) {
      abandoned_.push_back(sequence);
      raise(
          KL_ERROR_INTERRUPTED,
          device_.index(),
          "the wait for a copy was interrupted before the copy had begun; it is dropped");
    }
  }
  completed_.waitFor(sequence); // it is at it
  raise(KL_ERROR_INTERRUPTED, device_.index(), "the wait for a copy was interrupted; the copy was made");
}

Fault Stream::faultFor(uint64_t sequence) {
  if (stopping_.load(std::memory_order_relaxed)) [[unlikely]] {
    return std::make_shared<kl_error>(
        makeError(KL_ERROR_RUNTIME, device_.index(), "", sequence, "dropped because the process is exiting"));
  }
  const uint32_t state = state_.load(std::memory_order_acquire);
  if (state == 0) [[likely]] {
    return nullptr;
  }
  if ((state & kPoisoned) != 0) {
    if (Fault poison = device_.poison()) {
      return poison;
    }
  }
  std::lock_guard lock(fault_lock_);
  if (fault_ != nullptr && reported_ && sequence > skip_through_) {
    fault_ = nullptr;
    reported_ = false;
    state_.fetch_and(~uint32_t{kFault}, std::memory_order_acq_rel);
  }
  return fault_;
}

void Stream::fail(const kl_error& error) {
  auto fault = std::make_shared<const kl_error>(error);
  if (error.code == KL_ERROR_DEVICE) {
    device_.poison(fault);
  } else {
    taint(fault);
  }
}

void Stream::taint(const Fault& fault) {
  std::lock_guard lock(fault_lock_);
  fault_ = fault;
  reported_ = false;
  state_.fetch_or(kFault | kUnreported, std::memory_order_acq_rel);
}

} // namespace kunlun::sim
