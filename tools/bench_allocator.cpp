// Times one allocation and free from the cache, without torch: prints the median in nanoseconds for several sizes.
//
//   g++ -std=c++20 -O2 -pthread -Icsrc tools/bench_allocator.cpp csrc/runtime/allocator/*.cpp
//       csrc/runtime/Env*.cpp csrc/runtime/chip/*.cpp csrc/runtime/sim/*.cpp csrc/runtime/xre/*.cpp -ldl -o bench
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/allocator/CachingAllocatorCore.h"
#include "runtime/chip/Loader.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 301;
constexpr int kPerRound = 2000;

void check(kl_result result, const char* what) {
  if (result != KL_SUCCESS) {
    kl_error error{};
    kunlun::chip::runtime().last_error(&error);
    std::fprintf(stderr, "%s failed: %s\n", what, error.text);
    std::exit(1);
  }
}

template <typename Function>
double median(Function&& function) {
  std::vector<double> nanoseconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kPerRound; ++i) {
      function();
    }
    const std::chrono::duration<double, std::nano> spent = Clock::now() - start;
    nanoseconds.push_back(spent.count() / kPerRound);
  }
  std::nth_element(nanoseconds.begin(), nanoseconds.begin() + kRounds / 2, nanoseconds.end());
  return nanoseconds[kRounds / 2];
}

} // namespace

int main() {
  kl_stream stream = nullptr;
  check(kunlun::chip::runtime().stream_create(0, 0, &stream), "stream_create");
  kunlun::CachingAllocatorCore allocator(kunlun::chip::runtime(), 1);

  for (const size_t bytes : {size_t(64), size_t(4) << 10, size_t(256) << 10, size_t(4) << 20, size_t(64) << 20}) {
    allocator.free(allocator.malloc(0, stream, bytes)); // from now on it is in the cache
    const double alone = median([&] { allocator.free(allocator.malloc(0, stream, bytes)); });

    // The same between tensors that stay, as in a model: neighbours cannot be merged.
    std::vector<void*> others;
    const int count = bytes > (1 << 20) ? 4 : 64;
    for (int i = 0; i < count; ++i) {
      others.push_back(allocator.malloc(0, stream, bytes));
    }
    for (size_t i = 0; i < others.size(); i += 2) {
      allocator.free(others[i]);
    }
    const double among = median([&] { allocator.free(allocator.malloc(0, stream, bytes)); });
    for (size_t i = 1; i < others.size(); i += 2) {
      allocator.free(others[i]);
    }
    std::printf("%10zu bytes: %5.1f ns alone, %5.1f ns among others\n", bytes, alone, among);
  }
  check(kunlun::chip::runtime().stream_destroy(stream), "stream_destroy");
  return 0;
}
