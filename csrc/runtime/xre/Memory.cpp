// Allocation, copies and fills over the vendor's runtime.
#include "runtime/xre/Memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime/xre/Status.h"
#include "runtime/xre/Stream.h"

namespace kunlun::xre {
namespace {

// One large asynchronous copy of pinned memory fails on some versions, many of this size do not.
constexpr uint64_t kPiece = uint64_t{1} << 20;
// Pinned memory with one value, the source of a fill.
constexpr uint64_t kFillBytes = uint64_t{64} << 10;

struct Block {
  uint64_t bytes;
  int device; // -1: pinned host memory
};

struct Registry {
  std::mutex lock;                   // guards everything below
  std::map<uintptr_t, Block> blocks; // by address
  void* fills[256] = {};             // pinned blocks of kFillBytes, never changed and never freed
};

Registry& registry() {
  static Registry& value = *new Registry;
  return value;
}

uintptr_t address(const void* ptr) {
  return reinterpret_cast<uintptr_t>(ptr);
}

void remember(void* ptr, uint64_t bytes, int device) {
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  r.blocks[address(ptr)] = {bytes, device};
}

// Forgets a block before it is given back: another thread may get the same address at once.
void forget(void* ptr, int device) {
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  const auto block = r.blocks.find(address(ptr));
  if (block == r.blocks.end() || block->second.device != device) {
    raise(
        KL_ERROR_VALUE,
        device,
        "%p is not the start of %s",
        ptr,
        device < 0 ? "a block of pinned host memory" : "a segment of this device");
  }
  r.blocks.erase(block);
}

// Device whose memory holds the pointer.
int deviceOf(const void* ptr) {
  kl_pointer_info info{};
  pointerInfo(ptr, &info);
  if (info.type != KL_POINTER_DEVICE) {
    raise(KL_ERROR_VALUE, -1, "%p does not lie in the memory of a kunlun device", ptr);
  }
  return info.device;
}

// The vendor's plain copy knows no streams: what comes before has to be done. It wants the memory's device to be
// current.
void copyNow(void* dst, const void* src, uint64_t bytes, int native, int memory_device, NativeStream stream) {
  waitForStream(stream);
  useDevice(memory_device);
  check(library().memcpy(dst, src, bytes, native), "xpu_memcpy", memory_device);
}

const void* fillSource(unsigned char byte) {
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  void*& block = r.fills[byte];
  if (block == nullptr) {
    void* fresh = nullptr;
    check(library().host_alloc(&fresh, kFillBytes, 0), "xpu_host_alloc");
    std::memset(fresh, byte, kFillBytes);
    block = fresh;
  }
  return block;
}

} // namespace

void* allocate(int device, uint64_t bytes, int32_t kind) {
  if (kind != KL_MEMORY_MAIN && kind != KL_MEMORY_L3) {
    raise(KL_ERROR_VALUE, device, "the kind of memory is neither KL_MEMORY_MAIN nor KL_MEMORY_L3");
  }
  useDevice(device);
  void* out = nullptr;
  const uint64_t wanted = std::max<uint64_t>(bytes, 1);
  check(library().malloc(&out, wanted, kind == KL_MEMORY_L3 ? kL3Memory : kMainMemory), "xpu_malloc", device);
  remember(out, wanted, device);
  return out;
}

void release(int device, void* ptr) {
  forget(ptr, device);
  useDevice(device);
  check(library().free(ptr), "xpu_free", device);
}

void* allocateHost(uint64_t bytes) {
  void* out = nullptr;
  const uint64_t wanted = std::max<uint64_t>(bytes, 1);
  check(library().host_alloc(&out, wanted, 0), "xpu_host_alloc");
  remember(out, wanted, -1);
  return out;
}

void releaseHost(void* ptr) {
  forget(ptr, -1);
  check(library().host_free(ptr), "xpu_host_free");
}

void pointerInfo(const void* ptr, kl_pointer_info* out) {
  *out = kl_pointer_info{KL_POINTER_UNKNOWN, -1, nullptr, 0};
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  auto block = r.blocks.upper_bound(address(ptr));
  if (block == r.blocks.begin()) {
    return;
  }
  --block;
  if (address(ptr) < block->first + block->second.bytes) {
    out->type = block->second.device < 0 ? KL_POINTER_HOST : KL_POINTER_DEVICE;
    out->device = block->second.device;
    out->base = reinterpret_cast<void*>(block->first);
    out->size = block->second.bytes;
  }
}

void copy(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, NativeStream stream) {
  const int device = deviceOfStream(stream);
  if (bytes == 0) {
    return;
  }
  if (kind == KL_COPY_DEVICE_TO_DEVICE) {
    const int to = deviceOf(dst);
    const int from = deviceOf(src);
    if (to != from) {
      // The vendor's copy between devices knows no streams: what comes before has to be done.
      waitForStream(stream);
      check(library().memcpy_peer(to, dst, from, src, bytes), "xpu_memcpy_peer", device);
    } else if (to != device) {
      copyNow(dst, src, bytes, kDeviceToDevice, to, stream);
    } else {
      useDevice(device);
      check(library().memcpy_async(dst, src, bytes, kDeviceToDevice, stream), "xpu_memcpy_async", device);
    }
    return;
  }
  if (kind != KL_COPY_HOST_TO_DEVICE && kind != KL_COPY_DEVICE_TO_HOST) {
    raise(KL_ERROR_VALUE, device, "%d is not a kind of copy", kind);
  }
  const int native = kind == KL_COPY_HOST_TO_DEVICE ? kHostToDevice : kDeviceToHost;
  const int memory = deviceOf(kind == KL_COPY_HOST_TO_DEVICE ? dst : src);
  if ((flags & KL_COPY_ASYNC) == 0 || memory != device) {
    copyNow(dst, src, bytes, native, memory, stream);
    return;
  }
  useDevice(device);
  for (uint64_t done = 0; done < bytes; done += kPiece) {
    check(
        library().memcpy_async(
            static_cast<char*>(dst) + done,
            static_cast<const char*>(src) + done,
            std::min(kPiece, bytes - done),
            native,
            stream),
        "xpu_memcpy_async",
        device);
  }
}

// The vendor's runtime has no fill: the first piece comes from the host, and doubles on the device from there.
void fill(void* dst, int32_t byte, uint64_t bytes, NativeStream stream) {
  const int device = deviceOfStream(stream);
  if (bytes == 0) {
    return;
  }
  const void* source = fillSource(static_cast<unsigned char>(byte));
  useDevice(device);
  uint64_t done = std::min(bytes, kFillBytes);
  check(library().memcpy_async(dst, source, done, kHostToDevice, stream), "xpu_memcpy_async", device);
  while (done < bytes) {
    const uint64_t more = std::min(done, bytes - done);
    check(
        library().memcpy_async(static_cast<char*>(dst) + done, dst, more, kDeviceToDevice, stream),
        "xpu_memcpy_async",
        device);
    done += more;
  }
}

} // namespace kunlun::xre
