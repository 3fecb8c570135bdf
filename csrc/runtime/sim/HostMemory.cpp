// Registry of pinned host memory.
#include "runtime/sim/HostMemory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime/sim/Arena.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {
namespace {

struct Registry {
  std::mutex lock;                      // guards blocks
  std::map<uintptr_t, uint64_t> blocks; // address -> bytes
};

// Leaked: blocks are given back from destructors of static objects.
Registry& registry() {
  static Registry& value = *new Registry;
  return value;
}

} // namespace

void* hostAllocate(uint64_t bytes) {
  if (bytes > UINT64_MAX / 2) {
    raise(
        KL_ERROR_OUT_OF_MEMORY,
        -1,
        "cannot allocate %llu bytes of host memory",
        static_cast<unsigned long long>(bytes));
  }
  const uint64_t rounded = bytes == 0 ? Arena::kPage : (bytes + Arena::kPage - 1) & ~(Arena::kPage - 1);
  void* ptr = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (ptr == MAP_FAILED) {
    raise(
        KL_ERROR_OUT_OF_MEMORY,
        -1,
        "cannot allocate %.2f MiB of pinned host memory: %s",
        static_cast<double>(rounded) / (1 << 20),
        std::strerror(errno));
  }
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  r.blocks.emplace(reinterpret_cast<uintptr_t>(ptr), rounded);
  return ptr;
}

void hostFree(void* ptr) {
  Registry& r = registry();
  uint64_t bytes = 0;
  {
    std::lock_guard lock(r.lock);
    const auto block = r.blocks.find(reinterpret_cast<uintptr_t>(ptr));
    if (block == r.blocks.end()) {
      raise(KL_ERROR_VALUE, -1, "%p is not the start of a block of pinned host memory", ptr);
    }
    bytes = block->second;
    // Forgotten before it is unmapped: another thread may be given the same address at once.
    r.blocks.erase(block);
  }
  munmap(ptr, bytes);
}

bool hostFind(const void* ptr, kl_pointer_info* out) {
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  auto block = r.blocks.upper_bound(address);
  if (block == r.blocks.begin()) {
    return false;
  }
  --block;
  if (address >= block->first + block->second) {
    return false;
  }
  out->device = -1;
  out->base = reinterpret_cast<void*>(block->first);
  out->size = block->second;
  return true;
}

} // namespace kunlun::sim
