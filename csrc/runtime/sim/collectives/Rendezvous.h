// How the ranks of a communicator find each other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/chip/collectives.h"
#include "runtime/sim/collectives/Control.h"
#include "runtime/sim/collectives/Peer.h"

namespace kunlun::sim {

// The shared block, mapped. The file behind it has no name, and its descriptor is closed once all have mapped it.
class ControlBlock {
 public:
  // Ranks of one process share the mapping: what they exchange lies at one address, where a sanitizer can follow it.
  static std::shared_ptr<ControlBlock> open(int fd, const ControlLayout& layout);

  ControlBlock(int fd, const ControlLayout& layout);
  ControlBlock(const ControlBlock&) = delete;
  ControlBlock& operator=(const ControlBlock&) = delete;
  ~ControlBlock();

  const ControlLayout& layout() const {
    return layout_;
  }
  void* base() const {
    return base_;
  }

 private:
  const ControlLayout layout_;
  void* base_;
};

struct Members {
  std::shared_ptr<ControlBlock> control;
  std::vector<std::shared_ptr<Peer>> peers; // by rank, this one included
};

// Makes the name under which the ranks meet; this process listens there from now on.
void makeUniqueId(kl_comm_id* out);

// Waits for all ranks. Fails on every rank with one text if a rank does not come, disagrees or cannot take part.
Members meet(int device, uint32_t rank, uint32_t nranks, const kl_comm_id& id, uint64_t timeout_ms);

} // namespace kunlun::sim
