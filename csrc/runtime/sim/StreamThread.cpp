// The thread's side of a stream: items and waits.
#include <algorithm>
#include <cstdio>

#include "runtime/sim/Device.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {

void Stream::loop() {
  current_ = this;
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
    case Queue::Kind::Done:
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

kl_result Stream::callHost(const char* name, kl_host_fn fn, void* arg, const Fault& fault, uint64_t sequence) {
  kl_error error;
  const kl_result code = guarded([&] { return fn(arg, fault.get(), &error); }, error);
  if (code != KL_SUCCESS && code != KL_NOT_READY && faultFor(sequence) == nullptr) {
    complete(error, code, device_.index(), sequence, name == nullptr ? "host call" : name);
    fail(error);
  }
  return code;
}

void Stream::finish(EventRecord& record, const Fault& fault) {
  record.fault = fault;
  if (record.timing) {
    record.nanoseconds = steadyNanoseconds();
  }
  record.done.advance(1);
  if (record.shared != nullptr) {
    record.shared->finish(record.generation, fault != nullptr);
  }
}

void Stream::completeRecord(Queue::Record& record) {
  auto& held = *static_cast<std::shared_ptr<EventRecord>*>(record.payload());
  access_.leave();
  finish(*held, faultFor(record.sequence));
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

} // namespace kunlun::sim
