// Stress of the simulated chip's driver, its queues, its collectives and the caching allocator's core, to be run under
// sanitizers.
//
//   stress [seconds] [threads] [seed]
#include <chrono>
#include <cstdlib>
#include <thread>

#include "Stress.h"
#include "runtime/sim/Faults.h"

namespace stress {

World::World(int shared_events) : memory(rt(), kComputing) {
  for (int device = 0; device < kComputing; ++device) {
    for (int i = 0; i < kStreamsPerDevice; ++i) {
      Lane lane{device, nullptr};
      STRESS_OK(rt().stream_create(device, 0, &lane.stream));
      lanes.push_back(lane);
    }
    for (int i = 0; i < shared_events; ++i) {
      kl_event event = nullptr;
      STRESS_OK(rt().event_create(device, i % 2 == 0 ? uint32_t(KL_EVENT_TIMING) : 0u, &event));
      events.emplace_back(device, event);
    }
  }
}

World::~World() {
  for (const Lane& lane : lanes) {
    STRESS_OK(rt().stream_synchronize(lane.stream));
  }
  for (const auto& [device, event] : events) {
    STRESS_OK(rt().event_destroy(event));
  }
  memory.emptyCache();
  for (int device = 0; device < kComputing; ++device) {
    STRESS_CHECK(memory.usage(device) == std::make_pair(int64_t{0}, int64_t{0}));
  }
  for (const Lane& lane : lanes) {
    STRESS_OK(rt().stream_destroy(lane.stream));
  }
}

namespace {

void run(double seconds, int threads, uint64_t seed) {
  {
    World world(4);
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) {
      all.emplace_back(compute, std::ref(world), seed + static_cast<uint64_t>(i));
    }
    for (int i = 0; i < 2; ++i) {
      all.emplace_back(breakThings, std::ref(world), seed + 1000 + static_cast<uint64_t>(i));
    }
    const kl_comm_id id = makeCommId();
    for (int rank = 0; rank < kComputing; ++rank) {
      all.emplace_back(collect, std::ref(world), rank, std::cref(id), seed + 2000);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    world.stop = true;
    for (auto& thread : all) {
      thread.join();
    }
    std::printf(
        "%llu chains and %llu collectives compared, %llu failures reported, %llu resets\n",
        static_cast<unsigned long long>(world.chains),
        static_cast<unsigned long long>(world.collectives),
        static_cast<unsigned long long>(world.reports),
        static_cast<unsigned long long>(world.resets));
    STRESS_CHECK(world.chains > 0 && world.collectives > 0 && world.reports > 0 && world.resets > 0);
  }
  kunlun::sim::clearFaults();
  for (int device = 0; device < kDevices; ++device) {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    STRESS_OK(rt().memory_info(device, &free_bytes, &total_bytes));
    STRESS_CHECK(free_bytes == total_bytes);
  }
}

} // namespace
} // namespace stress

int main(int argc, char** argv) {
  // Three devices, small enough for the address space of a sanitizer.
  setenv("KUNLUN_SIM_DEVICES", "3", 1);
  setenv("KUNLUN_SIM_MEMORY", "256M", 1);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 4;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  stress::run(seconds, threads, seed);
  return 0;
}
