// Collective operations as items of a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/chip/collectives.h"
#include "runtime/sim/collectives/Communicator.h"

namespace kunlun::sim {

class Stream;

struct Collective {
  std::shared_ptr<Communicator> communicator;
  uint64_t sequence = 0;
  Call call{CollectiveKind::None, KL_DTYPE_UNDEFINED, -1, -1, 0};
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t send_bytes = 0; // what this rank hands to others
  uint64_t recv_bytes = 0; // what it gets
  kl_reduction reduction{KL_REDUCE_SUM, 0, 1.0, nullptr};
  std::vector<uint64_t> counts; // AllToAll: send counts, send displacements, recv counts, recv displacements
};

// Gives it a number and puts it on the stream. Takes delivery of an earlier failure of the stream, as every launch.
kl_result enqueueCollective(std::unique_ptr<Collective> collective, Stream& stream);

// For how long collectives of the calling thread may wait for peers right there.
void setPatience(uint64_t nanoseconds);

// How a call reads in an error: "all_reduce(SUM, float32, 16 elements)".
std::string describe(const Call& call);
// The stream's failure that keeps a rank from taking part, shortened for the peers.
void copyText(char* to, size_t bytes, const char* text);

} // namespace kunlun::sim
