// Memory pools, uncached memory, history and snapshots of the allocator's core.
#include <cstdlib>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace test;

namespace {

constexpr AllocatorPoolId kPool{0, 7};

// Memory of a user's own allocator; its addresses are never dereferenced here.
int own_allocations = 0;
int own_frees = 0;
void* ownAllocate(size_t bytes, int, kl_stream) {
  ++own_allocations;
  return std::aligned_alloc(4096, bytes);
}
void ownFree(void* ptr, size_t, int, kl_stream) {
  ++own_frees;
  std::free(ptr);
}

kunlun::AllocatorContext countingContext() {
  static int count = 0;
  return std::make_shared<int>(++count);
}

} // namespace

TEST(a_pool_keeps_its_memory_apart) {
  Stream stream, other(1);
  Fixture f;
  f.core.retainPool(0, kPool);
  f.core.free(f.core.malloc(0, stream, 512)); // in the default pool's cache
  f.core.beginAllocateToPool(0, kPool);
  void* inside = f.core.malloc(0, stream, 512);
  void* elsewhere = f.core.malloc(1, other, 512); // another device is not concerned
  CHECK(f.core.endAllocateToPool(0, kPool));
  CHECK(!f.core.endAllocateToPool(0, kPool));
  void* outside = f.core.malloc(0, stream, 512);
  CHECK(f.core.stats(0).segment[0].current == 2);
  CHECK(f.core.snapshot(false, &kPool).segments.size() == 1);
  CHECK(f.core.poolReservedBytes(0).at(0).second[0].current == int64_t(2 * kMiB));
  f.core.free(inside);
  void* more = f.core.malloc(0, stream, 512);
  CHECK(more != inside); // what is free in the pool stays in the pool
  f.core.free(more);
  f.core.free(outside);
  f.core.free(elsewhere);
  CHECK(f.core.poolUseCount(0, kPool) == 2);
  f.core.releasePool(0, kPool);
  f.core.emptyCache();
  CHECK(f.core.snapshot(false, &kPool).segments.size() == 1); // in use by one
  f.core.releasePool(0, kPool);
  f.core.emptyCache();
  CHECK(f.core.snapshot(false, &kPool).segments.empty());
  CHECK(f.core.poolUseCount(0, kPool) == 0);
}

TEST(a_released_pool_outlives_its_blocks) {
  Stream stream;
  Fixture f;
  f.core.beginAllocateToPool(0, kPool);
  void* inside = f.core.malloc(0, stream, 512);
  f.core.endAllocateToPool(0, kPool);
  f.core.releasePool(0, kPool);
  f.core.emptyCache();
  CHECK(f.core.blockSize(inside) == 512);
  CHECK(f.core.free(inside));
  f.core.emptyCache();
  CHECK(f.reserved() == 0);
}

TEST(only_the_calling_thread_allocates_to_the_pool) {
  Stream stream;
  Fixture f;
  f.core.beginAllocateToPool(0, kPool);
  std::thread([&] {
    void* ptr = f.core.malloc(0, stream, 512);
    CHECK(f.core.snapshot(false, &kPool).segments.empty());
    f.core.free(ptr);
  }).join();
  f.core.endAllocateToPool(0, kPool);
  f.core.releasePool(0, kPool);
}

TEST(a_pool_can_have_memory_of_its_own) {
  Stream stream;
  Fixture f;
  own_allocations = own_frees = 0;
  f.core.beginAllocateToPool(0, kPool, {.memory = {ownAllocate, ownFree}});
  void* first = f.core.malloc(0, stream, 512);
  void* second = f.core.malloc(0, stream, 512);
  f.core.endAllocateToPool(0, kPool);
  CHECK(own_allocations == 1); // one segment
  f.core.free(first);
  f.core.free(second);
  f.core.releasePool(0, kPool);
  f.core.emptyCache();
  CHECK(own_frees == 1);
}

TEST(a_pool_without_splitting_has_a_segment_for_every_block) {
  Stream stream;
  Fixture f;
  f.core.beginAllocateToPool(0, kPool, {.no_split = true});
  void* first = f.core.malloc(0, stream, 512);
  void* second = f.core.malloc(0, stream, 512);
  f.core.endAllocateToPool(0, kPool);
  CHECK(f.core.stats(0).segment[0].current == 2);
  f.core.free(first);
  f.core.free(second);
  f.core.releasePool(0, kPool);
}

TEST(a_pool_can_help_out_before_memory_runs_out) {
  Stream stream;
  Fixture f;
  const size_t most = freeBytes() * 3 / 4 / (2 * kMiB) * (2 * kMiB);
  for (const bool helps : {false, true}) {
    f.core.beginAllocateToPool(0, kPool, {.use_on_oom = helps});
    void* inside = f.core.malloc(0, stream, most);
    f.core.endAllocateToPool(0, kPool);
    f.core.free(inside);
    bool served = true;
    try {
      void* ptr = f.core.malloc(0, stream, most);
      CHECK(ptr == inside);
      f.core.free(ptr);
    } catch (const kunlun::AllocatorOutOfMemory& e) {
      served = false;
      CHECK(e.in_private_pools == int64_t(most));
    }
    CHECK(served == helps);
    f.core.releasePool(0, kPool);
    f.core.emptyCache();
  }
}

TEST(uncached_memory_goes_back_when_its_work_is_done) {
  Stream stream;
  Fixture f;
  const uint64_t before = freeBytes();
  Gate gate;
  void* ptr = f.core.mallocUncached(0, stream, 5000);
  CHECK(before - freeBytes() == 8192);
  OK(enqueue(stream, "gate", gate));
  f.core.free(ptr);
  CHECK(before - freeBytes() == 8192); // the gate may use it
  gate.open = true;
  OK(rt().stream_synchronize(stream));
  f.core.emptyCache();
  CHECK(freeBytes() == before);
  const auto stats = f.core.stats(0);
  CHECK(stats.active_bytes[0].current == 0 && stats.reserved_bytes[0].current == 0);
}

TEST(history_is_a_ring_of_events) {
  Stream stream;
  Fixture f;
  using enum kunlun::AllocatorAction;
  f.core.free(f.core.malloc(0, stream, 512)); // not recorded
  f.core.recordHistory(
      {.enabled = true,
       .trace = true,
       .context = kunlun::AllocatorHistoryOptions::All,
       .gather = countingContext,
       .max_entries = 6});
  CachingAllocatorCore::setMetadata("a step");
  void* ptr = f.core.malloc(0, stream, 3 * kMiB);
  CHECK(f.core.blockContext(ptr) != nullptr);
  const auto live = f.core.snapshot(true);
  CHECK(live.traces.size() == 2 && live.traces[0].size() == 3 && live.traces[1].size() == 1);
  CHECK(live.traces[0][0].action == SegmentAlloc && live.traces[0][0].size == 20 * kMiB);
  CHECK(live.traces[0][1].action == Alloc && live.traces[0][1].address == reinterpret_cast<uintptr_t>(ptr));
  CHECK(live.traces[0][1].metadata == "a step" && live.traces[0][1].context != nullptr);
  CHECK(live.traces[0][2].action == Snapshot);
  CHECK(live.segments.size() == 2 && live.segments[1].blocks.size() + live.segments[0].blocks.size() == 3);
  f.core.free(ptr);
  f.core.emptyCache();
  const auto after = f.core.snapshot(true);
  std::vector<kunlun::AllocatorAction> actions;
  for (const auto& entry : after.traces[0]) {
    actions.push_back(entry.action);
  }
  // The two oldest have made room.
  CHECK((actions == std::vector{Snapshot, FreeRequested, FreeCompleted, SegmentFree, SegmentFree, Snapshot}));
  f.core.recordHistory({});
  f.core.free(f.core.malloc(0, stream, 512));
  CHECK(f.core.snapshot(true).traces[0].size() == 6);
  // Fewer from now on: the newest stay, and newer ones follow them in order.
  f.core.recordHistory({.enabled = true, .trace = true, .max_entries = 4});
  f.core.free(f.core.malloc(0, stream, 512));
  actions.clear();
  const auto fewer = f.core.snapshot(true);
  for (const auto& entry : fewer.traces[0]) {
    actions.push_back(entry.action);
  }
  CHECK((actions == std::vector{Alloc, FreeRequested, FreeCompleted, Snapshot}));
  CachingAllocatorCore::setMetadata("");
}

TEST(running_out_of_memory_is_part_of_the_history) {
  Stream stream;
  Fixture f;
  f.core.recordHistory({.enabled = true, .trace = true, .skip = 1u << int(kunlun::AllocatorAction::Snapshot)});
  try {
    f.core.malloc(0, stream, size_t(1) << 46);
  } catch (const kunlun::AllocatorOutOfMemory&) {
  }
  const auto trace = f.core.snapshot(true).traces[0];
  CHECK(trace.size() == 1 && trace[0].action == kunlun::AllocatorAction::OutOfMemory);
  CHECK(trace[0].size == size_t(1) << 46 && trace[0].address == freeBytes());
}
