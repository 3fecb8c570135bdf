// Memory pools that sleep: what goes back to the driver, what stays, and what happens when memory is short.
#include <cstring>
#include <numeric>
#include <vector>

#include "fixture.h"

using namespace test;
using enum kunlun::AllocatorSleep;

namespace {

constexpr AllocatorPoolId kPool{0, 7};
constexpr size_t kBig = 30 * kMiB;

struct WithStream {
  Stream stream; // outlives the allocator
};

// An allocator with one pool that can sleep.
struct SleepFixture : WithStream, Fixture {
  SleepFixture() {
    core.retainPool(0, kPool, {.can_sleep = true});
  }
  char* inPool(size_t bytes) {
    CHECK(core.beginAllocateToPool(0, kPool));
    void* ptr = core.malloc(0, stream, bytes);
    CHECK(core.endAllocateToPool(0, kPool));
    core.releasePool(0, kPool);
    return static_cast<char*>(ptr);
  }
  kunlun::AllocatorSleep sleep(bool keep = true) {
    return core.putToSleep(0, kPool, keep, stream, given_back);
  }
  kunlun::AllocatorSleep wake() {
    return core.wakeUp(0, kPool, stream);
  }
  void write(char* device, const std::vector<char>& data) {
    OK(rt().memcpy_async(device, data.data(), data.size(), KL_COPY_HOST_TO_DEVICE, 0, stream));
    OK(rt().stream_synchronize(stream));
  }
  std::vector<char> read(const char* device, size_t bytes) {
    std::vector<char> data(bytes);
    OK(rt().memcpy_async(data.data(), device, bytes, KL_COPY_DEVICE_TO_HOST, 0, stream));
    OK(rt().stream_synchronize(stream));
    return data;
  }
  uint64_t given_back = 0;
};

std::vector<char> pattern(size_t bytes) {
  std::vector<char> data(bytes);
  std::iota(data.begin(), data.end(), char{1});
  return data;
}

} // namespace

TEST(memory_goes_and_comes_while_addresses_stay) {
  SleepFixture f;
  const uint64_t before = freeBytes();
  char* small = f.inPool(1000);
  char* big = f.inPool(kBig);
  const auto small_data = pattern(1000);
  const auto big_data = pattern(kBig);
  f.write(small, small_data);
  f.write(big, big_data);
  const uint64_t awake = freeBytes();
  CHECK(f.sleep() == Done);
  CHECK(f.given_back == 32 * kMiB && freeBytes() == before);
  CHECK(f.reserved() == 0 && f.core.stats(0).allocated_bytes[0].current == int64_t(kBig + 1024));
  CHECK(f.core.poolReservedBytes(0).at(0).second[0].current == 0);
  CHECK(f.core.snapshot(false).segments.empty());
  CHECK(f.core.isAsleep(small) && f.core.isAsleep(big) && f.core.poolSleeps(0, kPool));
  CHECK(f.sleep() == NotAwake);
  CHECK(!f.core.beginAllocateToPool(0, kPool));
  CHECK(f.core.poolUseCount(0, kPool) == 1);
  CHECK(f.wake() == Done);
  CHECK(freeBytes() == awake && !f.core.isAsleep(big) && f.reserved() == int64_t(32 * kMiB));
  CHECK(f.read(small, 1000) == small_data && f.read(big, kBig) == big_data);
  CHECK(f.wake() == NotAsleep);
  f.core.free(small);
  f.core.free(big);
  f.core.releasePool(0, kPool);
}

TEST(contents_need_not_be_kept) {
  SleepFixture f;
  char* ptr = f.inPool(kBig);
  f.write(ptr, pattern(kBig));
  CHECK(f.sleep(false) == Done && f.wake() == Done);
  CHECK(f.read(ptr, kBig) != pattern(kBig));
  f.core.free(ptr);
  f.core.releasePool(0, kPool);
}

TEST(what_is_free_goes_back_with_its_addresses) {
  SleepFixture f;
  char* kept = f.inPool(kBig);
  f.core.free(f.inPool(2 * kBig));
  CHECK(f.sleep() == Done && f.given_back == 3 * kBig);
  CHECK(f.wake() == Done && f.reserved() == int64_t(kBig));
  f.core.free(kept);
  f.core.releasePool(0, kPool);
}

TEST(only_a_pool_that_can_sleep_and_that_nobody_uses_sleeps) {
  SleepFixture f;
  const AllocatorPoolId plain{0, 8};
  f.core.retainPool(0, plain);
  uint64_t bytes = 0;
  CHECK(f.core.putToSleep(0, plain, true, f.stream, bytes) == NoSuchPool);
  CHECK(f.core.putToSleep(0, {0, 9}, true, f.stream, bytes) == NoSuchPool);
  CHECK(f.core.wakeUp(0, plain, f.stream) == NoSuchPool);
  CHECK(f.core.beginAllocateToPool(0, kPool));
  CHECK(f.sleep() == InUse && !f.core.poolSleeps(0, kPool));
  f.core.endAllocateToPool(0, kPool);
  f.core.releasePool(0, kPool);
  CHECK(f.sleep() == Done && f.wake() == Done); // with nothing in it
  f.core.releasePool(0, kPool);
  f.core.releasePool(0, plain);
}

TEST(without_memory_it_sleeps_on) {
  SleepFixture f;
  char* first = f.inPool(kBig);
  char* second = f.inPool(2 * kBig);
  const auto data = pattern(kBig);
  f.write(first, data);
  CHECK(f.sleep() == Done);
  const uint64_t all = freeBytes();
  // Enough is left for one of the two segments: nothing may be left behind of a try that fails half way.
  void* hog = f.core.malloc(0, f.stream, all - kBig);
  bool refused = false;
  try {
    f.wake();
  } catch (const kunlun::AllocatorOutOfMemory& e) {
    refused = e.requested == 3 * kBig && e.allocated == int64_t(all - kBig) && !e.limited;
  }
  CHECK(refused && freeBytes() == kBig && f.core.isAsleep(first));
  f.core.free(hog); // cached: the second try empties the cache
  CHECK(f.wake() == Done && f.read(first, kBig) == data);
  f.core.free(first);
  f.core.free(second);
  f.core.releasePool(0, kPool);
}

TEST(the_memory_fraction_holds_for_waking_up) {
  SleepFixture f;
  char* ptr = f.inPool(kBig);
  CHECK(f.sleep() == Done);
  f.core.setMemoryFraction(0, 0.001);
  bool limited = false;
  try {
    f.wake();
  } catch (const kunlun::AllocatorOutOfMemory& e) {
    limited = e.limited;
  }
  CHECK(limited);
  f.core.setMemoryFraction(0, 1.0);
  CHECK(f.wake() == Done);
  f.core.free(ptr);
  f.core.releasePool(0, kPool);
}

TEST(blocks_are_freed_asleep) {
  SleepFixture f;
  const uint64_t before = freeBytes();
  char* freed = f.inPool(kBig);
  char* kept = f.inPool(kBig);
  f.write(kept, pattern(kBig));
  CHECK(f.sleep() == Done);
  CHECK(f.core.free(freed) && !f.core.isAsleep(freed));
  f.core.emptyCache(kPool);
  CHECK(f.wake() == Done && before - freeBytes() == kBig);
  CHECK(f.read(kept, kBig) == pattern(kBig));
  // Dropped asleep, its blocks still can be freed, and nothing is left then.
  CHECK(f.sleep() == Done);
  f.core.releasePool(0, kPool);
  CHECK(f.core.isAsleep(kept) && f.core.free(kept));
  f.core.emptyCache();
  CHECK(f.core.poolReservedBytes(0).empty() && f.core.stats(0).segment[0].current == 0 && freeBytes() == before);
  CHECK(kunlun::allocator_sleeping_pools == 0);
}

TEST(work_of_other_streams_is_waited_for) {
  SleepFixture f;
  Stream other;
  char* ptr = f.inPool(kBig);
  const auto data = pattern(1000);
  auto late = [&](kl_error*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::memcpy(ptr, data.data(), data.size());
    return KL_SUCCESS;
  };
  OK(enqueue(other, "late", late)); // nobody has told the allocator
  CHECK(f.sleep() == Done && f.wake() == Done);
  CHECK(f.read(ptr, 1000) == data);
  f.core.free(ptr);
  f.core.releasePool(0, kPool);
}

TEST(history_has_the_memory_that_went_and_came) {
  SleepFixture f;
  using enum kunlun::AllocatorAction;
  f.core.recordHistory({.enabled = true, .trace = true, .max_entries = 100});
  char* ptr = f.inPool(kBig);
  CHECK(f.sleep() == Done && f.wake() == Done);
  std::vector<kunlun::AllocatorAction> actions;
  const auto snapshot = f.core.snapshot(true);
  for (const auto& entry : snapshot.traces[0]) {
    actions.push_back(entry.action);
  }
  CHECK((actions == std::vector{SegmentAlloc, Alloc, SegmentUnmap, SegmentMap, Snapshot}));
  f.core.recordHistory({});
  f.core.free(ptr);
  f.core.releasePool(0, kPool);
}
