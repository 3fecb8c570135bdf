// The memory that the ranks of a communicator share: who is where, what he wants, small payloads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/EnvXccl.h"
#include "runtime/sim/collectives/SharedWord.h"

namespace kunlun::sim {

enum class CollectiveKind : uint32_t {
  None,
  Barrier,
  AllReduce,
  Reduce,
  Broadcast,
  AllGather,
  ReduceScatter,
  AllToAll,
  Gather,
  Scatter,
  Send,
  Recv
};
const char* nameOf(CollectiveKind kind);

// What one rank has called.
struct Call {
  CollectiveKind kind;
  int32_t dtype;
  int32_t op;   // kl_reduce_op, -1 without reduction
  int32_t root; // -1 without root
  uint64_t count;
};

// What a rank publishes before anything is read or written. Offsets count from the start of its device's memory.
struct Posting {
  Call call;
  uint64_t sequence;
  uint64_t send_offset;
  uint64_t recv_offset;
  double factor;      // PREMUL_SUM
  uint32_t is_failed; // the rank's stream carried a failure: `text` says which
  uint32_t is_inline; // the payload lies behind the posting
  char text[480];
};

// One direction of point-to-point traffic between two ranks.
struct Channel {
  static constexpr uint32_t kDepth = 16; // sends that may be posted and not taken
  struct Message {
    Call call;
    uint64_t offset;
    uint32_t is_failed;
    uint32_t is_refused; // the verdict of the receiver: `text` says why
    char text[480];
  };
  alignas(64) SharedWord posted;
  alignas(64) SharedWord taken;
  SharedWord wanted; // receives that have begun to wait
  Message messages[kDepth];
};

struct alignas(64) RankState {
  std::atomic<uint32_t> passed; // barriers it has arrived at
  std::atomic<uint32_t> has_left;
};

// How the ranks of a communicator work; the first of them decides.
struct Settings {
  XcclAlgorithm algorithm;
  XcclAccumulate accumulate;
};

struct ControlHeader {
  static constexpr size_t kReasonBytes = 1024;
  Settings settings; // written before anybody else maps the block
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) SharedWord generation;        // barriers that all have arrived at
  alignas(64) std::atomic<uint32_t> broken; // 0 no, 1 the reason is being written, 2 yes
  int32_t broken_code;                      // kl_result
  char reason[kReasonBytes];
};

// Where things lie. Postings are double-buffered by the parity of their sequence number: a rank that posts number
// n + 2 has seen everybody post n + 1, which everybody did after reading n.
class ControlLayout {
 public:
  ControlLayout(uint32_t nranks, uint32_t inline_bytes) : nranks_(nranks), inline_bytes_(inline_bytes) {}

  uint32_t inlineBytes() const {
    return inline_bytes_;
  }
  size_t bytes() const {
    return (postings() + 2 * nranks_ * postingBytes() + kPage - 1) & ~(kPage - 1);
  }
  ControlHeader& header(void* base) const {
    return *static_cast<ControlHeader*>(base);
  }
  RankState& rank(void* base, uint32_t rank) const {
    return *reinterpret_cast<RankState*>(at(base, ranks() + rank * sizeof(RankState)));
  }
  Channel& channel(void* base, uint32_t from, uint32_t to) const {
    return *reinterpret_cast<Channel*>(at(base, channels() + (from * nranks_ + to) * sizeof(Channel)));
  }
  Posting& posting(void* base, uint32_t rank, uint64_t sequence) const {
    return *reinterpret_cast<Posting*>(at(base, postings() + (2 * rank + (sequence & 1)) * postingBytes()));
  }
  // Counts, then displacements, of what the rank sends to and receives from each.
  uint64_t* sendCounts(Posting& posting) const {
    return reinterpret_cast<uint64_t*>(&posting + 1);
  }
  uint64_t* sendDisplacements(Posting& posting) const {
    return sendCounts(posting) + nranks_;
  }
  uint64_t* recvCounts(Posting& posting) const {
    return sendCounts(posting) + 2 * nranks_;
  }
  char* payload(Posting& posting) const {
    return reinterpret_cast<char*>(&posting) + payloadOffset();
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kLine = 64;

  static size_t aligned(size_t bytes) {
    return (bytes + kLine - 1) & ~(kLine - 1);
  }
  static char* at(void* base, size_t offset) {
    return static_cast<char*>(base) + offset;
  }
  static size_t ranks() {
    return aligned(sizeof(ControlHeader));
  }
  size_t channels() const {
    return ranks() + nranks_ * sizeof(RankState);
  }
  size_t postings() const {
    return channels() + static_cast<size_t>(nranks_) * nranks_ * aligned(sizeof(Channel));
  }
  size_t payloadOffset() const {
    return aligned(sizeof(Posting) + 3 * nranks_ * sizeof(uint64_t));
  }
  size_t postingBytes() const {
    return payloadOffset() + aligned(inline_bytes_);
  }

  uint32_t nranks_;
  uint32_t inline_bytes_;
};

} // namespace kunlun::sim
