// torch's door to symmetric memory on kunlun.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "distributed/symmetric_memory/Allocation.h"
#include "distributed/symmetric_memory/Peers.h"
#include "distributed/symmetric_memory/SymmetricMemory.h"
#include "runtime/Device.h"
#include "runtime/ipc/SharedStorage.h"

namespace kunlun::distributed::symmetric_memory {

namespace {

using c10d::symmetric_memory::SymmetricMemory;

constexpr const char* kName = "XCCL";

struct Allocations {
  std::mutex lock; // guards by_address
  std::map<uintptr_t, std::shared_ptr<Allocation>> by_address;
};

// Never destroyed: tensors may outlive everything else at exit.
Allocations& allocations() {
  static auto& value = *new Allocations;
  return value;
}

std::shared_ptr<Allocation> holding(const void* ptr) {
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  auto& all = allocations();
  std::lock_guard lock(all.lock);
  auto found = all.by_address.upper_bound(address);
  if (found == all.by_address.begin()) {
    return nullptr;
  }
  --found;
  // An empty allocation holds its own address, too.
  return address == found->first || address - found->first < found->second->bytes() ? found->second : nullptr;
}

class XCCLSymmetricMemoryAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int device_idx, const std::optional<std::string>& group_name) override {
    lazyInit();
    ipc::collect(); // what peers have given up
    const auto device = resolveDevice(static_cast<c10::DeviceIndex>(device_idx));
    auto allocation = std::make_shared<Allocation>(size, device, group_name);
    void* buffer = allocation->buffer();
    auto& all = allocations();
    std::lock_guard lock(all.lock);
    all.by_address[reinterpret_cast<uintptr_t>(buffer)] = std::move(allocation);
    return buffer;
  }

  // Handles and peers that still use the memory keep it.
  void free(void* ptr) override {
    std::shared_ptr<Allocation> ended; // outside of the lock
    {
      auto& all = allocations();
      std::lock_guard lock(all.lock);
      if (const auto found = all.by_address.find(reinterpret_cast<uintptr_t>(ptr)); found != all.by_address.end()) {
        ended = std::move(found->second);
        all.by_address.erase(found);
      }
    }
    ended.reset();
    ipc::collect();
  }

  size_t get_alloc_size(void* ptr) override {
    const auto allocation = holding(ptr);
    TORCH_CHECK(allocation != nullptr, ptr, " is no symmetric memory on kunlun");
    return allocation->bytes();
  }

  c10::intrusive_ptr<SymmetricMemory> rendezvous(void* ptr, const std::optional<std::string>& group_name) override {
    const auto allocation = holding(ptr);
    if (allocation == nullptr) {
      return nullptr;
    }
    const auto& name = group_name.has_value() ? group_name : allocation->groupName();
    TORCH_CHECK(
        name.has_value(),
        "rendezvous: neither the call nor the allocation of the tensor (empty_strided_p2p) names a group");
    const Group group = Group::find(*name);
    auto peers = allocation->peers(*name);
    if (peers == nullptr || !peers->areOf(group)) {
      peers = Peers::meet(*allocation, *name, group);
      allocation->setPeers(*name, peers);
    }
    const auto offset = static_cast<size_t>(static_cast<char*>(ptr) - static_cast<char*>(allocation->buffer()));
    return c10::make_intrusive<XCCLSymmetricMemory>(std::move(peers), offset);
  }

  bool has_multicast_support(int) override {
    return false;
  }
  c10::DeviceType supported_device_type() override {
    return c10::DeviceType::PrivateUse1;
  }
  std::string name() override {
    return kName;
  }
  // Overrides torch's from 2.12 on; 2.11 has none.
  virtual bool has_allocation(void* ptr) {
    return holding(ptr) != nullptr;
  }
};

[[maybe_unused]] const bool registered = [] {
  auto allocator = c10::make_intrusive<XCCLSymmetricMemoryAllocator>();
  c10d::symmetric_memory::register_availability(kName, allocator);
  c10d::symmetric_memory::register_allocator(c10::DeviceType::PrivateUse1, std::move(allocator));
  return true;
}();

} // namespace

} // namespace kunlun::distributed::symmetric_memory
