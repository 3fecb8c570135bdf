// Entries of the runtime table about memory: segments, address ranges, the host's, other processes', copies.
#include "runtime/sim/Copy.h"
#include "runtime/sim/Device.h"
#include "runtime/sim/DriverEntries.h"
#include "runtime/sim/HostMemory.h"
#include "runtime/sim/PeerMemory.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim::entries {

namespace {

Arena& startedArena(int index, const void* ptr) {
  checkIndex(index);
  Device* owner = startedDevice(index);
  if (owner == nullptr || !owner->arena().contains(ptr, 1)) {
    raise(KL_ERROR_VALUE, index, "%p is not an address of device %d", ptr, index);
  }
  return owner->arena();
}

} // namespace

kl_result memoryInfo(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return entry("memory_info", [&] {
    require(free_bytes, "free_bytes");
    require(total_bytes, "total_bytes");
    checkIndex(index);
    checkHealthy(index);
    Device* started = startedDevice(index);
    *total_bytes = deviceMemory();
    *free_bytes = started == nullptr ? *total_bytes : started->arena().freeBytes();
    return KL_SUCCESS;
  });
}

kl_result memoryAlloc(int32_t index, uint64_t bytes, int32_t kind, void** out) {
  return entry("memory_alloc", [&] {
    require(out, "out");
    if (kind != KL_MEMORY_MAIN) {
      raise(
          kind == KL_MEMORY_L3 ? KL_ERROR_NOT_IMPLEMENTED : KL_ERROR_VALUE,
          index,
          kind == KL_MEMORY_L3 ? "the simulated chip has no L3 memory to allocate (l3_memory is 0)"
                               : "the kind of memory is neither KL_MEMORY_MAIN nor KL_MEMORY_L3");
    }
    Device& owner = device(index);
    owner.checkHealthy();
    *out = owner.arena().allocate(bytes);
    return KL_SUCCESS;
  });
}

kl_result memoryFree(int32_t index, void* ptr) {
  return releasingEntry("memory_free", [&] {
    if (ptr == nullptr) {
      return KL_SUCCESS;
    }
    checkIndex(index);
    Device* owner = startedDevice(index);
    if (owner == nullptr) {
      raise(KL_ERROR_VALUE, index, "%p is not the start of a segment of device %d", ptr, index);
    }
    owner->arena().free(ptr);
    return KL_SUCCESS;
  });
}

kl_result addressReserve(int32_t index, uint64_t bytes, uint64_t* granularity, void** out) {
  return entry("address_reserve", [&] {
    require(granularity, "granularity");
    require(out, "out");
    Device& owner = device(index);
    owner.checkHealthy();
    *granularity = Arena::kGranularity;
    *out = owner.arena().reserve(bytes);
    return KL_SUCCESS;
  });
}

kl_result addressRelease(int32_t index, void* base) {
  return releasingEntry("address_release", [&] {
    startedArena(index, base).release(base);
    return KL_SUCCESS;
  });
}

kl_result memoryMap(int32_t index, void* ptr, uint64_t bytes) {
  return entry("memory_map", [&] {
    Arena& arena = startedArena(index, ptr);
    checkHealthy(index);
    arena.map(ptr, bytes);
    return KL_SUCCESS;
  });
}

kl_result memoryUnmap(int32_t index, void* ptr, uint64_t bytes) {
  return releasingEntry("memory_unmap", [&] {
    startedArena(index, ptr).unmap(ptr, bytes);
    return KL_SUCCESS;
  });
}

kl_result hostMalloc(uint64_t bytes, void** out) {
  return entry("host_malloc", [&] {
    require(out, "out");
    *out = hostAllocate(bytes);
    return KL_SUCCESS;
  });
}

kl_result hostFreeEntry(void* ptr) {
  return releasingEntry("host_free", [&] {
    if (ptr != nullptr) {
      hostFree(ptr);
    }
    return KL_SUCCESS;
  });
}

kl_result pointerInfo(const void* ptr, kl_pointer_info* out) {
  return entry("pointer_info", [&] {
    require(out, "out");
    *out = kl_pointer_info{KL_POINTER_UNKNOWN, -1, nullptr, 0};
    if (Device* holder = deviceHolding(ptr, 1)) {
      if (holder->arena().find(ptr, out) || findImported(ptr, out)) {
        out->type = KL_POINTER_DEVICE;
      }
    } else if (hostFind(ptr, out)) {
      out->type = KL_POINTER_HOST;
    }
    return KL_SUCCESS;
  });
}

kl_result ipcGetHandle(void* ptr, char* handle) {
  return entry("ipc_get_handle", [&] {
    require(handle, "handle");
    exportMemory(ptr, handle);
    return KL_SUCCESS;
  });
}

kl_result ipcOpenHandle(int32_t index, const char* handle, void** out) {
  return entry("ipc_open_handle", [&] {
    require(handle, "handle");
    require(out, "out");
    *out = importMemory(index, handle);
    return KL_SUCCESS;
  });
}

kl_result ipcCloseHandle(void* ptr) {
  return releasingEntry("ipc_close_handle", [&] {
    closeMemory(ptr);
    return KL_SUCCESS;
  });
}

kl_result memcpyAsync(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, kl_stream stream) {
  return entry("memcpy_async", [&] { return copy(dst, src, bytes, kind, flags, streamOf(stream)); });
}

kl_result memsetAsync(void* dst, int32_t byte, uint64_t bytes, kl_stream stream) {
  return entry("memset_async", [&] { return fill(dst, byte, bytes, streamOf(stream)); });
}

} // namespace kunlun::sim::entries
