// The ranks that work together, as one of them sees it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/sim/Progress.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/collectives/Rendezvous.h"

namespace kunlun::sim {

class Device;

// Two kinds of waiting lead through here: meetings of all ranks, and words of a channel between two. Both spin for a
// moment and then sleep, holding no lock and no core, and look now and then whether the communicator still works and
// the awaited ranks still live. What ends a communicator is written into the shared block once, so that every rank
// raises the same error.
class Communicator {
 public:
  Communicator(Device& device, uint32_t rank, Members members);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  Device& device() const {
    return device_;
  }
  uint32_t rank() const {
    return rank_;
  }
  uint32_t nranks() const {
    return nranks_;
  }
  uint32_t inlineBytes() const {
    return inline_bytes_;
  }
  const Settings& settings() const {
    return header().settings;
  }
  const Peer& peer(uint32_t rank) const {
    return *members_.peers[rank];
  }
  const ControlLayout& layout() const {
    return members_.control->layout();
  }
  Posting& posting(uint32_t rank, uint64_t sequence) const {
    return layout().posting(members_.control->base(), rank, sequence);
  }
  Channel& channel(uint32_t from, uint32_t to) const {
    return layout().channel(members_.control->base(), from, to);
  }

  // ---- callers

  // Held while an operation gets its number and is put on its stream, so that numbers and streams agree.
  std::mutex& enqueueLock() {
    return enqueue_lock_;
  }
  uint64_t nextSequence() {
    return ++issued_;
  }
  uint32_t nextSend(uint32_t peer) {
    return ++sends_[peer];
  }
  uint32_t nextReceive(uint32_t peer) {
    return ++receives_[peer];
  }
  // Whether the calling thread should wait a moment for its peers. Where they come late time after time, it does not
  // for a while.
  bool waitsHere() {
    if (late_ < kLateInARow) {
      return true;
    }
    late_ = late_ == kLateInARow + kPause ? 0 : late_ + 1;
    return false;
  }
  void noteWait(bool in_time) {
    late_ = in_time ? 0 : late_ + 1;
  }
  uint32_t sendsIssued(uint32_t peer) const {
    return sends_[peer];
  }
  uint32_t receivesIssued(uint32_t peer) const {
    return receives_[peer];
  }

  void abort(const char* reason);
  // The error that ended the communicator; false while it works.
  bool error(kl_error* out) const;
  // The collective that runs now (0: none) and who has not joined it.
  uint64_t progress(uint64_t* missing, uint32_t words) const;

  // ---- streams' threads

  // Collectives run one at a time, by number, whatever streams they are on.
  void awaitTurn(uint64_t sequence) {
    turn_.waitFor(sequence - 1);
    running_.store(sequence, std::memory_order_relaxed);
  }
  void endTurn(uint64_t sequence) {
    running_.store(0, std::memory_order_relaxed);
    turn_.advance(sequence);
  }
  // Whether awaitTurn would return at once.
  bool isTurn(uint64_t sequence) const {
    return turn_.get() >= sequence - 1;
  }
  // A meeting of all ranks, in two halves. await() returns false when somebody has not come within `patience`
  // nanoseconds, and may be called again; it raises when the communicator is at its end.
  struct Arrival {
    uint32_t generation;
    uint32_t passed;
  };
  Arrival arrive();
  bool await(const Arrival& arrival, int64_t patience);
  // Sends that were posted and whose verdict was read, by receiver.
  std::atomic<uint32_t>& acknowledged(uint32_t peer) {
    return acknowledged_[peer];
  }
  // Raises when the communicator has ended or this rank cannot go on.
  void checkUsable() const;
  // The same, and ends the communicator when one of these ranks is gone.
  void checkPeer(uint32_t peer);

  static constexpr int64_t kSleepNanoseconds = 50'000'000;
  // For spinning: who has more ranks than the host has cores lets others run instead.
  void relax() const;

 private:
  void checkMissing(uint32_t passed);
  void breakUp(kl_result code, const std::string& reason);
  ControlHeader& header() const {
    return layout().header(members_.control->base());
  }
  RankState& state(uint32_t rank) const {
    return layout().rank(members_.control->base(), rank);
  }

  Device& device_;
  const uint32_t rank_;
  const uint32_t nranks_;
  const uint32_t inline_bytes_;
  const bool is_crowded_;
  Members members_;

  static constexpr uint32_t kLateInARow = 3;
  static constexpr uint32_t kPause = 30;

  std::mutex enqueue_lock_; // guards the four below
  uint64_t issued_ = 0;
  uint32_t late_ = 0; // waits in vain, one after the other; then calls without one
  std::vector<uint32_t> sends_;
  std::vector<uint32_t> receives_;

  std::unique_ptr<std::atomic<uint32_t>[]> acknowledged_;
  Progress turn_;
  std::atomic<uint64_t> running_{0};
};

} // namespace kunlun::sim
