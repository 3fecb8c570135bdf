// Point-to-point traffic: each direction between two ranks is a channel with its own numbers.
#include "runtime/sim/collectives/PointToPoint.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "runtime/sim/Device.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Stream.h"
#include "runtime/sim/collectives/Collectives.h"
#include "runtime/sim/collectives/Reduce.h"
#include "runtime/sim/collectives/Staging.h"

namespace kunlun::sim {
namespace {

constexpr int64_t kPollNanoseconds = 1'000'000; // another of the transfers may be able to go on

// One transfer on the stream's thread. A send posts where its data is and waits until the receiver has taken it; a
// receive waits for the posting, compares, copies and answers with its verdict.
class Progressing {
 public:
  Progressing(Transfer& what, const kl_error* failure)
      : what_(what),
        group_(*what.communicator),
        peer_(static_cast<uint32_t>(what.call.root)),
        is_send_(what.call.kind == CollectiveKind::Send),
        channel_(is_send_ ? group_.channel(group_.rank(), peer_) : group_.channel(peer_, group_.rank())),
        message_(channel_.messages[what.number % Channel::kDepth]),
        bytes_(what.call.count * bytesOf(what.call.dtype)),
        staging_(
            group_.device(),
            is_send_ ? what.buffer : nullptr,
            is_send_ ? bytes_ : 0,
            is_send_ ? nullptr : what.buffer,
            is_send_ ? 0 : bytes_),
        failure_(failure) {}

  bool isDone() const {
    return is_done_;
  }

  // True when something happened.
  bool step() {
    if (is_send_) {
      return is_posted_ ? acknowledge() : post();
    }
    return take();
  }

  // Where the next step's condition lies.
  SharedWord& awaited() const {
    if (is_send_) {
      return channel_.taken;
    }
    return channel_.posted.hasReached(what_.number) ? channel_.taken : channel_.posted;
  }

  void checkPeer() const {
    group_.checkUsable();
    group_.checkPeer(peer_);
  }

  Communicator& group() const {
    return group_;
  }

 private:
  bool post() {
    const bool has_room = what_.number - group_.acknowledged(peer_).load(std::memory_order_acquire) <= Channel::kDepth;
    if (!has_room || channel_.posted.get() != what_.number - 1) {
      return false;
    }
    message_.call = what_.call;
    message_.is_failed = failure_ != nullptr;
    message_.is_refused = 0;
    if (failure_ != nullptr) {
      copyText(message_.text, sizeof(message_.text), failure_->text);
    } else {
      staging_.begin(false);
      message_.offset = static_cast<uint64_t>(staging_.send() - group_.device().arena().base());
    }
    channel_.posted.set(what_.number);
    is_posted_ = true;
    return true;
  }

  bool acknowledge() {
    if (!channel_.taken.hasReached(what_.number)) {
      return false;
    }
    const bool is_refused = message_.is_refused != 0;
    const std::string text = is_refused ? message_.text : "";
    group_.acknowledged(peer_).fetch_add(1, std::memory_order_release);
    is_done_ = true;
    if (is_refused && failure_ == nullptr) {
      raise(KL_ERROR_VALUE, group_.device().index(), "%s", text.c_str());
    }
    return true;
  }

  bool take() {
    if (!channel_.posted.hasReached(what_.number) || channel_.taken.get() != what_.number - 1) {
      return false;
    }
    is_done_ = true;
    std::string wrong;
    if (failure_ != nullptr) {
      wrong = stoppedText(group_.rank(), what_.call.kind, failure_->text);
    } else if (message_.is_failed != 0) {
      wrong = stoppedText(peer_, CollectiveKind::Send, message_.text);
    } else if (message_.call.dtype != what_.call.dtype || message_.call.count != what_.call.count) {
      wrong = "a send and its receive disagree: rank " + std::to_string(peer_) + " called " + sizeText(message_.call) +
          " to rank " + std::to_string(group_.rank()) + ", which called " + sizeText(what_.call) +
          "; nothing was read or written";
    } else {
      staging_.begin(false);
      if (bytes_ != 0) {
        std::memcpy(staging_.recv(), group_.peer(peer_).base() + message_.offset, bytes_);
        if (peer_ != group_.rank()) {
          passLink(group_.device().index(), bytes_);
        }
      }
      staging_.finish();
    }
    if (!wrong.empty()) {
      message_.is_refused = 1;
      copyText(message_.text, sizeof(message_.text), wrong.c_str());
    }
    channel_.taken.set(what_.number);
    if (!wrong.empty() && failure_ == nullptr) {
      raise(KL_ERROR_VALUE, group_.device().index(), "%s", wrong.c_str());
    }
    return true;
  }

  std::string stoppedText(uint32_t rank, CollectiveKind kind, const char* text) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(group_.nranks()) + " could not take part in " +
        nameOf(kind) + ", because its stream had failed: " + text;
  }

  static std::string sizeText(const Call& call) {
    Call without_peer = call;
    without_peer.root = -1;
    return describe(without_peer);
  }

  Transfer& what_;
  Communicator& group_;
  const uint32_t peer_;
  const bool is_send_;
  Channel& channel_;
  Channel::Message& message_;
  const uint64_t bytes_;
  Staging staging_;
  const kl_error* failure_;
  bool is_posted_ = false;
  bool is_done_ = false;
};

using Transfers = std::vector<Transfer>;

void await(Progressing& first, bool is_alone, int64_t& checked) {
  SharedWord& word = first.awaited();
  const uint32_t seen = word.get();
  // Between the failed step and this look the word may have moved on.
  if (first.step()) {
    return;
  }
  word.sleep(seen, is_alone ? Communicator::kSleepNanoseconds : kPollNanoseconds);
  if (const int64_t now = steadyNanoseconds(); now - checked > Communicator::kSleepNanoseconds) {
    checked = now;
    first.checkPeer();
  }
}

kl_result runTransfers(void* arg, const kl_error* failure, kl_error*) {
  const std::unique_ptr<Transfers> transfers(static_cast<Transfers*>(arg));
  std::vector<std::unique_ptr<Progressing>> pending;
  for (Transfer& transfer : *transfers) {
    transfer.communicator->checkUsable();
    pending.push_back(std::make_unique<Progressing>(transfer, failure));
  }
  // A refused transfer is reported after the others have been carried out: their peers wait for them.
  std::optional<Failure> refused;
  int64_t idle_since = steadyNanoseconds();
  int64_t checked = idle_since;
  while (!pending.empty()) {
    bool progressed = false;
    for (auto& transfer : pending) {
      try {
        progressed |= transfer->step();
      } catch (const Failure& problem) {
        progressed = true;
        refused = problem;
      }
    }
    std::erase_if(pending, [](const auto& transfer) { return transfer->isDone(); });
    if (pending.empty()) {
      break;
    }
    if (progressed) {
      idle_since = steadyNanoseconds();
    } else if (steadyNanoseconds() - idle_since < Progress::kSpinNanoseconds) {
      pending.front()->group().relax();
    } else {
      try {
        await(*pending.front(), pending.size() == 1, checked);
      } catch (const Failure& problem) {
        if (!pending.front()->isDone()) {
          throw; // the communicator is at its end
        }
        refused = problem;
      }
      std::erase_if(pending, [](const auto& transfer) { return transfer->isDone(); });
    }
  }
  if (refused) {
    throw Failure(*refused);
  }
  return KL_SUCCESS;
}

kl_result enqueue(std::unique_ptr<Transfers> transfers) {
  Stream& stream = *transfers->front().stream;
  for (const Transfer& transfer : *transfers) {
    if (transfer.stream != &stream || &stream.device() != &transfer.communicator->device()) {
      raise(
          KL_ERROR_VALUE,
          stream.device().index(),
          "the transfers of one group must be on one stream, of the device of their communicators");
    }
  }
  stream.device().checkHealthy();
  if (const kl_result failure = stream.report(); failure != KL_SUCCESS) {
    return failure;
  }
  // Every communicator's numbers must be in the order of its streams; locked in the order of their addresses.
  std::vector<std::mutex*> locks;
  for (const Transfer& transfer : *transfers) {
    locks.push_back(&transfer.communicator->enqueueLock());
  }
  std::sort(locks.begin(), locks.end());
  locks.erase(std::unique(locks.begin(), locks.end()), locks.end());
  std::vector<std::unique_lock<std::mutex>> held;
  for (std::mutex* lock : locks) {
    held.emplace_back(*lock);
  }
  for (Transfer& transfer : *transfers) {
    const auto peer = static_cast<uint32_t>(transfer.call.root);
    transfer.number = transfer.call.kind == CollectiveKind::Send ? transfer.communicator->nextSend(peer)
                                                                 : transfer.communicator->nextReceive(peer);
  }
  stream.host(
      transfers->size() == 1 ? nameOf(transfers->front().call.kind) : "send and recv", runTransfers, transfers.get());
  transfers.release();
  return KL_SUCCESS;
}

thread_local std::unique_ptr<Transfers> gathered;

} // namespace

kl_result addTransfer(Transfer transfer) {
  if (gathered != nullptr) {
    gathered->push_back(std::move(transfer));
    return KL_SUCCESS;
  }
  auto single = std::make_unique<Transfers>();
  single->push_back(std::move(transfer));
  return enqueue(std::move(single));
}

void groupStart() {
  if (gathered != nullptr) {
    raise(KL_ERROR_VALUE, -1, "groups of transfers do not nest");
  }
  gathered = std::make_unique<Transfers>();
}

kl_result groupEnd() {
  if (gathered == nullptr) {
    raise(KL_ERROR_VALUE, -1, "group_end without group_start");
  }
  auto transfers = std::move(gathered);
  return transfers->empty() ? KL_SUCCESS : enqueue(std::move(transfers));
}

void groupCancel() {
  gathered.reset();
}

bool probe(Communicator& communicator, uint32_t peer) {
  std::lock_guard lock(communicator.enqueueLock());
  const Channel& channel = communicator.channel(peer, communicator.rank());
  return channel.posted.hasReached(communicator.receivesIssued(peer) + 1);
}

} // namespace kunlun::sim
