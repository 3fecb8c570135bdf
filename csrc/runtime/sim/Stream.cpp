// The callers' side of a stream: enqueueing, running calls as its guest, waiting.
#include "runtime/sim/Stream.h"

#include <cstring>

#include "runtime/sim/Device.h"

namespace kunlun::sim {

Stream::HostCall::HostCall(const char* called, kl_host_fn function, void* argument) : fn(function), arg(argument) {
  if (::memccpy(name, called == nullptr ? "host call" : called, '\0', sizeof(name)) == nullptr) {
    name[sizeof(name) - 1] = '\0';
  }
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
    new (payload) HostCall(name, fn, arg);
  });
}

uint64_t Stream::beginVisit() {
  if (guest_ || state_.load(std::memory_order_acquire) != 0 || !isIdle() || stopping_.load(std::memory_order_relaxed)) {
    return 0;
  }
  // The stream's thread, if it has been started, has passed its last item, and nothing is published for it before the
  // visit is over.
  guest_ = true;
  const uint64_t sequence = enqueued_.load(std::memory_order_relaxed) + 1;
  enqueued_.store(sequence, std::memory_order_release);
  return sequence;
}

kl_result Stream::runVisit(const char* name, kl_host_fn fn, void* arg, uint64_t sequence) {
  current_ = this;
  kl_result code;
  {
    const GuestAccess access;
    code = callHost(name, fn, arg, nullptr, sequence);
  }
  current_ = nullptr;
  return code;
}

bool Stream::tryHost(const char* name, kl_host_fn fn, void* arg) {
  if (current() != nullptr) {
    return false; // an item of some stream runs here: its rights and its place in the order are its own
  }
  uint64_t sequence = 0;
  {
    std::lock_guard lock(producer_);
    sequence = beginVisit();
    if (sequence == 0) {
      return false;
    }
  }
  runVisit(name, fn, arg, sequence);
  // All under the lock: whoever sees the call completed may destroy the stream, but for the lock.
  std::lock_guard lock(producer_);
  guest_ = false;
  completed_.advance(sequence);
  if (enqueued_.load(std::memory_order_relaxed) != sequence) {
    queue_.publishAppended();
  }
  return true;
}

void Stream::hostFromHere(const char* name, kl_host_fn begin, kl_host_fn rest, void* arg) {
  uint64_t sequence = 0;
  Queue::Record* record = nullptr;
  if (current() == nullptr) {
    std::lock_guard lock(producer_);
    // The place of the rest is taken first, so that it comes before what others enqueue meanwhile.
    if (started_ && (record = queue_.reserve(sizeof(HostCall))) != nullptr && (sequence = beginVisit()) != 0) {
      record->kind = Queue::Kind::Host;
      record->sequence = sequence;
      new (record->payload()) HostCall(name, rest, arg);
      queue_.append(record);
    }
  }
  if (sequence == 0) {
    host(name, rest, arg);
    return;
  }
  const bool is_done = runVisit(name, begin, arg, sequence) != KL_NOT_READY;
  std::lock_guard lock(producer_);
  guest_ = false;
  if (is_done) {
    completed_.advance(sequence);
    if (queue_.retract(record)) {
      return; // nobody has enqueued anything, and the stream's thread sleeps on
    }
    record->kind = Queue::Kind::Done;
  }
  queue_.publishAppended();
}

void Stream::record(const std::shared_ptr<EventRecord>& record) {
  {
    std::lock_guard lock(producer_);
    // Everything before it has happened, so it has too.
    if (!guest_ && state_.load(std::memory_order_acquire) == 0 && isIdle() &&
        !stopping_.load(std::memory_order_relaxed)) {
      finish(*record, nullptr);
      return;
    }
  }
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

void Stream::refuseOwnThread(const char* call) const {
  if (current() == this) {
    raise(
        KL_ERROR_RUNTIME,
        device_.index(),
        "%s: called by a host call of the very stream it would wait for, which would never return",
        call == nullptr ? "launch_host" : call);
  }
}

} // namespace kunlun::sim
