// Words of device memory by which streams of several processes wait for each other.
#include "runtime/sim/Word.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <ctime>

#include "runtime/ipc/ProcessId.h"
#include "runtime/sim/Device.h"
#include "runtime/sim/Progress.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {
namespace {

using Word = std::atomic_ref<uint32_t>;
static_assert(Word::is_always_lock_free);

// Writers of words wake who sleeps, but ordinary kernels do not, which may write the word as well. So a sleeper looks
// again by itself: soon at first, then less often.
constexpr int64_t kFirstLook = 50'000;
constexpr int64_t kLongestLook = 2'000'000;
// Whether the writer lives is a system call.
constexpr int64_t kLookForDead = 20'000'000;

struct Write {
  uint32_t* address;
  uint32_t value;
};

struct Wait {
  uint32_t* address;
  uint32_t value;
  uint32_t replacement;
  bool replace;
  ProcessId writer;
  uint64_t timeout_ms;
  char what[sizeof(kl_error::op)];
};

// Not the private kind of futex: the sleeper may be another process.
void wake(uint32_t* address) {
  syscall(SYS_futex, address, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep(uint32_t* address, uint32_t seen, int64_t nanoseconds) {
  const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  syscall(SYS_futex, address, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

// Whether the word had the value; then it has its replacement now. `seen` is what it had.
bool meets(const Wait& wait, uint32_t& seen) {
  const Word word(*wait.address);
  if (!wait.replace) {
    seen = word.load(std::memory_order_acquire);
    return seen == wait.value;
  }
  seen = wait.value;
  if (!word.compare_exchange_strong(seen, wait.replacement, std::memory_order_acq_rel, std::memory_order_acquire)) {
    return false;
  }
  wake(wait.address);
  return true;
}

kl_result runWrite(void*, void* payload, kl_error*) {
  const auto& job = *static_cast<const Write*>(payload);
  Word(*job.address).store(job.value, std::memory_order_release);
  wake(job.address);
  return KL_SUCCESS;
}

// What went wrong is in the text already.
kl_result failed(const Wait& wait, kl_error* error) {
  std::snprintf(error->op, sizeof(error->op), "%s", wait.what);
  return KL_ERROR_RUNTIME;
}

// The thread keeps its rights to device memory while it sleeps: the kernel reads the word on its behalf.
kl_result runWait(void*, void* payload, kl_error* error) {
  const auto& wait = *static_cast<const Wait*>(payload);
  const Stream& stream = *Stream::current();
  const int64_t began = steadyNanoseconds();
  const int64_t deadline =
      wait.timeout_ms == 0 ? Progress::kNever : began + static_cast<int64_t>(wait.timeout_ms) * 1'000'000;
  uint32_t seen = 0;
  do {
    if (meets(wait, seen)) {
      return KL_SUCCESS;
    }
    sched_yield();
  } while (steadyNanoseconds() < began + Progress::kSpinNanoseconds);

  int64_t next_look_for_dead = began + kLookForDead;
  for (int64_t look = kFirstLook; !meets(wait, seen); look = std::min(2 * look, kLongestLook)) {
    if (stream.isGivenUp()) {
      return KL_SUCCESS;
    }
    const int64_t now = steadyNanoseconds();
    if (now >= deadline) {
      std::snprintf(
          error->text,
          sizeof(error->text),
          "waited %llu ms for a word in device memory to become %u; it is %u",
          static_cast<unsigned long long>(wait.timeout_ms),
          wait.value,
          seen);
      return failed(wait, error);
    }
    if (wait.writer.pid != 0 && now >= next_look_for_dead) {
      next_look_for_dead = now + kLookForDead;
      // It may have written just before its end.
      if (!isAlive(wait.writer) && !meets(wait, seen)) {
        std::snprintf(
            error->text,
            sizeof(error->text),
            "process %d, which was to set a word in device memory to %u, has ended",
            wait.writer.pid,
            wait.value);
        return failed(wait, error);
      }
    }
    sleep(wait.address, seen, std::min(look, deadline - now));
  }
  return KL_SUCCESS;
}

uint32_t* wordAt(void* address) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(uint32_t) != 0) {
    raise(KL_ERROR_VALUE, -1, "the word at %p is not aligned to 4 bytes", address);
  }
  if (deviceHolding(address, sizeof(uint32_t)) == nullptr) {
    raise(KL_ERROR_VALUE, -1, "the word at %p does not lie in the memory of a kunlun device", address);
  }
  return static_cast<uint32_t*>(address);
}

} // namespace

kl_result writeWord(void* address, uint32_t value, Stream& stream) {
  const Write job{wordAt(address), value};
  if (const kl_result failure = stream.report(); failure != KL_SUCCESS) {
    return failure;
  }
  stream.work("stream_write_value32", runWrite, nullptr, &job, sizeof(job));
  return KL_SUCCESS;
}

kl_result waitForWord(void* address, const kl_wait& wait, Stream& stream) {
  if ((wait.flags & ~uint32_t{KL_WAIT_REPLACE}) != 0) {
    raise(KL_ERROR_VALUE, -1, "%u are not flags of a wait", wait.flags);
  }
  Wait job{
      wordAt(address),
      wait.value,
      wait.replacement,
      (wait.flags & KL_WAIT_REPLACE) != 0,
      {wait.writer_pid, wait.writer_start},
      wait.timeout_ms,
      {}};
  std::snprintf(job.what, sizeof(job.what), "%s", wait.what == nullptr ? "stream_wait_value32" : wait.what);
  if (const kl_result failure = stream.report(); failure != KL_SUCCESS) {
    return failure;
  }
  stream.work("stream_wait_value32", runWait, nullptr, &job, sizeof(job));
  return KL_SUCCESS;
}

} // namespace kunlun::sim
