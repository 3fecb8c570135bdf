// Expandable segments and garbage collection in the allocator's core.
#include <vector>

#include "fixture.h"

using namespace test;

namespace {

const AllocatorSettings kExpandable{.expandable_segments = true};

} // namespace

TEST(an_expandable_segment_grows_in_place) {
  Stream stream;
  Fixture f(kExpandable);
  auto* first = static_cast<char*>(f.core.malloc(0, stream, 30 * kMiB));
  CHECK(f.reserved() == int64_t(30 * kMiB));
  auto* second = static_cast<char*>(f.core.malloc(0, stream, 50 * kMiB));
  CHECK(second == first + 30 * kMiB);
  CHECK(f.reserved() == int64_t(80 * kMiB));
  CHECK(f.core.stats(0).segment[0].current == 1);
  kl_pointer_info info{};
  OK(rt().pointer_info(second, &info));
  CHECK(info.base == first && info.size >= 80 * kMiB);
  CHECK(f.core.baseAllocation(second) == std::make_pair(info.base, size_t(info.size)));
  f.core.free(first);
  f.core.free(second);
  // One block of both: a request of 90 MiB needs 10 more.
  void* both = f.core.malloc(0, stream, 90 * kMiB);
  CHECK(both == first);
  CHECK(f.reserved() == int64_t(90 * kMiB));
  f.core.free(both);
  f.core.emptyCache();
  CHECK(f.reserved() == 0);
  CHECK(f.core.stats(0).segment[0].current == 0);
  CHECK(f.core.stats(0).inactive_split[0].current == 0);
}

TEST(small_and_large_blocks_have_segments_of_their_own) {
  Stream stream;
  Fixture f(kExpandable);
  void* small = f.core.malloc(0, stream, 512);
  void* large = f.core.malloc(0, stream, 3 * kMiB);
  const auto stats = f.core.stats(0);
  CHECK(stats.segment[1].current == 1 && stats.segment[2].current == 1);
  CHECK(stats.reserved_bytes[1].current == int64_t(2 * kMiB));
  CHECK(stats.reserved_bytes[2].current == int64_t(4 * kMiB));
  f.core.free(small);
  f.core.free(large);
}

TEST(emptying_the_cache_takes_the_memory_between_live_blocks) {
  Stream stream;
  Fixture f(kExpandable);
  const uint64_t before = freeBytes();
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) {
    blocks.push_back(f.core.malloc(0, stream, 10 * kMiB + 512)); // not in whole units
  }
  const int64_t full = f.reserved();
  f.core.free(blocks[1]);
  f.core.free(blocks[3]);
  f.core.emptyCache();
  CHECK(f.reserved() == full - int64_t(2 * 8 * kMiB)); // whole units of 2 MiB inside 10 MiB that begin between two
  CHECK(before - freeBytes() == uint64_t(f.reserved()));
  // The holes are filled again before the segment grows.
  void* again = f.core.malloc(0, stream, 10 * kMiB + 512);
  CHECK(again == blocks[1] || again == blocks[3]);
  CHECK(f.core.stats(0).segment[0].current == 1);
  for (void* block : {blocks[0], blocks[2], blocks[4], again}) {
    CHECK(f.core.free(block));
  }
  f.core.emptyCache();
  CHECK(f.reserved() == 0);
  CHECK(freeBytes() == before);
}

TEST(addresses_without_memory_are_no_blocks) {
  Stream stream;
  Fixture f(kExpandable);
  auto* ptr = static_cast<char*>(f.core.malloc(0, stream, 2 * kMiB));
  CHECK(!f.core.free(ptr + 2 * kMiB));
  CHECK(f.core.blockSize(ptr + 2 * kMiB) == 0);
  const auto snapshot = f.core.snapshot(false);
  CHECK(snapshot.segments.size() == 1 && snapshot.segments[0].expandable);
  CHECK(snapshot.segments[0].total_size == 2 * kMiB && snapshot.segments[0].blocks.size() == 1);
  f.core.free(ptr);
}

TEST(memory_in_pieces_serves_one_large_request) {
  Stream stream;
  Fixture f(kExpandable);
  const size_t piece = freeBytes() / 8 / (2 * kMiB) * (2 * kMiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i) {
    blocks.push_back(f.core.malloc(0, stream, piece));
  }
  for (int i = 0; i < 7; i += 2) {
    f.core.free(blocks[i]);
  }
  void* large = f.core.malloc(0, stream, 4 * piece); // no hole is that large
  CHECK(f.core.stats(0).num_alloc_retries == 1);
  CHECK(f.core.stats(0).num_ooms == 0);
  f.core.free(large);
  for (int i = 1; i < 7; i += 2) {
    f.core.free(blocks[i]);
  }
}

TEST(the_limit_holds_for_expandable_segments) {
  Stream stream;
  Fixture f(kExpandable);
  uint64_t free_bytes = 0, total = 0;
  OK(rt().memory_info(0, &free_bytes, &total));
  f.core.setMemoryFraction(0, 8.0 * kMiB / double(total));
  void* ptr = f.core.malloc(0, stream, 6 * kMiB);
  bool limited = false;
  try {
    f.core.malloc(0, stream, 4 * kMiB);
  } catch (const kunlun::AllocatorOutOfMemory& e) {
    limited = e.limited;
  }
  CHECK(limited);
  f.core.free(ptr);
  f.core.free(f.core.malloc(0, stream, 8 * kMiB));
}

TEST(memory_of_unfinished_work_is_not_unmapped) {
  Stream stream, other;
  Fixture f(kExpandable);
  void* ptr = f.core.malloc(0, stream, 4 * kMiB);
  const uint64_t before = sequenceOf(stream);
  Gate gate;
  OK(enqueue(stream, "gate", gate));
  f.core.free(ptr); // the gate may use it
  {
    // On the chip's own thread nothing is waited for: the memory stays.
    const HostCallScope scope(stream, before);
    f.core.emptyCache();
  }
  CHECK(f.reserved() == int64_t(4 * kMiB));
  gate.open = true;
  f.core.emptyCache();
  CHECK(f.reserved() == 0);
}

TEST(garbage_collection_gives_the_oldest_blocks_back) {
  Stream stream;
  uint64_t free_bytes = 0, total = 0;
  OK(rt().memory_info(0, &free_bytes, &total));
  Fixture f({.garbage_collection_threshold = 100.0 * kMiB / double(total)});
  void* old_block = f.core.malloc(0, stream, 40 * kMiB);
  void* young_block = f.core.malloc(0, stream, 30 * kMiB);
  f.core.free(old_block);
  for (int i = 0; i < 100; ++i) {
    f.core.free(f.core.malloc(0, stream, 512)); // time passes
  }
  f.core.free(young_block);
  CHECK(f.reserved() == int64_t(72 * kMiB));
  void* ptr = f.core.malloc(0, stream, 50 * kMiB); // would be 122 MiB
  CHECK(f.reserved() == int64_t(82 * kMiB));
  CHECK(f.core.stats(0).num_alloc_retries == 0);
  void* reused = f.core.malloc(0, stream, 30 * kMiB);
  CHECK(reused == young_block);
  f.core.free(ptr);
  f.core.free(reused);
}
