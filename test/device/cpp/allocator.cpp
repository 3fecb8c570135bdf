// The allocator's core over the simulated chip: reuse, split and merge, the sequence rule, other streams, limits.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace test;

TEST(a_freed_block_is_handed_out_again_at_once) {
  Stream stream;
  Fixture f;
  void* first = f.core.malloc(0, stream, 1000);
  CHECK(f.core.blockSize(first) == 1024);
  CHECK(f.core.free(first));
  CHECK(f.core.malloc(0, stream, 700) == first);
  CHECK(f.core.free(first));
  CHECK(f.reserved() == int64_t(2 * kMiB));
}

TEST(blocks_of_a_stream_are_not_given_to_another_stream) {
  Stream a, b;
  Fixture f;
  void* first = f.core.malloc(0, a, 512);
  f.core.free(first);
  void* second = f.core.malloc(0, b, 512);
  CHECK(second != first);
  f.core.free(second);
}

TEST(segments_have_the_sizes_of_cuda) {
  Stream stream;
  Fixture f;
  const std::pair<size_t, size_t> expected[] = {
      {1, 2 * kMiB},
      {kMiB, 2 * kMiB},
      {kMiB + 1, 20 * kMiB},
      {10 * kMiB - 512, 20 * kMiB},
      {10 * kMiB, 10 * kMiB},
      {11 * kMiB, 12 * kMiB}};
  for (const auto& [bytes, segment] : expected) {
    void* ptr = f.core.malloc(0, stream, bytes);
    CHECK(f.reserved() == int64_t(segment));
    CHECK(f.core.baseAllocation(ptr) == std::make_pair(ptr, segment));
    f.core.free(ptr);
    f.core.emptyCache();
    CHECK(f.reserved() == 0);
  }
}

TEST(free_neighbours_merge_in_every_order) {
  Stream stream;
  Fixture f;
  int order[] = {0, 1, 2, 3};
  do {
    void* blocks[4];
    for (void*& block : blocks) {
      block = f.core.malloc(0, stream, 64 * kKiB);
    }
    CHECK(f.core.stats(0).inactive_split[0].current == 1); // what is left of the segment
    for (const int index : order) {
      CHECK(f.core.free(blocks[index]));
    }
    const auto stats = f.core.stats(0);
    CHECK(stats.inactive_split[0].current == 0);
    CHECK(stats.inactive_split_bytes[0].current == 0);
    CHECK(stats.active_bytes[0].current == 0);
    CHECK(stats.segment[0].current == 1);
  } while (std::next_permutation(std::begin(order), std::end(order)));
  f.core.emptyCache();
  CHECK(f.reserved() == 0);
}

TEST(the_smallest_block_that_fits_is_taken) {
  Stream stream;
  Fixture f;
  std::vector<void*> blocks, walls;
  for (const size_t size : {12 * kKiB, 4 * kKiB, 8 * kKiB}) {
    blocks.push_back(f.core.malloc(0, stream, size));
    walls.push_back(f.core.malloc(0, stream, 512)); // keeps the blocks apart
  }
  for (void* block : blocks) {
    f.core.free(block);
  }
  void* fit = f.core.malloc(0, stream, 7 * kKiB);
  CHECK(fit == blocks[2]);
  f.core.free(fit);
  for (void* wall : walls) {
    f.core.free(wall);
  }
}

TEST(large_blocks_of_one_size_class_are_searched_for_the_best) {
  Stream stream;
  Fixture f;
  // All four in one class: a 32nd of 16 MiB is 512 KiB.
  std::vector<void*> blocks;
  for (const size_t extra : {size_t(300), size_t(0), size_t(200), size_t(100)}) {
    blocks.push_back(f.core.malloc(0, stream, 16 * kMiB + extra * kKiB));
  }
  // Segments are multiples of 2 MiB, so each block is a segment of 18 MiB, but for the second.
  for (void* block : blocks) {
    f.core.free(block);
  }
  void* fit = f.core.malloc(0, stream, 16 * kMiB);
  CHECK(fit == blocks[1]);
  f.core.free(fit);
}

TEST(wrong_pointers_are_refused) {
  Stream stream;
  Fixture f;
  int local = 0;
  CHECK(!f.core.free(&local));
  void* ptr = f.core.malloc(0, stream, 512);
  CHECK(!f.core.free(static_cast<char*>(ptr) + 512));
  CHECK(f.core.free(ptr));
  CHECK(!f.core.free(ptr));
}

TEST(a_host_call_gets_no_block_that_newer_work_may_use) {
  Stream stream;
  Fixture f;
  void* ptr = f.core.malloc(0, stream, 512);
  void* wall = f.core.malloc(0, stream, 512); // keeps it apart from the rest of the segment
  const uint64_t before = sequenceOf(stream);
  Gate gate;
  OK(enqueue(stream, "gate", gate));
  f.core.free(ptr); // the gate may use it
  void* other = f.core.malloc(0, stream, 512, before);
  CHECK(other != ptr);
  void* same = f.core.malloc(0, stream, 512, sequenceOf(stream));
  CHECK(same == ptr);
  gate.open = true;
  f.core.free(other);
  f.core.free(same);
  f.core.free(wall);
}

TEST(a_merged_block_is_as_young_as_its_youngest_part) {
  Stream stream;
  Fixture f;
  void* old_part = f.core.malloc(0, stream, 1 * kMiB);
  void* young_part = f.core.malloc(0, stream, 1 * kMiB);
  f.core.free(old_part);
  const uint64_t before = sequenceOf(stream);
  Gate gate;
  OK(enqueue(stream, "gate", gate));
  f.core.free(young_part); // fills the segment with the old one
  void* other = f.core.malloc(0, stream, 1 * kMiB, before);
  CHECK(other != old_part && other != young_part);
  gate.open = true;
  f.core.free(other);
}

TEST(a_host_call_reuses_its_own_memory_while_newer_work_is_waiting) {
  Stream stream;
  Fixture f;
  const uint64_t before = sequenceOf(stream);
  Gate call, later;
  OK(enqueue(stream, "call", call));
  OK(enqueue(stream, "later", later));
  void* kept = nullptr;
  {
    const HostCallScope scope(stream, before);
    void* first = f.core.malloc(0, stream, 4 * kKiB);
    f.core.free(first);
    void* second = f.core.malloc(0, stream, 4 * kKiB);
    CHECK(second == first);
    f.core.free(second);
    kept = f.core.malloc(0, stream, 4 * kKiB); // a result of the call
  }
  // Freed after the call, it may be in use by what was enqueued meanwhile.
  f.core.free(kept);
  {
    const HostCallScope scope(stream, before);
    void* other = f.core.malloc(0, stream, 4 * kKiB);
    CHECK(other != kept);
    f.core.free(other);
  }
  call.open = later.open = true;
}

TEST(memory_used_on_another_stream_waits_for_it) {
  Stream owner, user(1);
  Fixture f;
  Gate gate;
  void* ptr = f.core.malloc(0, owner, 512);
  OK(enqueue(user, "gate", gate));
  CHECK(f.core.recordStream(ptr, 1, user));
  CHECK(f.core.free(ptr));
  auto stats = f.core.stats(0);
  CHECK(stats.allocated_bytes[0].current == 0);
  CHECK(stats.active_bytes[0].current == 512);
  void* other = f.core.malloc(0, owner, 512);
  CHECK(other != ptr);
  f.core.free(other);
  gate.open = true;
  OK(rt().stream_synchronize(user));
  void* again = f.core.malloc(0, owner, 512);
  CHECK(again == ptr);
  f.core.free(again);
  CHECK(f.core.stats(0).active_bytes[0].current == 0);
}

TEST(running_out_of_memory_gives_the_cache_back_first) {
  Stream a, b;
  Fixture f;
  uint64_t free_bytes = 0, total = 0;
  OK(rt().memory_info(0, &free_bytes, &total));
  const size_t most = (free_bytes * 3 / 4) / (2 * kMiB) * (2 * kMiB);
  void* ptr = f.core.malloc(0, a, most);
  f.core.free(ptr);
  ptr = f.core.malloc(0, b, most); // only possible when the first segment is given back
  CHECK(f.core.stats(0).num_alloc_retries == 1);
  bool refused = false;
  try {
    f.core.malloc(0, b, most);
  } catch (const kunlun::AllocatorOutOfMemory& e) {
    refused = true;
    CHECK(e.requested == most && e.total_bytes == total && !e.limited);
    CHECK(e.allocated == int64_t(most) && e.reserved == int64_t(most));
  }
  CHECK(refused);
  CHECK(f.core.stats(0).num_ooms == 1);
  f.core.free(ptr);
  ptr = f.core.malloc(0, b, most);
  f.core.free(ptr);
}

TEST(an_absurd_size_is_out_of_memory_too) {
  Stream stream;
  Fixture f;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 511, size_t(1) << 60}) {
    bool refused = false;
    try {
      f.core.malloc(0, stream, bytes);
    } catch (const kunlun::AllocatorOutOfMemory&) {
      refused = true;
    }
    CHECK(refused);
  }
}

TEST(the_memory_fraction_limits_what_is_reserved) {
  Stream stream;
  Fixture f;
  uint64_t free_bytes = 0, total = 0;
  OK(rt().memory_info(0, &free_bytes, &total));
  f.core.setMemoryFraction(0, 64.0 * kMiB / double(total));
  void* first = f.core.malloc(0, stream, 40 * kMiB);
  bool refused = false;
  try {
    f.core.malloc(0, stream, 40 * kMiB);
  } catch (const kunlun::AllocatorOutOfMemory& e) {
    refused = e.limited;
  }
  CHECK(refused);
  f.core.free(first);
  void* second = f.core.malloc(0, stream, 60 * kMiB);
  f.core.free(second);
}

TEST(emptying_the_cache_waits_for_work_without_stopping_host_calls_that_allocate) {
  Stream stream;
  Fixture f;
  f.core.free(f.core.malloc(0, stream, 512));
  const uint64_t before = sequenceOf(stream);
  std::atomic<bool> waiting{false};
  auto call = [&](kl_error*) {
    while (!waiting) {
      std::this_thread::yield();
    }
    const HostCallScope scope(stream, before);
    for (int i = 0; i < 100; ++i) {
      f.core.free(f.core.malloc(0, stream, 32 * kMiB));
    }
    f.core.emptyCache(); // must not wait for the stream that it is on
    return KL_SUCCESS;
  };
  OK(enqueue(stream, "call", call));
  std::thread other([&] {
    waiting = true;
    f.core.emptyCache();
  });
  other.join();
  OK(rt().stream_synchronize(stream));
  f.core.emptyCache();
  CHECK(f.reserved() == 0);
}

TEST(a_failure_that_emptying_the_cache_waited_for_is_reported_once) {
  Stream stream;
  Fixture f;
  f.core.free(f.core.malloc(0, stream, 512));
  auto fail = [](kl_error* error) {
    std::snprintf(error->text, sizeof(error->text), "out of range");
    return KL_ERROR_INDEX;
  };
  OK(enqueue(stream, "fail", fail));
  bool reported = false;
  try {
    f.core.emptyCache();
  } catch (const kunlun::AllocatorDriverFailure& e) {
    reported = e.result == KL_ERROR_INDEX;
  }
  CHECK(reported);
  f.core.emptyCache();
  CHECK(f.reserved() == 0);
  OK(rt().stream_synchronize(stream));
}

TEST(blocks_in_use_never_overlap) {
  constexpr int kThreads = 4;
  Stream streams[2] = {Stream(0), Stream(0)};
  Fixture f;
  std::mutex lock; // guards live
  std::map<char*, size_t> live;
  auto add = [&](char* ptr, size_t size) {
    std::lock_guard guard(lock);
    auto next = live.lower_bound(ptr);
    CHECK(next == live.end() || ptr + size <= next->first);
    CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= ptr);
    live.emplace(ptr, size);
  };
  auto remove = [&](char* ptr) {
    std::lock_guard guard(lock);
    live.erase(ptr);
  };
  auto work = [&](int seed) {
    std::mt19937 random(seed);
    std::vector<char*> mine;
    for (int i = 0; i < 4000; ++i) {
      if (mine.size() < 40 && random() % 5 < 3) {
        const size_t bytes = random() % 8 == 0 ? random() % (24 * kMiB) : random() % (200 * kKiB);
        auto* ptr = static_cast<char*>(f.core.malloc(0, streams[random() % 2], bytes + 1));
        add(ptr, f.core.blockSize(ptr));
        mine.push_back(ptr);
      } else if (!mine.empty()) {
        std::swap(mine[random() % mine.size()], mine.back());
        if (random() % 16 == 0) {
          f.core.recordStream(mine.back(), 0, streams[random() % 2]);
        }
        remove(mine.back());
        CHECK(f.core.free(mine.back()));
        mine.pop_back();
      }
      if (random() % 500 == 0) {
        f.core.emptyCache();
      }
    }
    for (char* ptr : mine) {
      remove(ptr);
      f.core.free(ptr);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(work, i + 1);
  }
  for (auto& thread : threads) {
    thread.join();
  }
  f.core.emptyCache();
  const auto stats = f.core.stats(0);
  for (const auto* each :
       {&stats.allocation,
        &stats.active,
        &stats.segment,
        &stats.inactive_split,
        &stats.allocated_bytes,
        &stats.active_bytes,
        &stats.reserved_bytes,
        &stats.inactive_split_bytes,
        &stats.requested_bytes}) {
    for (const auto& stat : *each) {
      CHECK(stat.current == 0);
      CHECK(stat.allocated == stat.freed);
    }
  }
  CHECK(stats.num_device_alloc == stats.num_device_free);
}
