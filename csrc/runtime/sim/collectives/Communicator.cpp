// Meetings of all ranks, the end of a communicator, and how every rank learns of it.
#include "runtime/sim/collectives/Communicator.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#include "runtime/sim/Device.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kunlun::sim {
namespace {

constexpr uint32_t kThreadsPerRank = 2; // that of its program and that of the stream

} // namespace

Communicator::Communicator(Device& device, uint32_t rank, Members members)
    : device_(device),
      rank_(rank),
      nranks_(static_cast<uint32_t>(members.peers.size())),
      inline_bytes_(members.control->layout().inlineBytes()),
      is_crowded_(kThreadsPerRank * nranks_ > std::thread::hardware_concurrency()),
      members_(std::move(members)),
      sends_(nranks_),
      receives_(nranks_),
      acknowledged_(new std::atomic<uint32_t>[nranks_]()) {
  if (is_crowded_) {
    Progress::shareCores(true);
  }
}

Communicator::~Communicator() {
  state(rank_).has_left.store(1, std::memory_order_seq_cst);
  header().generation.wake();
  if (is_crowded_) {
    Progress::shareCores(false);
  }
}

void Communicator::relax() const {
  if (is_crowded_) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Communicator::Arrival Communicator::arrive() {
  ControlHeader& shared = header();
  RankState& own = state(rank_);
  const Arrival arrival{shared.generation.get(), own.passed.load(std::memory_order_relaxed) + 1};
  own.passed.store(arrival.passed, std::memory_order_release);
  if (shared.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == nranks_) {
    shared.arrived.store(0, std::memory_order_relaxed);
    shared.generation.increment();
  }
  return arrival;
}

bool Communicator::await(const Arrival& arrival, int64_t patience) {
  const SharedWord& generation = header().generation;
  if (generation.get() != arrival.generation) {
    return true;
  }
  const int64_t start = steadyNanoseconds();
  const int64_t spin_until = start + std::min(patience, Progress::kSpinNanoseconds);
  do {
    for (int i = 0; i < 8; ++i) {
      if (generation.get() != arrival.generation) {
        return true;
      }
      relax();
    }
  } while (steadyNanoseconds() < spin_until);
  for (;;) {
    const int64_t waited = steadyNanoseconds() - start;
    if (waited >= patience) {
      return false;
    }
    header().generation.sleep(arrival.generation, std::min(kSleepNanoseconds, patience - waited));
    if (generation.get() != arrival.generation) {
      return true;
    }
    checkUsable();
    if (patience > kSleepNanoseconds) {
      checkMissing(arrival.passed);
    }
  }
}

void Communicator::checkUsable() const {
  kl_error ended;
  if (error(&ended)) {
    throw Failure(ended);
  }
  if (!usable()) {
    raise(KL_ERROR_RUNTIME, device_.index(), "the process is exiting");
  }
}

void Communicator::checkMissing(uint32_t passed) {
  for (uint32_t rank = 0; rank < nranks_; ++rank) {
    if (static_cast<int32_t>(state(rank).passed.load(std::memory_order_acquire) - passed) < 0) {
      checkPeer(rank);
    }
  }
}

void Communicator::checkPeer(uint32_t rank) {
  const Peer& other = peer(rank);
  const char* how = !other.isAlive()                              ? "has died"
      : state(rank).has_left.load(std::memory_order_seq_cst) != 0 ? "has left the communicator"
                                                                  : nullptr;
  if (how != nullptr) {
    char text[160];
    std::snprintf(
        text,
        sizeof(text),
        "rank %u of %u (process %d) %s; the communicator cannot be used any more",
        rank,
        nranks_,
        static_cast<int>(other.pid()),
        how);
    breakUp(KL_ERROR_RUNTIME, text);
    checkUsable();
  }
}

void Communicator::breakUp(kl_result code, const std::string& reason) {
  ControlHeader& shared = header();
  uint32_t whole = 0;
  if (shared.broken.compare_exchange_strong(whole, 1, std::memory_order_acq_rel)) {
    shared.broken_code = code;
    std::snprintf(shared.reason, sizeof(shared.reason), "%s", reason.c_str());
    shared.broken.store(2, std::memory_order_release);
  } else {
    // Another rank is about to say why. Should it die in the middle of that, its text is what there is.
    const int64_t deadline = steadyNanoseconds() + 100 * kSleepNanoseconds;
    while (shared.broken.load(std::memory_order_acquire) == 1 && steadyNanoseconds() < deadline) {
      sched_yield();
    }
    shared.broken.store(2, std::memory_order_release);
  }
  shared.generation.wake();
  for (uint32_t other = 0; other < nranks_; ++other) {
    for (Channel* channel : {&this->channel(other, rank_), &this->channel(rank_, other)}) {
      channel->posted.wake();
      channel->taken.wake();
    }
  }
}

void Communicator::abort(const char* reason) {
  char text[ControlHeader::kReasonBytes];
  std::snprintf(text, sizeof(text), "rank %u of %u aborted the communicator: %s", rank_, nranks_, reason);
  breakUp(KL_ERROR_RUNTIME, text);
}

bool Communicator::error(kl_error* out) const {
  ControlHeader& shared = header();
  if (shared.broken.load(std::memory_order_acquire) != 2) {
    return false;
  }
  *out = makeError(static_cast<kl_result>(shared.broken_code), device_.index(), "", 0, shared.reason);
  return true;
}

uint64_t Communicator::progress(uint64_t* missing, uint32_t words) const {
  std::memset(missing, 0, words * sizeof(uint64_t));
  const uint64_t running = running_.load(std::memory_order_relaxed);
  if (running == 0) {
    return 0;
  }
  const uint32_t own = state(rank_).passed.load(std::memory_order_acquire);
  for (uint32_t rank = 0; rank < nranks_ && rank / 64 < words; ++rank) {
    if (static_cast<int32_t>(state(rank).passed.load(std::memory_order_acquire) - own) < 0) {
      missing[rank / 64] |= uint64_t{1} << (rank % 64);
    }
  }
  return running;
}

} // namespace kunlun::sim
