// Random use of the caching allocator's core over the simulated chip, held against a model of it; without torch.
//
//   make -C test/device/cpp OUT=/tmp/fuzz /tmp/fuzz/fuzz_allocator
//   KUNLUN_SIM_MEMORY=256M /tmp/fuzz/fuzz_allocator --seconds 600 --seed 1
//
// Checks that blocks in use never overlap, that no block is handed out again while work may still use it (every block
// carries a stamp, which work on its streams writes and reads after random delays), and that the statistics and the
// snapshot are exactly what the model says. Ends with 1 and a report at the first difference.
#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/allocator/CachingAllocatorCore.h"
#include "runtime/sim/Sim.h"

namespace {

using namespace kunlun;

constexpr size_t kMiB = size_t(1) << 20;
constexpr size_t kStride = kMiB; // between the places of a block that are stamped
constexpr int kStreams = 4;
constexpr AllocatorPoolId kPools[] = {{0, 1}, {0, 2}, {3, 0}};

const kl_runtime_table& runtime() {
  return *sim::chip().runtime;
}

uint64_t seed = 1;
std::atomic<uint64_t> step{0};

[[noreturn]] void report(const char* what) {
  std::fprintf(stderr, "fuzz_allocator: %s (seed %" PRIu64 ", step %" PRIu64 ")\n", what, seed, step.load());
  std::_Exit(1);
}

void require(bool condition, const char* what) {
  if (!condition) {
    report(what);
  }
}

void check(kl_result result, const char* what) {
  if (result != KL_SUCCESS) {
    kl_error error{};
    runtime().last_error(&error);
    report((std::string(what) + ": " + error.text).c_str());
  }
}

// ---- work on the chip -------------------------------------------------------

struct Stamp {
  char* ptr;
  size_t bytes;
  uint64_t value;
  uint32_t delay_us;

  template <typename Function>
  void forEachPlace(Function&& function) const {
    for (size_t offset = 0; offset + 2 * sizeof(value) <= bytes; offset += kStride) { // none overlaps the last
      function(ptr + offset);
    }
    if (bytes >= sizeof(value)) {
      function(ptr + bytes - sizeof(value));
    }
  }
};

void pause(uint32_t microseconds) {
  if (microseconds != 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
}

kl_result writeStamp(void*, void* payload, kl_error*) {
  const auto* stamp = static_cast<const Stamp*>(payload);
  pause(stamp->delay_us);
  stamp->forEachPlace([&](char* place) { std::memcpy(place, &stamp->value, sizeof(stamp->value)); });
  return KL_SUCCESS;
}

kl_result readStamp(void*, void* payload, kl_error*) {
  const auto* stamp = static_cast<const Stamp*>(payload);
  pause(stamp->delay_us);
  stamp->forEachPlace([&](const char* place) {
    require(
        std::memcmp(place, &stamp->value, sizeof(stamp->value)) == 0, "a block was reused while work still read it");
  });
  return KL_SUCCESS;
}

// ---- the model --------------------------------------------------------------

struct Block {
  size_t requested;
  size_t size;
  size_t stream;
  uint64_t stamp;
};

struct Counts {
  int64_t allocations = 0, freed = 0, ooms = 0;
  int64_t bytes = 0, requested = 0;
};

AllocatorSettings settings;
AllocatorSettings readSettings() {
  return settings;
}

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t start) : random_(start), core_(runtime(), 1, &readSettings) {
    for (kl_stream& stream : streams_) {
      check(runtime().stream_create(0, 0, &stream), "stream_create");
    }
    check(runtime().event_create(0, 0, &event_), "event_create");
  }

  // One life of an allocator: random calls, then everything is given back.
  void round(int steps) {
    for (int i = 0; i < steps; ++i) {
      ++step;
      call();
      if (chance(64)) {
        compare();
      }
    }
    finish();
  }

  const Counts& counts() const {
    return counts_;
  }

 private:
  uint64_t below(uint64_t limit) {
    return random_() % limit;
  }
  bool chance(uint64_t one_in) {
    return below(one_in) == 0;
  }

  void call() {
    const uint64_t dice = below(1000);
    if (dice < 420) {
      allocate(false);
    } else if (dice < 760) {
      release();
    } else if (dice < 860) {
      use();
    } else if (dice < 940) {
      useOnOtherStream();
    } else if (dice < 970) {
      callHost();
    } else if (dice < 978) {
      allocate(true);
    } else if (dice < 985) {
      changeSettings();
    } else if (dice < 993) {
      changePool();
    } else if (dice < 997) {
      core_.emptyCache();
    } else if (dice < 998) {
      core_.resetPeakStats(0);
    } else {
      check(runtime().device_synchronize(0), "device_synchronize");
    }
  }

  size_t randomSize() {
    switch (below(8)) {
      case 0:
        return 1 + below(512);
      case 1:
      case 2:
      case 3:
        return 1 + below(kMiB);
      case 4:
      case 5:
        return 1 + below(12 * kMiB);
      case 6:
        return (1 + below(10)) * kMiB;
      default:
        return 1 + below(64 * kMiB);
    }
  }

  void enqueue(sim::WorkFn work, const Block& block, char* ptr, size_t stream) {
    const Stamp stamp{ptr, block.requested, block.stamp, chance(3) ? static_cast<uint32_t>(below(300)) : 0};
    check(sim::enqueue(streams_[stream], "stamp", work, nullptr, &stamp, sizeof(stamp)), "enqueue");
  }

  void allocate(bool uncached) {
    const size_t bytes = randomSize();
    const size_t stream = below(kStreams);
    char* ptr = nullptr;
    try {
      ptr = static_cast<char*>(
          uncached ? core_.mallocUncached(0, streams_[stream], bytes) : core_.malloc(0, streams_[stream], bytes));
    } catch (const AllocatorOutOfMemory& e) {
      refused(e, bytes);
      return;
    }
    const Block block{bytes, core_.blockSize(ptr), stream, random_()};
    require(block.size >= bytes, "a block is smaller than the request");
    const auto next = live_.lower_bound(ptr);
    require(next == live_.end() || ptr + block.size <= next->first, "a block overlaps the next one");
    require(
        next == live_.begin() || std::prev(next)->first + std::prev(next)->second.size <= ptr,
        "a block overlaps the previous one");
    live_.emplace(ptr, block);
    ++counts_.allocations;
    counts_.bytes += static_cast<int64_t>(block.size);
    counts_.requested += static_cast<int64_t>(bytes);
    enqueue(&writeStamp, block, ptr, stream);
  }

  // Running out of memory must be true, and all of it accounted for.
  void refused(const AllocatorOutOfMemory& e, size_t bytes) {
    ++counts_.ooms;
    require(e.requested == bytes, "the error names another size");
    require(e.allocated == counts_.bytes, "the error names another sum of allocated bytes");
    const bool justified =
        e.limited ? static_cast<uint64_t>(e.reserved) + e.segment > e.allowed : e.free_bytes < e.segment;
    require(justified, "memory was refused although there is enough");
    for (size_t i = live_.size() / 2; i > 0; --i) {
      release();
    }
  }

  std::map<char*, Block>::iterator pick() {
    auto chosen = live_.lower_bound(
        reinterpret_cast<char*>(
            reinterpret_cast<uintptr_t>(live_.begin()->first) +
            below(static_cast<uint64_t>(live_.rbegin()->first - live_.begin()->first) + 1)));
    return chosen == live_.end() ? std::prev(chosen) : chosen;
  }

  void release() {
    if (live_.empty()) {
      return;
    }
    const auto chosen = pick();
    if (chance(2)) {
      enqueue(&readStamp, chosen->second, chosen->first, chosen->second.stream);
    }
    counts_.bytes -= static_cast<int64_t>(chosen->second.size);
    counts_.requested -= static_cast<int64_t>(chosen->second.requested);
    ++counts_.freed;
    require(core_.free(chosen->first), "a live block is not known");
    if (!host_calls_ && chance(16)) { // a host call may have got it by now
      require(!core_.free(chosen->first), "a block can be freed twice");
    }
    live_.erase(chosen);
  }

  void use() {
    if (!live_.empty()) {
      const auto chosen = pick();
      enqueue(&readStamp, chosen->second, chosen->first, chosen->second.stream);
    }
  }

  // A side stream reads the block after its own stream has written it; record_stream lets it be freed at once.
  void useOnOtherStream() {
    if (live_.empty()) {
      return;
    }
    const auto chosen = pick();
    const size_t other = below(kStreams);
    if (other != chosen->second.stream) {
      check(runtime().event_record(event_, streams_[chosen->second.stream]), "event_record");
      check(runtime().stream_wait_event(streams_[other], event_), "stream_wait_event");
    }
    enqueue(&readStamp, chosen->second, chosen->first, other);
    require(core_.recordStream(chosen->first, 0, streams_[other]), "a live block is not known");
  }

  struct HostCall {
    CachingAllocatorCore* core;
    kl_stream stream;
    uint64_t sequence;
    size_t bytes;
    uint64_t stamp;
  };

  // On the chip's thread, where the stream's order does not help: what is handed out must be unused right now.
  static kl_result hostCall(void*, void* payload, kl_error*) {
    const auto* call = static_cast<const HostCall*>(payload);
    allocator_host_call = {call->stream, call->sequence};
    try {
      auto* ptr = static_cast<char*>(call->core->malloc(0, call->stream, call->bytes, call->sequence));
      const Stamp stamp{ptr, call->bytes, call->stamp, 0};
      stamp.forEachPlace([&](char* place) { std::memcpy(place, &stamp.value, sizeof(stamp.value)); });
      pause(20);
      stamp.forEachPlace([&](const char* place) {
        require(std::memcmp(place, &stamp.value, sizeof(stamp.value)) == 0, "a host call's block was not its own");
      });
      require(call->core->free(ptr), "a host call's block is not known");
    } catch (const AllocatorOutOfMemory&) {
      // It may not wait for anyone, so there may be nothing for it.
    }
    allocator_host_call = {};
    return KL_SUCCESS;
  }

  void callHost() {
    HostCall call{&core_, streams_[below(kStreams)], 0, 1 + below(4 * kMiB), random_()};
    check(runtime().stream_sequence(call.stream, &call.sequence), "stream_sequence");
    check(sim::enqueue(call.stream, "host call", &hostCall, nullptr, &call, sizeof(call)), "enqueue");
    host_calls_ = true;
  }

  void changeSettings() {
    drainHostCalls(); // which read the settings
    settings.expandable_segments = chance(2);
    settings.garbage_collection_threshold = chance(3) ? 0.5 : 0;
    settings.max_split_size = chance(4) ? 20 * kMiB : SIZE_MAX;
    core_.setMemoryFraction(0, chance(4) ? 0.6 : 1.0);
  }

  void changePool() {
    if (!pools_.empty() && chance(2)) {
      require(core_.endAllocateToPool(0, pools_.back()), "the pool was not allocated to");
      core_.releasePool(0, pools_.back());
      pools_.pop_back();
    } else if (pools_.size() < 2) {
      pools_.push_back(kPools[below(std::size(kPools))]);
      core_.beginAllocateToPool(0, pools_.back(), {.use_on_oom = chance(2), .no_split = chance(4)});
    }
  }

  void drainHostCalls() {
    if (host_calls_) {
      check(runtime().device_synchronize(0), "device_synchronize");
      host_calls_ = false;
    }
  }

  // Statistics and snapshot against the model.
  void compare() {
    drainHostCalls();
    const AllocatorStats stats = core_.stats(0);
    require(stats.allocated_bytes[0].current == counts_.bytes, "allocated_bytes differs");
    require(stats.allocation[0].current == static_cast<int64_t>(live_.size()), "allocation differs");
    require(stats.allocation[0].current == stats.allocation[0].allocated - stats.allocation[0].freed, "allocation");
    uint64_t free_bytes = 0, total = 0;
    check(runtime().memory_info(0, &free_bytes, &total), "memory_info");
    require(stats.reserved_bytes[0].current == static_cast<int64_t>(total - free_bytes), "reserved_bytes differs");

    const AllocatorSnapshot snapshot = core_.snapshot(false);
    std::array<int64_t, 3> reserved{}, segments{}, active{}, inactive{}, inactive_bytes{}, allocated{};
    const auto add = [](std::array<int64_t, 3>& sums, bool large, size_t amount) {
      sums[0] += static_cast<int64_t>(amount);
      sums[large ? 2 : 1] += static_cast<int64_t>(amount);
    };
    int64_t requested = 0;
    size_t known = 0;
    uintptr_t end = 0;
    for (const auto& segment : snapshot.segments) {
      add(reserved, segment.large, segment.total_size);
      add(segments, segment.large, 1);
      for (const auto& block : segment.blocks) {
        require(block.address >= end, "blocks of the snapshot overlap");
        end = block.address + block.size;
        if (block.active) {
          add(active, segment.large, block.size);
          requested += static_cast<int64_t>(block.requested);
        } else if (!segment.expandable && segment.blocks.size() > 1) {
          add(inactive, segment.large, 1);
          add(inactive_bytes, segment.large, block.size);
        }
        if (block.allocated) {
          add(allocated, segment.large, block.size);
          const auto found = live_.find(reinterpret_cast<char*>(block.address));
          require(found != live_.end(), "the snapshot shows a block that nobody has");
          require(
              found->second.size == block.size && found->second.requested == block.requested,
              "the snapshot shows another size");
          require(streams_[found->second.stream] == segment.stream, "the snapshot shows another stream");
          ++known;
        }
      }
    }
    require(known == live_.size(), "the snapshot misses a block");
    require(stats.requested_bytes[0].current == requested, "requested_bytes differs");
    for (size_t pool = 0; pool < 3; ++pool) {
      require(stats.reserved_bytes[pool].current == reserved[pool], "reserved_bytes of a pool differs");
      require(stats.segment[pool].current == segments[pool], "segment differs");
      require(stats.active_bytes[pool].current == active[pool], "active_bytes differs");
      require(stats.allocated_bytes[pool].current == allocated[pool], "allocated_bytes of a pool differs");
      require(stats.inactive_split[pool].current == inactive[pool], "inactive_split differs");
      require(stats.inactive_split_bytes[pool].current == inactive_bytes[pool], "inactive_split_bytes differs");
      for (const auto* each : {&stats.reserved_bytes, &stats.active_bytes, &stats.allocated_bytes, &stats.allocation}) {
        require((*each)[pool].current >= 0 && (*each)[pool].peak >= (*each)[pool].current, "a peak is below");
        require((*each)[pool].current == (*each)[pool].allocated - (*each)[pool].freed, "a sum does not add up");
      }
    }
  }

  void finish() {
    while (!live_.empty()) {
      release();
    }
    for (; !pools_.empty(); pools_.pop_back()) {
      require(core_.endAllocateToPool(0, pools_.back()), "the pool was not allocated to");
      core_.releasePool(0, pools_.back());
    }
    check(runtime().device_synchronize(0), "device_synchronize");
    core_.emptyCache();
    compare();
    const AllocatorStats stats = core_.stats(0);
    require(stats.reserved_bytes[0].current == 0 && stats.segment[0].current == 0, "memory is left");
    require(stats.active_bytes[0].current == 0 && stats.requested_bytes[0].current == 0, "blocks are left");
    require(core_.snapshot(false).use_count.empty(), "a memory pool is left");
  }

  std::mt19937_64 random_;
  CachingAllocatorCore core_;
  std::array<kl_stream, kStreams> streams_{};
  kl_event event_ = nullptr;
  std::map<char*, Block> live_;
  std::vector<AllocatorPoolId> pools_;
  bool host_calls_ = false;
  Counts counts_;
};

} // namespace

int main(int argc, char** argv) {
  double seconds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) {
      seconds = std::atof(argv[i + 1]);
    } else if (std::strcmp(argv[i], "--seed") == 0) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: fuzz_allocator [--seconds N] [--seed N]\n");
      return 2;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  Fuzzer fuzzer(seed);
  int rounds = 0;
  do {
    fuzzer.round(2000);
    ++rounds;
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds);
  const Counts& counts = fuzzer.counts();
  std::printf(
      "seed %" PRIu64 ": %d rounds, %" PRIu64 " calls, %" PRId64 " allocations, %" PRId64 " frees, %" PRId64
      " times out of memory; no difference\n",
      seed,
      rounds,
      step.load(),
      counts.allocations,
      counts.freed,
      counts.ooms);
  return 0;
}
