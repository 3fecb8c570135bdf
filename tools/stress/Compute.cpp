// Chains of work across streams and devices, with memory from the caching allocator; every byte of every result is
// compared with what it must be.
#include <cstring>
#include <thread>

#include "Stress.h"

namespace stress {

namespace {

// Adds a number to every byte; touches the memory as a kernel does, on the stream's thread.
struct Add {
  unsigned char* data;
  size_t bytes;
  unsigned char number;
};

kl_result runAdd(void*, void* payload, kl_error*) {
  const auto& job = *static_cast<const Add*>(payload);
  for (size_t i = 0; i < job.bytes; ++i) {
    job.data[i] = static_cast<unsigned char>(job.data[i] + job.number);
  }
  return KL_SUCCESS;
}

void add(const Lane& lane, void* data, size_t bytes, unsigned char number) {
  const Add job{static_cast<unsigned char*>(data), bytes, number};
  STRESS_OK(kunlun::sim::enqueue(lane.stream, "add", runAdd, nullptr, &job, sizeof(job)));
}

class Worker {
 public:
  Worker(World& world, uint64_t seed) : world_(world), random_(seed) {
    STRESS_OK(rt().host_malloc(kMaxBytes, &pinned_));
  }
  ~Worker() {
    STRESS_OK(rt().host_free(pinned_));
  }

  void step() {
    switch (random_.below(8)) {
      case 0:
        recordAndWait();
        break;
      case 1:
        hostCall();
        break;
      case 2:
        passingStream();
        break;
      case 3:
        if (random_.oneIn(50)) {
          world_.memory.emptyCache();
        }
        break;
      default:
        chain();
    }
  }

 private:
  static constexpr size_t kMaxBytes = 96 << 10;

  const Lane& anyLane() {
    return world_.lanes[random_.below(world_.lanes.size())];
  }

  // A result goes from stream to stream, and its memory is given back while they still work on it.
  void chain() {
    const size_t bytes = 1 + random_.below(random_.oneIn(8) ? kMaxBytes : 4096);
    auto value = static_cast<unsigned char>(random_.below(256));
    const Lane* lane = &anyLane();
    void* data = world_.memory.malloc(lane->device, lane->stream, bytes);
    start(*lane, data, bytes, value);
    for (uint64_t hop = random_.below(4); hop > 0; --hop) {
      const Lane& next = anyLane();
      for (uint64_t i = random_.below(3); i > 0; --i) {
        add(*lane, data, bytes, 3);
        value = static_cast<unsigned char>(value + 3);
      }
      void* target = world_.memory.malloc(next.device, next.stream, bytes);
      order(*lane, next);
      STRESS_OK(rt().memcpy_async(target, data, bytes, KL_COPY_DEVICE_TO_DEVICE, 0, next.stream));
      if (next.stream != lane->stream) {
        STRESS_CHECK(world_.memory.recordStream(data, next.device, next.stream));
      }
      STRESS_CHECK(world_.memory.free(data));
      lane = &next;
      data = target;
    }
    compare(*lane, data, bytes, value);
    STRESS_CHECK(world_.memory.free(data));
    ++world_.chains;
  }

  void start(const Lane& lane, void* data, size_t bytes, unsigned char value) {
    if (random_.oneIn(2)) {
      STRESS_OK(rt().memset_async(data, value, bytes, lane.stream));
      return;
    }
    const std::vector<unsigned char> host(bytes, value); // pageable: may go as soon as the call returns
    STRESS_OK(rt().memcpy_async(data, host.data(), bytes, KL_COPY_HOST_TO_DEVICE, 0, lane.stream));
  }

  // What `second` is given from here on comes after what `first` has now.
  void order(const Lane& first, const Lane& second) {
    kl_event event = nullptr;
    STRESS_OK(rt().event_create(first.device, 0, &event));
    STRESS_OK(rt().event_record(event, first.stream));
    STRESS_OK(rt().stream_wait_event(second.stream, event));
    if (random_.oneIn(4)) {
      STRESS_OK(rt().event_record(event, first.stream)); // the wait keeps the earlier record
    }
    STRESS_OK(rt().event_destroy(event)); // while it is waited for
  }

  void compare(const Lane& lane, const void* data, size_t bytes, unsigned char value) {
    const unsigned char* result = nullptr;
    std::vector<unsigned char> pageable;
    if (random_.oneIn(2)) {
      pageable.resize(bytes);
      STRESS_OK(rt().memcpy_async(pageable.data(), data, bytes, KL_COPY_DEVICE_TO_HOST, 0, lane.stream));
      result = pageable.data();
    } else {
      STRESS_OK(rt().memcpy_async(pinned_, data, bytes, KL_COPY_DEVICE_TO_HOST, KL_COPY_ASYNC, lane.stream));
      switch (random_.below(3)) {
        case 0:
          STRESS_OK(rt().stream_synchronize(lane.stream));
          break;
        case 1:
          STRESS_OK(rt().device_synchronize(lane.device));
          break;
        default: {
          kl_event event = nullptr;
          STRESS_OK(rt().event_create(lane.device, 0, &event));
          STRESS_OK(rt().event_record(event, lane.stream));
          STRESS_OK(rt().event_synchronize(event));
          STRESS_OK(rt().event_destroy(event));
        }
      }
      result = static_cast<const unsigned char*>(pinned_);
    }
    for (size_t i = 0; i < bytes; ++i) {
      STRESS_CHECK(result[i] == value);
    }
  }

  // Events that all workers share: recorded again while others wait for them.
  void recordAndWait() {
    const auto& [device, event] = world_.events[random_.below(world_.events.size())];
    const Lane& lane = anyLane();
    switch (random_.below(4)) {
      case 0:
        if (lane.device == device) {
          STRESS_OK(rt().event_record(event, lane.stream));
        }
        break;
      case 1:
        STRESS_OK(rt().event_synchronize(event));
        break;
      case 2: {
        const kl_result ready = rt().event_query(event);
        STRESS_CHECK(ready == KL_SUCCESS || ready == KL_NOT_READY);
        break;
      }
      default:
        STRESS_OK(rt().stream_wait_event(lane.stream, event));
    }
  }

  // Memory that a host call takes and gives back on the chip's thread, while callers use the same stream's.
  struct Call {
    kunlun::CachingAllocatorCore* memory;
    Lane lane;
    uint64_t sequence;
    std::atomic<bool> done{false};
  };

  static kl_result runCall(void* arg, const kl_error* error, kl_error*) {
    auto& call = *static_cast<Call*>(arg);
    STRESS_CHECK(error == nullptr);
    kunlun::allocator_host_call = {call.lane.stream, call.sequence};
    void* data = call.memory->malloc(call.lane.device, call.lane.stream, 700, call.sequence);
    std::memset(data, 0x5A, 700);
    STRESS_CHECK(call.memory->free(data));
    kunlun::allocator_host_call = {};
    call.done = true;
    return KL_SUCCESS;
  }

  void hostCall() {
    Call call;
    call.memory = &world_.memory;
    call.lane = anyLane();
    STRESS_OK(rt().stream_sequence(call.lane.stream, &call.sequence));
    // On this thread if the stream has nothing to do, which other threads may change at any moment.
    const kl_result here = random_.oneIn(2) ? rt().try_host(call.lane.stream, "call", runCall, &call) : KL_NOT_READY;
    STRESS_CHECK(here == KL_SUCCESS || here == KL_NOT_READY);
    STRESS_CHECK(call.done == (here == KL_SUCCESS));
    if (here == KL_NOT_READY) {
      STRESS_OK(rt().launch_host(call.lane.stream, "call", runCall, &call));
    }
    while (!call.done) {
      std::this_thread::yield();
    }
  }

  // A stream that is made, given work, and destroyed while it is busy.
  void passingStream() {
    Lane lane{static_cast<int>(random_.below(kComputing)), nullptr};
    STRESS_OK(rt().stream_create(lane.device, 0, &lane.stream));
    void* data = nullptr;
    STRESS_OK(rt().memory_alloc(lane.device, 8192, KL_MEMORY_MAIN, &data));
    STRESS_OK(rt().memset_async(data, 0, 8192, lane.stream));
    for (int i = 0; i < 20; ++i) {
      add(lane, data, 8192, 1);
    }
    STRESS_OK(rt().stream_destroy(lane.stream));
    STRESS_OK(rt().memory_free(lane.device, data));
  }

  World& world_;
  Random random_;
  void* pinned_ = nullptr;
};

} // namespace

void compute(World& world, uint64_t seed) {
  Worker worker(world, seed);
  while (!world.stop) {
    worker.step();
  }
}

} // namespace stress
