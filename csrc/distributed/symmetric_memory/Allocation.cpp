// Memory that a group of ranks can share.
#include "distributed/symmetric_memory/Allocation.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <c10/core/StorageImpl.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "distributed/OwnStream.h"
#include "runtime/AfterWork.h"
#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/chip/Loader.h"
#include "runtime/ipc/SharedStorage.h"

namespace kunlun::distributed::symmetric_memory {

namespace {

constexpr size_t kPadAlignment = 64; // of a cache line, so that signals and data do not disturb each other

struct Memory {
  void* base;
  c10::DeviceIndex device;
};

void release(void* context) {
  auto* memory = static_cast<Memory*>(context);
  if (!checkUsable()) {
    return; // exiting, or a forked child: there is no device to give it back to
  }
  callAfterWork(memory->device, "symm_mem_free", [memory] {
    if (chip::runtime().memory_free(memory->device, memory->base) != KL_SUCCESS) {
      TORCH_WARN("symmetric memory of device kunlun:", static_cast<int>(memory->device), " could not be freed");
    }
    delete memory;
  });
}

void* allocate(size_t bytes, c10::DeviceIndex device) {
  void* base = nullptr;
  const auto attempt = [&] { return chip::runtime().memory_alloc(device, bytes, KL_MEMORY_MAIN, &base); };
  if (kl_result result = attempt(); result != KL_SUCCESS) {
    if (result == KL_ERROR_OUT_OF_MEMORY) {
      ipc::collect(/*look_for_dead=*/true);
      synchronizeDevice(device); // memory that has been freed behind work
      CachingAllocator::emptyCache();
      result = attempt();
    }
    check(result, "memory_alloc");
  }
  return base;
}

// On a stream of its own, because the current one may be waiting for a peer.
void clear(void* address, size_t bytes, c10::DeviceIndex device) {
  const OwnStream stream(/*high_priority=*/false, device);
  check(chip::runtime().memset_async(address, 0, bytes, stream.get().handle()), "memset_async");
  stream.get().synchronize();
}

c10::Storage makeStorage(size_t bytes, c10::DeviceIndex device) {
  void* base = allocate(bytes, device);
  c10::DataPtr data(base, new Memory{base, device}, &release, c10::Device(c10::DeviceType::PrivateUse1, device));
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), /*allocator=*/nullptr, /*resizable=*/false));
}

} // namespace

Allocation::Allocation(size_t bytes, c10::DeviceIndex device, std::optional<std::string> group_name)
    : bytes_(bytes),
      pad_offset_((bytes + kPadAlignment - 1) / kPadAlignment * kPadAlignment),
      pad_bytes_(c10d::symmetric_memory::get_signal_pad_size()),
      device_(device),
      group_name_(std::move(group_name)),
      storage_(makeStorage(pad_offset_ + pad_bytes_, device)) {
  clear(static_cast<char*>(buffer()) + pad_offset_, pad_bytes_, device_);
}

std::shared_ptr<Peers> Allocation::peers(const std::string& group_name) {
  std::lock_guard lock(lock_);
  const auto known = peers_.find(group_name);
  return known == peers_.end() ? nullptr : known->second;
}

void Allocation::setPeers(const std::string& group_name, std::shared_ptr<Peers> peers) {
  std::lock_guard lock(lock_);
  peers_[group_name] = std::move(peers);
}

} // namespace kunlun::distributed::symmetric_memory
