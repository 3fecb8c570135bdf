// What a collective does when its turn on the stream comes: publish, agree, move and reduce, meet again.
#include "runtime/sim/collectives/Collectives.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "runtime/sim/Device.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Stream.h"
#include "runtime/sim/collectives/Reduce.h"
#include "runtime/sim/collectives/Staging.h"

namespace kunlun::sim {

const char* nameOf(CollectiveKind kind) {
  constexpr const char* kNames[] = {
      "none",
      "barrier",
      "all_reduce",
      "reduce",
      "broadcast",
      "all_gather",
      "reduce_scatter",
      "all_to_all",
      "gather",
      "scatter",
      "send",
      "recv"};
  return kNames[static_cast<size_t>(kind)];
}

std::string describe(const Call& call) {
  std::string text = nameOf(call.kind);
  if (call.kind == CollectiveKind::Barrier) {
    return text;
  }
  text += "(";
  if (call.op >= 0) {
    text += std::string(reduceOpName(call.op)) + ", ";
  }
  text += dtypeName(call.dtype);
  if (call.kind != CollectiveKind::AllToAll) {
    text += ", " + std::to_string(call.count) + (call.count == 1 ? " element" : " elements");
  }
  if (call.root >= 0) {
    text += ", root " + std::to_string(call.root);
  }
  return text + ")";
}

void copyText(char* to, size_t bytes, const char* text) {
  const size_t length = std::min(std::strlen(text), bytes - 1);
  std::memcpy(to, text, length);
  to[length] = '\0';
}

namespace {

constexpr uint64_t kLineBytes = 64;

// Collectives up to this size may run on the thread that calls them, which saves the way to the stream's thread and
// back.
constexpr uint64_t kShortBytes = uint64_t{4} << 20;

thread_local int64_t patience = 0;

// One operation, once its turn has come. Its steps may be taken on different threads.
class Run {
 public:
  explicit Run(Collective& what)
      : what_(what),
        group_(*what.communicator),
        rank_(group_.rank()),
        nranks_(group_.nranks()),
        element_(what.call.kind == CollectiveKind::Barrier ? 0 : bytesOf(what.call.dtype)),
        own_(posting(rank_)),
        staged_(group_.device(), what.send, what.send_bytes, what.recv, what.recv_bytes) {}

  // `failure` is what the stream carries, or NULL. Where the peers keep this rank waiting for more than `patience`
  // nanoseconds it returns false, and goes on from there when it is called again. Raises what goes wrong.
  bool advance(const kl_error* failure, int64_t patience) {
    if (stage_ == Stage::Begin) {
      group_.checkUsable();
      publish(failure);
      arrival_ = group_.arrive();
      stage_ = Stage::Published;
    }
    if (stage_ == Stage::Published) {
      if (!group_.await(arrival_, patience)) {
        return false;
      }
      if (own_.is_failed != 0) {
        return true; // the peers have been told, and the stream has its failure already
      }
      agree();
      move();
      if (!hasDirect()) {
        moveOwn();
        staged_.finish();
        return true;
      }
      arrival_ = group_.arrive();
      moveOwn(); // no peer waits for it
      stage_ = Stage::Moved;
    }
    // Nobody may change a buffer that others still read or write.
    if (!group_.await(arrival_, patience)) {
      return false;
    }
    copy(recv(), aside_.data(), aside_.size());
    staged_.finish();
    return true;
  }

 private:
  Posting& posting(uint32_t rank) const {
    return group_.posting(rank, what_.sequence);
  }
  uint32_t root() const {
    return static_cast<uint32_t>(what_.call.root);
  }
  char* recv() const {
    return staged_.recv();
  }

  enum class Stage : uint8_t { Begin, Published, Moved };

  void publish(const kl_error* failure) {
    own_.call = what_.call;
    own_.sequence = what_.sequence;
    own_.is_failed = failure != nullptr;
    own_.is_inline = what_.send_bytes <= group_.inlineBytes() && !isTwoShot();
    if (failure != nullptr) {
      copyText(own_.text, sizeof(own_.text), failure->text);
      return;
    }
    staged_.begin(own_.is_inline);
    const char* base = group_.device().arena().base();
    own_.recv_offset = static_cast<uint64_t>(staged_.recv() - base);
    if (own_.is_inline) {
      copy(group_.layout().payload(own_), staged_.send(), what_.send_bytes);
    } else {
      own_.send_offset = static_cast<uint64_t>(staged_.send() - base);
    }
    own_.factor = what_.reduction.device_factor != nullptr ? readFactor(what_.reduction.device_factor, what_.call.dtype)
                                                           : what_.reduction.factor;
    if (!what_.counts.empty()) {
      std::memcpy(group_.layout().sendCounts(own_), what_.counts.data(), 3 * nranks_ * sizeof(uint64_t));
    }
  }

  // Every rank reads the same postings, so every rank comes to the same conclusion.
  void agree() const {
    for (uint32_t rank = 0; rank < nranks_; ++rank) {
      const Posting& other = posting(rank);
      if (other.is_failed != 0) {
        raise(
            KL_ERROR_RUNTIME,
            group_.device().index(),
            "rank %u of %u could not take part in %s, because its stream had failed: %s",
            rank,
            nranks_,
            nameOf(other.call.kind),
            other.text);
      }
    }
    const Call& first = posting(0).call;
    for (uint32_t rank = 1; rank < nranks_; ++rank) {
      const Call& other = posting(rank).call;
      if (other.kind != first.kind || other.dtype != first.dtype || other.op != first.op || other.root != first.root ||
          other.count != first.count) {
        raise(
            KL_ERROR_VALUE,
            group_.device().index(),
            "ranks disagree about collective %llu of their communicator: rank 0 called %s, rank %u called %s; nothing "
            "was read or written",
            static_cast<unsigned long long>(what_.sequence),
            describe(first).c_str(),
            rank,
            describe(other).c_str());
      }
    }
    if (what_.call.kind == CollectiveKind::AllToAll) {
      agreeOnCounts();
    }
  }

  void agreeOnCounts() const {
    for (uint32_t from = 0; from < nranks_; ++from) {
      for (uint32_t to = 0; to < nranks_; ++to) {
        const uint64_t sent = group_.layout().sendCounts(posting(from))[to];
        const uint64_t expected = group_.layout().recvCounts(posting(to))[from];
        if (sent != expected) {
          raise(
              KL_ERROR_VALUE,
              group_.device().index(),
              "ranks disagree about collective %llu of their communicator: in all_to_all(%s) rank %u sends %llu "
              "elements to rank %u, which expects %llu; nothing was read or written",
              static_cast<unsigned long long>(what_.sequence),
              dtypeName(what_.call.dtype),
              from,
              static_cast<unsigned long long>(sent),
              to,
              static_cast<unsigned long long>(expected));
        }
      }
    }
  }

  bool hasDirect() const {
    for (uint32_t rank = 0; rank < nranks_; ++rank) {
      if (posting(rank).is_inline == 0) {
        return true;
      }
    }
    return false;
  }

  void move() {
    switch (what_.call.kind) {
      case CollectiveKind::AllReduce:
        allReduce();
        break;
      case CollectiveKind::Reduce:
        reduceToRoot();
        break;
      case CollectiveKind::ReduceScatter:
        reduceRange(rank_ * what_.call.count, what_.call.count, {recv()});
        break;
      case CollectiveKind::Broadcast:
        cross(root(), what_.recv_bytes);
        copy(recv(), source(root()), what_.recv_bytes);
        break;
      case CollectiveKind::AllGather:
        fromPeers([this](uint32_t rank) { gatherFrom(rank); });
        break;
      case CollectiveKind::Gather:
        if (rank_ == root()) {
          fromPeers([this](uint32_t rank) { gatherFrom(rank); });
        }
        break;
      case CollectiveKind::Scatter:
        cross(root(), what_.recv_bytes);
        copy(recv(), source(root()) + rank_ * what_.call.count * element_, what_.call.count * element_);
        break;
      case CollectiveKind::AllToAll:
        fromPeers([this](uint32_t rank) { exchangeWith(rank); });
        break;
      default:
        break;
    }
    if (link_bytes_ != 0) {
      passLink(group_.device().index(), link_bytes_);
    }
  }

  // Counts what crosses the links between devices, for the chip's switch that makes them slow.
  void cross(uint32_t rank, uint64_t bytes) {
    link_bytes_ += rank == rank_ ? 0 : bytes;
  }

  // What the rank hands to others.
  const char* source(uint32_t rank) const {
    Posting& other = posting(rank);
    return other.is_inline != 0 ? group_.layout().payload(other) : group_.peer(rank).base() + other.send_offset;
  }
  char* target(uint32_t rank) const {
    return group_.peer(rank).base() + posting(rank).recv_offset;
  }

  static void copy(char* to, const char* from, uint64_t bytes) {
    if (bytes != 0 && to != from) {
      std::memcpy(to, from, bytes);
    }
  }

  // Reduces elements [start, start + count) of every rank's input; the result goes to the start of each output.
  void reduceRange(uint64_t start, uint64_t count, const std::vector<char*>& outputs) {
    if (count == 0) {
      return;
    }
    std::vector<const void*> inputs(nranks_);
    std::vector<double> factors(nranks_);
    for (uint32_t rank = 0; rank < nranks_; ++rank) {
      cross(rank, count * element_);
      inputs[rank] = source(rank) + start * element_;
      factors[rank] = posting(rank).factor;
    }
    const bool rounds_each = group_.settings().accumulate == XcclAccumulate::Native;
    const Reduction what{what_.call.dtype, what_.call.op, nranks_, inputs.data(), factors.data(), rounds_each};
    std::vector<void*> to(outputs.begin(), outputs.end());
    reduce(what, to.data(), static_cast<uint32_t>(to.size()), count);
  }

  // The part of all elements that this rank is the owner of, in whole cache lines.
  std::pair<uint64_t, uint64_t> ownPart() const {
    const uint64_t line = std::max<uint64_t>(1, kLineBytes / element_);
    const uint64_t part = ((what_.call.count + nranks_ - 1) / nranks_ + line - 1) / line * line;
    const uint64_t start = std::min(what_.call.count, rank_ * part);
    return {start, std::min(part, what_.call.count - start)};
  }

  bool isTwoShot() const {
    return what_.call.kind == CollectiveKind::AllReduce && group_.settings().algorithm == XcclAlgorithm::TwoShot;
  }

  void allReduce() {
    if (own_.is_inline != 0) {
      reduceRange(0, what_.call.count, {recv()});
      return;
    }
    if (group_.settings().algorithm == XcclAlgorithm::OneShot) {
      // The result may belong where the input lies, which others still read.
      aside_.resize(what_.call.count * element_);
      reduceRange(0, what_.call.count, {aside_.data()});
      return;
    }
    // Only the owner of a part reads it on any rank, so he may write the result to every rank at once.
    const auto [start, count] = ownPart();
    std::vector<char*> outputs(nranks_);
    for (uint32_t rank = 0; rank < nranks_; ++rank) {
      cross(rank, count * element_);
      outputs[rank] = target(rank) + start * element_;
    }
    reduceRange(start, count, outputs);
  }

  void reduceToRoot() {
    if (own_.is_inline != 0) {
      if (rank_ == root()) {
        reduceRange(0, what_.call.count, {recv()});
      }
      return;
    }
    const auto [start, count] = ownPart();
    reduceRange(start, count, {target(root()) + start * element_});
  }

  // What this rank takes from each peer, beginning with the next one: not all from the same at the same time.
  template <typename Take>
  void fromPeers(Take take) {
    for (uint32_t i = 1; i < nranks_; ++i) {
      take((rank_ + i) % nranks_);
    }
  }

  void gatherFrom(uint32_t rank) {
    const uint64_t bytes = what_.call.count * element_;
    cross(rank, bytes);
    copy(recv() + rank * bytes, rank == rank_ ? staged_.send() : source(rank), bytes);
  }

  void exchangeWith(uint32_t rank) {
    const uint64_t* recv_counts = what_.counts.data() + 2 * nranks_;
    const uint64_t* recv_displacements = recv_counts + nranks_;
    const uint64_t start = group_.layout().sendDisplacements(posting(rank))[rank_];
    const char* from = rank == rank_ ? staged_.send() : source(rank);
    copy(recv() + recv_displacements[rank] * element_, from + start * element_, recv_counts[rank] * element_);
  }

  // The part of the output that comes from this rank itself, where `move` brings only what comes from peers.
  void moveOwn() {
    const CollectiveKind kind = what_.call.kind;
    if (kind == CollectiveKind::AllToAll) {
      exchangeWith(rank_);
    } else if (kind == CollectiveKind::AllGather || (kind == CollectiveKind::Gather && rank_ == root())) {
      gatherFrom(rank_);
    }
  }

  Collective& what_;
  Communicator& group_;
  const uint32_t rank_;
  const uint32_t nranks_;
  const size_t element_;
  Posting& own_;
  Staging staged_;
  std::vector<char> aside_; // the result until all have read
  uint64_t link_bytes_ = 0;
  Stage stage_ = Stage::Begin;
  Communicator::Arrival arrival_{};
};

// A collective on its way through a stream.
struct Item {
  explicit Item(std::unique_ptr<Collective> collective) : what(std::move(collective)), run(*what) {}
  Item(const Item&) = delete;
  Item& operator=(const Item&) = delete;
  ~Item() {
    if (has_turn) {
      what->communicator->endTurn(what->sequence);
    }
  }

  bool advance(const kl_error* failure, int64_t patience) {
    if (!has_turn) {
      what->communicator->awaitTurn(what->sequence);
      has_turn = true;
    }
    return run.advance(failure, patience);
  }

  const std::unique_ptr<Collective> what;
  Run run;
  bool has_turn = false;
};

// A Failure says it all, so none of the two fills in `result`.
kl_result beginHere(void* arg, const kl_error* failure, kl_error*) {
  std::unique_ptr<Item> item(static_cast<Item*>(arg));
  if (!item->advance(failure, patience)) {
    item->what->communicator->noteWait(false);
    item.release(); // finishOnStream has it now
    return KL_NOT_READY;
  }
  item->what->communicator->noteWait(true);
  return KL_SUCCESS;
}

kl_result finishOnStream(void* arg, const kl_error* failure, kl_error*) {
  const std::unique_ptr<Item> item(static_cast<Item*>(arg));
  item->advance(failure, Progress::kNever);
  return KL_SUCCESS;
}

} // namespace

void setPatience(uint64_t nanoseconds) {
  patience = static_cast<int64_t>(std::min<uint64_t>(nanoseconds, Progress::kNever));
}

kl_result enqueueCollective(std::unique_ptr<Collective> collective, Stream& stream) {
  Communicator& group = *collective->communicator;
  if (&stream.device() != &group.device()) {
    raise(
        KL_ERROR_VALUE,
        group.device().index(),
        "the stream belongs to device %d and the communicator to device %d",
        stream.device().index(),
        group.device().index());
  }
  stream.device().checkHealthy();
  if (const kl_result failure = stream.report(); failure != KL_SUCCESS) {
    return failure;
  }
  const char* name = nameOf(collective->call.kind);
  std::lock_guard lock(group.enqueueLock());
  collective->sequence = group.nextSequence();
  const bool is_short = std::max(collective->send_bytes, collective->recv_bytes) <= kShortBytes;
  auto item = std::make_unique<Item>(std::move(collective));
  if (is_short && patience != 0 && group.isTurn(item->what->sequence) && !group.device().peerLink().isLimited() &&
      group.waitsHere()) {
    stream.hostFromHere(name, beginHere, finishOnStream, item.get());
  } else {
    stream.host(name, finishOnStream, item.get());
  }
  item.release();
  return KL_SUCCESS;
}

} // namespace kunlun::sim
