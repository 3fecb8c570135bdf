// Times the simulated chip's queue: what a launch costs its caller, and a launch with the wait for it.
//
// g++ -std=c++20 -O2 -Icsrc tools/bench_queue.cpp csrc/runtime/Env*.cpp csrc/runtime/sim/*.cpp -pthread -o bench_queue
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "runtime/sim/Sim.h"

namespace {

using Clock = std::chrono::steady_clock;

double nanosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

void spinFor(double nanoseconds) {
  const auto start = Clock::now();
  while (nanosecondsSince(start) < nanoseconds) {
  }
}

kl_result nothing(void*, void*, kl_error*) {
  return KL_SUCCESS;
}

// Median of `rounds` values of `measure`.
template <class Measure>
void report(const char* what, int rounds, Measure measure) {
  std::vector<double> values;
  for (int i = 0; i < rounds; ++i) {
    values.push_back(measure());
  }
  std::sort(values.begin(), values.end());
  std::printf(
      "%-44s %8.0f ns  [%.0f - %.0f]\n",
      what,
      values[values.size() / 2],
      values[values.size() / 10],
      values[values.size() * 9 / 10]);
}

} // namespace

int main() {
  const kl_runtime_table& rt = *kunlun::sim::chip().runtime;
  kl_stream stream = nullptr;
  if (rt.stream_create(0, 0, &stream) != KL_SUCCESS) {
    return 1;
  }
  char payload[400] = {};
  auto push = [&] { kunlun::sim::enqueue(stream, "nothing", nothing, nullptr, payload, sizeof(payload)); };
  push();
  rt.stream_synchronize(stream);

  report("launch, in bursts of 200", 500, [&] {
    const auto start = Clock::now();
    for (int i = 0; i < 200; ++i) {
      push();
    }
    const double each = nanosecondsSince(start) / 200;
    rt.stream_synchronize(stream);
    return each;
  });
  report("launch and synchronise, hot", 5000, [&] {
    const auto start = Clock::now();
    push();
    rt.stream_synchronize(stream);
    return nanosecondsSince(start);
  });
  report("launch, one each 3 us", 5000, [&] {
    const auto start = Clock::now();
    push();
    const double cost = nanosecondsSince(start);
    spinFor(3000);
    return cost;
  });
  rt.stream_synchronize(stream);
  report("launch after 200 us of idling", 500, [&] {
    spinFor(200'000);
    const auto start = Clock::now();
    push();
    const double cost = nanosecondsSince(start);
    rt.stream_synchronize(stream);
    return cost;
  });
  report("launch and synchronise after 200 us of idling", 500, [&] {
    spinFor(200'000);
    const auto start = Clock::now();
    push();
    rt.stream_synchronize(stream);
    return nanosecondsSince(start);
  });
  kl_event event = nullptr;
  rt.event_create(0, 0, &event);
  report("event record", 500, [&] {
    const auto start = Clock::now();
    for (int i = 0; i < 100; ++i) {
      rt.event_record(event, stream);
    }
    const double each = nanosecondsSince(start) / 100;
    rt.stream_synchronize(stream);
    return each;
  });
  rt.event_destroy(event);
  return rt.stream_destroy(stream) == KL_SUCCESS ? 0 : 1;
}
