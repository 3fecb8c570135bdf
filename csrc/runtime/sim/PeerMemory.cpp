// Device memory of other processes: handles to it, and its mappings here.
#include "runtime/sim/PeerMemory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "runtime/ipc/ProcessId.h"
#include "runtime/sim/Device.h"
#include "runtime/sim/Protect.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {
namespace {

constexpr uint32_t kMagic = 0x6b6c6d31; // "klm1"

// An address in the memory of another process is (file of the device's memory, offset).
struct Handle {
  uint32_t magic;
  int32_t fd; // in the owner
  ProcessId owner;
  uint64_t inode;
  uint64_t offset;
  uint64_t bytes;
  int32_t physical_id;
};
static_assert(sizeof(Handle) <= 64);

struct Import {
  uint64_t bytes;
  int device;
  uint64_t count;
  std::pair<uint64_t, uint64_t> key; // inode and offset
};

struct Imports {
  std::shared_mutex lock; // guards the two maps
  std::map<uintptr_t, Import> by_address;
  std::map<std::pair<uint64_t, uint64_t>, uintptr_t> by_key;
  std::atomic<size_t> count{0}; // of by_address
};

Imports& imports() {
  static Imports& value = *new Imports;
  return value;
}

int physicalId(int device) {
  kl_device_properties properties{};
  deviceProperties(device, &properties);
  return properties.physical_id;
}

// The import that holds the range. Called with the lock held.
const std::pair<const uintptr_t, Import>* holding(const Imports& all, const void* ptr, uint64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  auto found = all.by_address.upper_bound(address);
  if (found == all.by_address.begin()) {
    return nullptr;
  }
  --found;
  const uint64_t offset = address - found->first;
  return offset < found->second.bytes && bytes <= found->second.bytes - offset ? &*found : nullptr;
}

char* mapShared(int fd, const Handle& handle, int device) {
  void* base = mmap(
      nullptr, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(handle.offset));
  if (base == MAP_FAILED) {
    raise(KL_ERROR_RUNTIME, device, "cannot map device memory of process %d: %s", handle.owner.pid, strerror(errno));
  }
  try {
    if (madvise(base, handle.bytes, MADV_DONTFORK) != 0) {
      raise(KL_ERROR_RUNTIME, device, "cannot keep device memory out of forked children: %s", strerror(errno));
    }
    protectImported(static_cast<char*>(base), handle.bytes, device);
  } catch (...) {
    munmap(base, handle.bytes);
    throw;
  }
  return static_cast<char*>(base);
}

} // namespace

void exportMemory(void* ptr, char handle[64]) {
  kl_pointer_info info{};
  if (findImported(ptr, &info)) {
    raise(
        KL_ERROR_VALUE,
        info.device,
        "memory that belongs to another process can be handed on by that process only; copy it first");
  }
  Device* owner = deviceHolding(ptr, 1);
  if (owner == nullptr || !owner->arena().find(ptr, &info) || info.base != ptr) {
    raise(KL_ERROR_VALUE, -1, "%p is not the start of an allocation on a kunlun device", ptr);
  }
  const Arena& arena = owner->arena();
  const Handle filled{
      kMagic,
      arena.fd(),
      currentProcess(),
      inodeOf(arena.fd()),
      static_cast<uint64_t>(static_cast<char*>(ptr) - arena.base()),
      info.size,
      physicalId(owner->index())};
  std::memset(handle, 0, 64);
  std::memcpy(handle, &filled, sizeof(filled));
}

void* importMemory(int index, const char bytes[64]) {
  Handle handle{};
  std::memcpy(&handle, bytes, sizeof(handle));
  checkIndex(index);
  if (handle.magic != kMagic) {
    raise(KL_ERROR_VALUE, index, "this is no handle of device memory, or one of another version of the driver");
  }
  if (handle.physical_id != physicalId(index)) {
    raise(
        KL_ERROR_VALUE,
        index,
        "the handle is of the card with physical number %d, but kunlun device %d is number %d here",
        handle.physical_id,
        index,
        physicalId(index));
  }
  if (handle.owner == currentProcess()) {
    raise(KL_ERROR_VALUE, index, "a process cannot open a handle of its own memory");
  }
  device(index); // starts it: the chip's threads are to use the memory
  Imports& all = imports();
  const std::pair<uint64_t, uint64_t> key{handle.inode, handle.offset};
  std::lock_guard lock(all.lock);
  if (const auto known = all.by_key.find(key); known != all.by_key.end()) {
    Import& import = all.by_address.at(known->second);
    if (import.bytes == handle.bytes) {
      ++import.count;
      return reinterpret_cast<void*>(known->second);
    }
    all.by_key.erase(known); // the owner has made another allocation there; the old one stays mapped until it is closed
  }
  const char* why = nullptr;
  const int fd = openOf(handle.owner, handle.fd, handle.inode, &why);
  if (fd < 0) {
    raise(KL_ERROR_RUNTIME, index, "cannot open device memory of process %d: %s", handle.owner.pid, why);
  }
  char* base = nullptr;
  try {
    base = mapShared(fd, handle, index);
  } catch (...) {
    close(fd);
    throw;
  }
  close(fd);
  const auto address = reinterpret_cast<uintptr_t>(base);
  all.by_address[address] = {handle.bytes, index, 1, key};
  all.by_key[key] = address;
  all.count.store(all.by_address.size(), std::memory_order_release);
  return base;
}

void closeMemory(void* ptr) {
  Imports& all = imports();
  std::lock_guard lock(all.lock);
  const auto found = all.by_address.find(reinterpret_cast<uintptr_t>(ptr));
  if (found == all.by_address.end()) {
    raise(KL_ERROR_VALUE, -1, "%p was not opened from a handle", ptr);
  }
  if (--found->second.count != 0) {
    return;
  }
  const Import import = found->second;
  if (const auto key = all.by_key.find(import.key); key != all.by_key.end() && key->second == found->first) {
    all.by_key.erase(key);
  }
  all.by_address.erase(found);
  all.count.store(all.by_address.size(), std::memory_order_release);
  forgetImported(static_cast<char*>(ptr));
  munmap(ptr, import.bytes);
}

Device* importingDevice(const void* ptr, uint64_t bytes) {
  Imports& all = imports();
  if (all.count.load(std::memory_order_acquire) == 0) {
    return nullptr;
  }
  std::shared_lock lock(all.lock);
  const auto* found = holding(all, ptr, bytes);
  return found == nullptr ? nullptr : startedDevice(found->second.device);
}

bool findImported(const void* ptr, kl_pointer_info* out) {
  Imports& all = imports();
  if (all.count.load(std::memory_order_acquire) == 0) {
    return false;
  }
  std::shared_lock lock(all.lock);
  const auto* found = holding(all, ptr, 1);
  if (found == nullptr) {
    return false;
  }
  out->device = found->second.device;
  out->base = reinterpret_cast<void*>(found->first);
  out->size = found->second.bytes;
  return true;
}

} // namespace kunlun::sim
