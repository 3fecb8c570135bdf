// A stand-in for the vendor's runtime library, to test the adapter over it without a card.
//
// It behaves as the vendor's is documented to, in the ways that an adapter gets wrong: the current device belongs to
// the thread, plain copies do not wait for streams, and memory may only be touched under its own device. Work of a
// stream is done as late as possible: when somebody waits for it, one item each time an event is queried. Every call
// under a wrong device, every use of an event that is still pending and every overlong copy of pinned memory is a
// failure.
//
// Built with VENDOR_WORKS_AT_ONCE, each stream has a thread that does its work, as a card would; the stand-in for the
// library of collectives (vendor_collectives) needs that, because its work waits for other processes.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidDevice = 701;
constexpr int kNoMemory = 705;
constexpr int kInvalidParameter = 707;
constexpr int kKernelException = 714;
constexpr int kTooLarge = -999; // as observed for one large copy of pinned memory
constexpr uint64_t kAlignment = 4096;
constexpr uint64_t kMemory = uint64_t{256} << 20;
constexpr uint64_t kLargestPinnedCopy = uint64_t{1} << 20;

struct Event {
  int device;
  uint64_t recorded = 0; // recordings asked for
  uint64_t happened = 0; // recordings that were passed
};

struct Item {
  std::function<int()> work;
  Event* awaited = nullptr; // of an item that is a wait
  uint64_t recording = 0;
  bool is_long = false; // done without the lock
};

struct Stream {
  explicit Stream(int on) : device(on) {}

  int device;
  std::deque<Item> work;
  int failure = 0;
  bool has_thread = false;
  bool is_at_work = false;
  bool has_ended = false;
};

struct Block {
  uint64_t bytes;
  int device; // -1: host
};

#ifdef VENDOR_WORKS_AT_ONCE
constexpr bool kAtOnce = true;
#else
constexpr bool kAtOnce = false;
#endif

// Never destroyed, because threads may be at work when the process ends.
std::recursive_mutex& lock = *new std::recursive_mutex; // guards everything below
std::condition_variable_any& changed = *new std::condition_variable_any;
std::map<uintptr_t, Block>& blocks = *new std::map<uintptr_t, Block>;
std::map<Stream*, int>& streams = *new std::map<Stream*, int>;
std::map<int, std::unique_ptr<Stream>>& default_streams = *new std::map<int, std::unique_ptr<Stream>>;
uint64_t used[64];
thread_local int current = 0;

int deviceCount() {
  const char* visible = std::getenv("XPU_VISIBLE_DEVICES");
  if (visible == nullptr || *visible == '\0') {
    return 3;
  }
  int count = 1;
  for (const char* c = visible; *c != '\0'; ++c) {
    count += *c == ',';
  }
  return count;
}

// Physical number of a device.
int physical(int device) {
  const char* visible = std::getenv("XPU_VISIBLE_DEVICES");
  if (visible == nullptr || *visible == '\0') {
    return device;
  }
  for (; device > 0; --device) {
    visible = std::strchr(visible, ',') + 1;
  }
  return std::atoi(visible);
}

const Block* find(const void* ptr, uint64_t bytes) {
  auto block = blocks.upper_bound(reinterpret_cast<uintptr_t>(ptr));
  if (block == blocks.begin()) {
    return nullptr;
  }
  --block;
  return reinterpret_cast<uintptr_t>(ptr) + bytes <= block->first + block->second.bytes ? &block->second : nullptr;
}

bool onDevice(const void* ptr, uint64_t bytes, int device) {
  const Block* block = find(ptr, bytes);
  return block != nullptr && block->device == device;
}

bool pinned(const void* ptr, uint64_t bytes) {
  return onDevice(ptr, bytes, -1);
}

void drain(Stream& stream);

// Does the first item of a stream.
void step(Stream& stream) {
  if (stream.work.empty()) {
    return;
  }
  const Item item = std::move(stream.work.front());
  stream.work.pop_front();
  if (item.awaited != nullptr && item.awaited->happened < item.recording) {
    for (auto& [other, device] : streams) {
      if (other != &stream && item.awaited->happened < item.recording) {
        drain(*other); // somewhere among them is the recording
      }
    }
  }
  if (const int code = item.work()) {
    stream.failure = code;
  }
}

// Returns when the stream has done everything. The calling thread holds the lock, once.
void drain(Stream& stream) {
  if (kAtOnce) {
    changed.wait(lock, [&] { return stream.work.empty() && !stream.is_at_work; });
  }
  while (!stream.work.empty()) {
    step(stream);
  }
}

// The thread of a stream.
void work(Stream* stream) {
  std::unique_lock guard(lock);
  for (;;) {
    changed.wait(guard, [&] {
      if (stream->work.empty()) {
        return stream->has_ended;
      }
      const Item& next = stream->work.front();
      return next.awaited == nullptr || next.awaited->happened >= next.recording;
    });
    if (stream->work.empty()) {
      delete stream;
      return;
    }
    const Item item = std::move(stream->work.front());
    stream->work.pop_front();
    stream->is_at_work = true;
    if (item.is_long) {
      guard.unlock();
    }
    const int code = item.work();
    if (item.is_long) {
      guard.lock();
    }
    if (code != 0) {
      stream->failure = code;
    }
    stream->is_at_work = false;
    changed.notify_all();
  }
}

Stream* streamOf(void* handle) {
  if (handle != nullptr) {
    return static_cast<Stream*>(handle);
  }
  auto& stream = default_streams[current];
  if (stream == nullptr) {
    stream = std::make_unique<Stream>(current);
    streams.emplace(stream.get(), current);
  }
  return stream.get();
}

void push(Stream& stream, Item item) {
  stream.work.push_back(std::move(item));
  if (kAtOnce && !std::exchange(stream.has_thread, true)) {
    std::thread(work, &stream).detach();
  }
  changed.notify_all();
}

void push(Stream& stream, std::function<void()> work) {
  push(stream, Item{[=] {
         work();
         return 0;
       }});
}

int checkCopy(void* dst, const void* src, uint64_t bytes, int kind) {
  switch (kind) {
    case 0:
      return onDevice(src, bytes, current) ? 0 : kInvalidParameter;
    case 1:
      return onDevice(dst, bytes, current) ? 0 : kInvalidParameter;
    case 2:
      return onDevice(dst, bytes, current) && onDevice(src, bytes, current) ? 0 : kInvalidParameter;
    default:
      return kInvalidParameter;
  }
}

} // namespace

EXPORT int xpu_get_driver_version(uint32_t* major, uint32_t* minor) {
  *major = 5;
  *minor = 21;
  return 0;
}

EXPORT int xpu_get_runtime_version(uint32_t* major, uint32_t* minor) {
  *major = 5;
  *minor = 1;
  return 0;
}

EXPORT int xpu_device_count(int* count) {
  *count = deviceCount();
  return 0;
}

EXPORT int xpu_set_device(int device) {
  if (device < 0 || device >= deviceCount()) {
    return kInvalidDevice;
  }
  current = device;
  return 0;
}

EXPORT int xpu_device_get_attr(uint64_t* value, int attribute, int device) {
  switch (attribute) {
    case 1:
      *value = static_cast<uint64_t>(physical(device));
      return 0;
    case 4:
      *value = 300;
      return 0;
    case 5:
      *value = 98304;
      return 0;
    case 6:
      *value = 96;
      return 0;
    case 7:
      *value = 12;
      return 0;
    default:
      return kInvalidParameter;
  }
}

EXPORT int xpu_malloc(void** out, uint64_t bytes, int) {
  std::lock_guard guard(lock);
  if (used[current] + bytes > kMemory) {
    return -kNoMemory; // the vendor's documentation has negative codes
  }
  *out = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  used[current] += bytes;
  blocks[reinterpret_cast<uintptr_t>(*out)] = {bytes, current};
  return 0;
}

EXPORT int xpu_free(void* ptr) {
  std::lock_guard guard(lock);
  const auto block = blocks.find(reinterpret_cast<uintptr_t>(ptr));
  if (block == blocks.end() || block->second.device != current) {
    return kInvalidParameter;
  }
  used[current] -= block->second.bytes;
  blocks.erase(block);
  std::free(ptr);
  return 0;
}

EXPORT int xpu_host_alloc(void** out, uint64_t bytes, unsigned flags) {
  std::lock_guard guard(lock);
  if (flags != 0) {
    return kInvalidParameter;
  }
  *out = std::malloc(bytes);
  blocks[reinterpret_cast<uintptr_t>(*out)] = {bytes, -1};
  return 0;
}

EXPORT int xpu_host_free(void* ptr) {
  std::lock_guard guard(lock);
  const auto block = blocks.find(reinterpret_cast<uintptr_t>(ptr));
  if (block == blocks.end() || block->second.device != -1) {
    return kInvalidParameter;
  }
  blocks.erase(block);
  std::free(ptr);
  return 0;
}

EXPORT int xpu_memcpy(void* dst, const void* src, uint64_t bytes, int kind) {
  std::lock_guard guard(lock);
  if (const int wrong = checkCopy(dst, src, bytes, kind)) {
    return wrong;
  }
  std::memcpy(dst, src, bytes);
  return 0;
}

EXPORT int xpu_memcpy_async(void* dst, const void* src, uint64_t bytes, int kind, void* handle) {
  std::lock_guard guard(lock);
  Stream* stream = streamOf(handle);
  if (stream->device != current) {
    return kInvalidDevice;
  }
  if (const int wrong = checkCopy(dst, src, bytes, kind)) {
    return wrong;
  }
  if (kind != 2) {
    const void* host = kind == 0 ? dst : src;
    if (!pinned(host, bytes)) {
      return kInvalidParameter;
    }
    if (bytes > kLargestPinnedCopy) {
      return kTooLarge;
    }
  }
  push(*stream, [=] { std::memcpy(dst, src, bytes); });
  return 0;
}

EXPORT int xpu_memcpy_peer(int dst_device, void* dst, int src_device, const void* src, uint64_t bytes) {
  std::lock_guard guard(lock);
  if (!onDevice(dst, bytes, dst_device) || !onDevice(src, bytes, src_device)) {
    return kInvalidParameter;
  }
  std::memcpy(dst, src, bytes);
  return 0;
}

EXPORT int xpu_stream_create(void** out) {
  std::lock_guard guard(lock);
  auto* stream = new Stream(current);
  streams.emplace(stream, current);
  *out = stream;
  return 0;
}

EXPORT int xpu_stream_destroy(void* handle) {
  std::lock_guard guard(lock);
  auto* stream = static_cast<Stream*>(handle);
  if (stream->device != current || !stream->work.empty()) {
    return kInvalidParameter;
  }
  streams.erase(stream);
  if (stream->has_thread) {
    stream->has_ended = true;
    changed.notify_all();
  } else {
    delete stream;
  }
  return 0;
}

EXPORT int xpu_wait(void* handle) {
  std::lock_guard guard(lock);
  Stream* stream = streamOf(handle);
  if (stream->device != current) {
    return kInvalidDevice;
  }
  drain(*stream);
  return std::exchange(stream->failure, 0);
}

EXPORT int xpu_event_create(void** out) {
  std::lock_guard guard(lock);
  *out = new Event{current};
  return 0;
}

EXPORT int xpu_event_destroy(void* handle) {
  std::lock_guard guard(lock);
  const auto* event = static_cast<Event*>(handle);
  if (event->happened != event->recorded) {
    return kInvalidParameter;
  }
  delete event;
  return 0;
}

EXPORT int xpu_event_record(void* handle, void* on) {
  std::lock_guard guard(lock);
  auto* event = static_cast<Event*>(handle);
  Stream* stream = streamOf(on);
  // Recording an event again that is still pending, or that a stream still has to look at, is what must not happen.
  if (event->device != current || stream->device != current || event->happened != event->recorded) {
    return kInvalidParameter;
  }
  for (const auto& [other, device] : streams) {
    for (const Item& item : other->work) {
      if (item.awaited == event) {
        return kInvalidParameter;
      }
    }
  }
  const uint64_t recording = ++event->recorded;
  push(*stream, [=] { event->happened = recording; });
  return 0;
}

EXPORT int xpu_stream_wait_event(void* handle, void* awaited) {
  std::lock_guard guard(lock);
  auto* event = static_cast<Event*>(awaited);
  push(*streamOf(handle), Item{[] { return 0; }, event, event->recorded});
  return 0;
}

#ifndef VENDOR_BEFORE_XRE_5
EXPORT int xpu_event_query(void* handle) {
  std::lock_guard guard(lock);
  const auto* event = static_cast<Event*>(handle);
  if (event->happened == event->recorded) {
    return 0;
  }
  for (auto& [stream, device] : streams) {
    if (!kAtOnce && device == event->device) {
      step(*stream);
      break;
    }
  }
  return 1; // "not yet", one of the codes that no table has
}
#endif

EXPORT int xpu_event_wait(void* handle) {
  std::lock_guard guard(lock);
  const auto* event = static_cast<Event*>(handle);
  if (kAtOnce) {
    changed.wait(lock, [&] { return event->happened == event->recorded; });
  }
  for (auto& [stream, device] : streams) {
    if (event->happened != event->recorded) {
      drain(*stream);
    }
  }
  return 0;
}

// For the tests: the next wait for the stream reports a failed kernel.
EXPORT int fake_kernel_exception(void* handle) {
  std::lock_guard guard(lock);
  auto* stream = static_cast<Stream*>(handle);
  push(*stream, [=] { stream->failure = kKernelException; });
  return 0;
}

// For the stand-in of the library of collectives: work that waits for other processes, on a stream of the current
// device. What it returns is the stream's failure.
EXPORT int fake_launch(void* handle, std::function<int()>* work) {
  std::lock_guard guard(lock);
  Stream* stream = streamOf(handle);
  if (!kAtOnce || stream->device != current) {
    return kInvalidDevice;
  }
  push(*stream, Item{std::move(*work), nullptr, 0, true});
  return 0;
}

// For the tests: the stream is busy for so long.
EXPORT int fake_sleep(void* handle, int milliseconds) {
  std::function<int()> work = [=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return 0;
  };
  return fake_launch(handle, &work);
}

// Whether these bytes are memory of the current device.
EXPORT int fake_is_on_device(const void* ptr, uint64_t bytes) {
  std::lock_guard guard(lock);
  return onDevice(ptr, bytes, current) ? 1 : 0;
}
