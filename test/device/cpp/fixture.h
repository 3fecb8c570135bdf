// An allocator's core over the simulated chip, and what the tests of it do to streams.
#pragma once

#include <atomic>
#include <thread>

#include "check.h"
#include "runtime/allocator/CachingAllocatorCore.h"

namespace test {

using kunlun::AllocatorPoolId;
using kunlun::AllocatorSettings;
using kunlun::CachingAllocatorCore;

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;

// An allocator of its own for every case; what it holds is given back at the end, before its streams end.
struct Fixture {
  inline static AllocatorSettings settings;
  static AllocatorSettings read() {
    return settings;
  }
  explicit Fixture(AllocatorSettings s = {}) : core(rt(), 2, &read) {
    settings = s;
  }
  ~Fixture() {
    core.emptyCache();
  }
  int64_t reserved(int device = 0) {
    return core.stats(device).reserved_bytes[0].current;
  }
  CachingAllocatorCore core;
};

// Holds a stream until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  kl_result operator()(kl_error*) {
    while (!open) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  }
};

inline uint64_t sequenceOf(kl_stream stream) {
  uint64_t sequence = 0;
  OK(rt().stream_sequence(stream, &sequence));
  return sequence;
}

inline uint64_t freeBytes(int device = 0) {
  uint64_t free_bytes = 0, total = 0;
  OK(rt().memory_info(device, &free_bytes, &total));
  return free_bytes;
}

struct HostCallScope {
  HostCallScope(kl_stream stream, uint64_t sequence) {
    kunlun::allocator_host_call = {stream, sequence};
  }
  ~HostCallScope() {
    kunlun::allocator_host_call = {};
  }
};

} // namespace test
