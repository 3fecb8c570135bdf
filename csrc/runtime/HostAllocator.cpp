// Pinned host memory: torch's caching host allocator over the driver's host_malloc.
#include "runtime/HostAllocator.h"

#include <cstring>
#include <memory>

#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/Event.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {

struct HostAllocatorImpl final : public at::CachingHostAllocatorImpl<c10::Stream, Event> {
  std::pair<void*, void*> allocate(size_t size) override {
    lazyInit(); // a forked child is refused here, before it gets a block that the parent had cached
    return CachingHostAllocatorImpl::allocate(size);
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

 private:
  void allocate_host_memory(size_t size, void** ptr) override {
    check(chip::runtime().host_malloc(size, ptr), "host_malloc");
  }

  void free_block(at::HostBlock<c10::Stream>* block) override {
    check(chip::runtime().host_free(block->ptr_), "host_free");
  }

  void record_stream(std::optional<std::vector<Event>>& events, c10::Stream stream) override {
    Event event;
    event.record(Stream(stream));
    events->push_back(std::move(event));
  }

  bool query_event(Event& event) override {
    // Whatever else it reports, an event that is not pending no longer protects the block; the stream's failure is
    // reported to whoever waits for the stream.
    return chip::runtime().event_query(event.handle()) != KL_NOT_READY;
  }

  c10::Stream get_current_stream() const override {
    return getCurrentStream();
  }

  bool stream_is_capturing(c10::Stream) const override {
    return false;
  }
};

void deleteHostMemory(void* context);

// Freed blocks need the driver, so it must not be destroyed after the driver: it is never destroyed.
using HostAllocatorInterface = at::CachingHostAllocatorInterface<HostAllocatorImpl, deleteHostMemory>;
HostAllocatorInterface* instance() {
  static auto* allocator = new HostAllocatorInterface;
  return allocator;
}

void deleteHostMemory(void* context) {
  // A forked child has only a copy of the parent's pages, and after the shutdown the process is ending.
  if (checkUsable()) {
    instance()->free(context);
  }
}

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, instance())

} // namespace

at::HostAllocator* getHostAllocator() {
  return instance();
}

bool isPinnedPtr(const void* ptr) {
  if (ptr == nullptr || !checkUsable()) {
    return false;
  }
  kl_pointer_info info{};
  check(chip::runtime().pointer_info(ptr, &info), "pointer_info");
  return info.type == KL_POINTER_HOST;
}

} // namespace kunlun
