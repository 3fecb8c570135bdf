// The ranks of a group over one piece of symmetric memory, and each one's memory as this process sees it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runtime/ipc/ProcessId.h"

namespace kunlun::distributed::symmetric_memory {

class Allocation;

// The group of a name, as torch.distributed knows it.
struct Group {
  static Group find(const std::string& name);

  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 0;
  std::chrono::milliseconds timeout{};
  std::vector<int> global_ranks; // of each rank
};

// Keeps all of the memory mapped, the local rank's too, for as long as it lives.
class Peers {
 public:
  // Meets the other ranks, each of which calls this with memory of its own. Every rank returns, or every rank raises:
  // DistBackendError for ranks that have died or do not come within the group's timeout or live on another host,
  // ValueError for sizes that differ.
  static std::shared_ptr<Peers> meet(const Allocation& allocation, const std::string& group_name, const Group& group);

  // Whether the group is the one they have met in; another one may have got the name meanwhile.
  bool areOf(const Group& group) const;

  const std::vector<void*>& buffers() const {
    return buffers_;
  }
  const std::vector<void*>& signalPads() const {
    return signal_pads_;
  }
  const std::vector<ProcessId>& processes() const {
    return processes_;
  }
  const std::vector<int>& globalRanks() const {
    return global_ranks_;
  }
  int rank() const {
    return rank_;
  }
  int size() const {
    return static_cast<int>(buffers_.size());
  }
  size_t bytes() const {
    return bytes_;
  }
  size_t padBytes() const {
    return pad_bytes_;
  }
  c10::DeviceIndex device() const {
    return device_;
  }

 private:
  Peers(const Allocation& allocation, const Group& group);
  void take(std::vector<c10::DataPtr> borrowed, size_t pad_offset);

  const c10::Storage own_;
  const int rank_;
  const size_t bytes_;
  const size_t pad_bytes_;
  const c10::DeviceIndex device_;
  const std::vector<int> global_ranks_;
  const c10::weak_intrusive_ptr<c10d::Store> store_;
  std::vector<c10::DataPtr> borrowed_; // by rank; empty for the own
  std::vector<void*> buffers_;
  std::vector<void*> signal_pads_;
  std::vector<ProcessId> processes_;
};

} // namespace kunlun::distributed::symmetric_memory
