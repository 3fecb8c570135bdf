// Another rank's device memory, mapped here, and whether its process lives.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "runtime/sim/collectives/Socket.h"

namespace kunlun::sim {

// One for each pair of process and device, shared by every communicator that has that rank. Unmapped with the last of
// them, so no memory of a dead process is kept.
class Peer {
 public:
  // `memory` is the memfd of the device, `process` a pidfd. A device of this very process is used where it is.
  static std::shared_ptr<Peer> open(Descriptor memory, Descriptor process, pid_t pid);

  Peer(char* base, uint64_t bytes, bool is_mapped, Descriptor process, pid_t pid)
      : base_(base), bytes_(bytes), is_mapped_(is_mapped), process_(std::move(process)), pid_(pid) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  char* base() const {
    return base_;
  }
  uint64_t bytes() const {
    return bytes_;
  }
  pid_t pid() const {
    return pid_;
  }
  // A system call.
  bool isAlive() const;

 private:
  char* const base_;
  const uint64_t bytes_;
  const bool is_mapped_; // by this object
  const Descriptor process_;
  const pid_t pid_;
};

} // namespace kunlun::sim
