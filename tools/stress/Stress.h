// What the parts of the stress program share: checks, random numbers, devices and counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "runtime/allocator/CachingAllocatorCore.h"
#include "runtime/chip/collectives.h"
#include "runtime/sim/Sim.h"

namespace stress {

// Devices 0 and 1 compute, and every byte is compared. Device 2 fails, hangs and is reset.
inline constexpr int kComputing = 2;
inline constexpr int kBroken = 2;
inline constexpr int kDevices = 3;
inline constexpr int kStreamsPerDevice = 3;

inline const kl_runtime_table& rt() {
  static const kl_chip chip = kunlun::sim::chip();
  return *chip.runtime;
}

[[noreturn]] inline void fail(const char* file, int line, const char* what) {
  kl_error error{};
  rt().last_error(&error);
  std::fprintf(
      stderr, "%s:%d: %s\n  last error %d in \"%s\": %s\n", file, line, what, error.code, error.op, error.text);
  std::_Exit(1);
}

#define STRESS_CHECK(condition)                     \
  do {                                              \
    if (!(condition)) {                             \
      stress::fail(__FILE__, __LINE__, #condition); \
    }                                               \
  } while (false)

#define STRESS_OK(call) STRESS_CHECK((call) == KL_SUCCESS)

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // 0 to bound - 1
  uint64_t below(uint64_t bound) {
    return std::uniform_int_distribution<uint64_t>(0, bound - 1)(engine_);
  }
  bool oneIn(uint64_t bound) {
    return below(bound) == 0;
  }

 private:
  std::mt19937_64 engine_;
};

// A stream with the number of its device.
struct Lane {
  int device = 0;
  kl_stream stream = nullptr;
};

// Shared by all workers.
struct World {
  explicit World(int shared_events);
  ~World();

  std::vector<Lane> lanes;                      // of the computing devices
  std::vector<std::pair<int, kl_event>> events; // recorded again and again by whoever wants
  kunlun::CachingAllocatorCore memory;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> chains{0};  // compared byte by byte
  std::atomic<uint64_t> reports{0}; // failures that arrived
  std::atomic<uint64_t> resets{0};
  std::atomic<uint64_t> collectives{0}; // compared, each on each rank
};

// Bodies of the threads; all return when `stop` is set.
void compute(World& world, uint64_t seed);
void breakThings(World& world, uint64_t seed);
// One for each computing device, with the same seed.
void collect(World& world, int rank, const kl_comm_id& id, uint64_t seed);
kl_comm_id makeCommId();

} // namespace stress
