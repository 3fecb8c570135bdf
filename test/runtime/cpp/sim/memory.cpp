// Device memory, pinned memory, copies and fills.
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "check.h"

using namespace test;

namespace {

std::vector<char> pattern(size_t bytes, int seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<char>(i * 131 + static_cast<size_t>(seed));
  }
  return data;
}

kl_result copy(void* dst, const void* src, size_t bytes, kl_copy_kind kind, kl_stream stream, uint32_t flags = 0) {
  return rt().memcpy_async(dst, src, bytes, kind, flags, stream);
}

} // namespace

TEST(pageable_copies_go_there_and_back) {
  Stream stream;
  for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{32768}, size_t{32769}, size_t{3} << 20}) {
    Memory memory(bytes), second(bytes, 1);
    auto source = pattern(bytes, 1);
    const auto expected = source;
    OK(copy(memory.ptr, source.data(), bytes, KL_COPY_HOST_TO_DEVICE, stream));
    std::fill(source.begin(), source.end(), 'x');                              // the source may be reused at once
    OK(copy(second.ptr, memory.ptr, bytes, KL_COPY_DEVICE_TO_DEVICE, stream)); // to another device
    std::vector<char> back(bytes);
    OK(copy(back.data(), second.ptr, bytes, KL_COPY_DEVICE_TO_HOST, stream));
    CHECK(back == expected); // without a synchronisation
  }
}

TEST(pinned_copies_are_asynchronous) {
  Stream stream;
  constexpr size_t kBytes = size_t{1} << 20;
  Memory memory(kBytes);
  void* pinned = nullptr;
  void* back = nullptr;
  OK(rt().host_malloc(kBytes, &pinned));
  OK(rt().host_malloc(kBytes, &back));
  const auto data = pattern(kBytes, 2);
  std::memcpy(pinned, data.data(), kBytes);
  std::atomic<bool> open{false};
  auto gate = [&](kl_error*) {
    while (!open) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  };
  OK(enqueue(stream, "gate", gate));
  OK(copy(memory.ptr, pinned, kBytes, KL_COPY_HOST_TO_DEVICE, stream, KL_COPY_ASYNC));
  OK(copy(back, memory.ptr, kBytes, KL_COPY_DEVICE_TO_HOST, stream, KL_COPY_ASYNC));
  CHECK(rt().stream_query(stream) == KL_NOT_READY); // both calls returned behind the closed gate
  open = true;
  OK(rt().stream_synchronize(stream));
  CHECK(std::memcmp(back, data.data(), kBytes) == 0);
  OK(rt().host_free(pinned));
  OK(rt().host_free(back));
}

TEST(small_pageable_copies_do_not_wait) {
  Stream stream;
  Memory memory(4096);
  std::atomic<bool> open{false};
  auto gate = [&](kl_error*) {
    while (!open) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  };
  OK(enqueue(stream, "gate", gate));
  {
    const auto data = pattern(4096, 3);
    OK(copy(memory.ptr, data.data(), data.size(), KL_COPY_HOST_TO_DEVICE, stream));
  } // the source is gone before the copy happens
  open = true;
  std::vector<char> back(4096);
  OK(copy(back.data(), memory.ptr, back.size(), KL_COPY_DEVICE_TO_HOST, stream));
  CHECK(back == pattern(4096, 3));
}

TEST(memset_fills) {
  Stream stream;
  Memory memory(10000);
  OK(rt().memset_async(memory.ptr, 0x5A, 10000, stream));
  OK(rt().memset_async(memory.bytes() + 100, 0, 50, stream));
  OK(rt().memset_async(memory.ptr, 1, 0, stream)); // nothing
  std::vector<char> back(10000);
  OK(copy(back.data(), memory.ptr, back.size(), KL_COPY_DEVICE_TO_HOST, stream));
  for (size_t i = 0; i < back.size(); ++i) {
    CHECK(back[i] == (i >= 100 && i < 150 ? 0 : 0x5A));
  }
}

TEST(wrong_copies_are_refused) {
  Stream stream;
  Memory memory(4096);
  char host[64] = {};
  CHECK(copy(host, host + 8, 8, KL_COPY_HOST_TO_DEVICE, stream) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "does not lie in the memory of a kunlun device"));
  CHECK(copy(memory.ptr, nullptr, 8, KL_COPY_HOST_TO_DEVICE, stream) == KL_ERROR_VALUE);
  CHECK(copy(memory.ptr, memory.ptr, 8, KL_COPY_HOST_TO_DEVICE, stream) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "said to be host memory but lies in the memory of device 0"));
  CHECK(copy(memory.ptr, host, 8, static_cast<kl_copy_kind>(7), stream) == KL_ERROR_VALUE);
  CHECK(copy(memory.ptr, memory.ptr, uint64_t{1} << 60, KL_COPY_DEVICE_TO_DEVICE, stream) == KL_ERROR_VALUE);
  CHECK(rt().memset_async(host, 0, 8, stream) == KL_ERROR_VALUE);
  OK(rt().stream_synchronize(stream)); // none of them was enqueued
}

TEST(pointers_are_known_from_within) {
  kl_pointer_info info{};
  Memory memory(10000, 1);
  OK(rt().pointer_info(memory.bytes() + 9999, &info));
  CHECK(info.type == KL_POINTER_DEVICE && info.device == 1 && info.base == memory.ptr && info.size == 12288);
  OK(rt().pointer_info(memory.bytes() + 12288, &info)); // the next page belongs to nobody
  CHECK(info.type == KL_POINTER_UNKNOWN);
  void* pinned = nullptr;
  OK(rt().host_malloc(5000, &pinned));
  OK(rt().pointer_info(static_cast<char*>(pinned) + 4999, &info));
  CHECK(info.type == KL_POINTER_HOST && info.device == -1 && info.base == pinned && info.size == 8192);
  OK(rt().host_free(pinned));
  OK(rt().pointer_info(pinned, &info));
  CHECK(info.type == KL_POINTER_UNKNOWN);
  CHECK(rt().host_free(pinned) == KL_ERROR_VALUE);
  int local = 0;
  OK(rt().pointer_info(&local, &info));
  CHECK(info.type == KL_POINTER_UNKNOWN && info.device == -1);
}

TEST(segments_split_and_merge) {
  std::mt19937 random(7);
  uint64_t free_before = 0, total = 0, free_now = 0;
  OK(rt().memory_info(0, &free_before, &total));
  std::map<char*, uint64_t> held;
  uint64_t held_bytes = 0;
  for (int step = 0; step < 2000; ++step) {
    if (held.empty() || random() % 3 != 0) {
      const uint64_t bytes = 1 + random() % 300'000;
      void* ptr = nullptr;
      if (rt().memory_alloc(0, bytes, KL_MEMORY_MAIN, &ptr) != KL_SUCCESS) {
        CHECK(lastError().code == KL_ERROR_OUT_OF_MEMORY);
        continue;
      }
      const uint64_t rounded = (bytes + 4095) / 4096 * 4096;
      // No overlap with its neighbours.
      auto next = held.upper_bound(static_cast<char*>(ptr));
      CHECK(next == held.end() || static_cast<char*>(ptr) + rounded <= next->first);
      CHECK(next == held.begin() || std::prev(next)->first + std::prev(next)->second <= ptr);
      held.emplace(static_cast<char*>(ptr), rounded);
      held_bytes += rounded;
    } else {
      auto victim = std::next(held.begin(), static_cast<long>(random() % held.size()));
      OK(rt().memory_free(0, victim->first));
      held_bytes -= victim->second;
      held.erase(victim);
    }
    OK(rt().memory_info(0, &free_now, &total));
    CHECK(free_now == free_before - held_bytes);
  }
  for (const auto& [ptr, bytes] : held) {
    OK(rt().memory_free(0, ptr));
  }
  OK(rt().memory_info(0, &free_now, &total));
  CHECK(free_now == free_before);
  if (free_before == total) {
    Memory everything(total); // in one piece again
  }
}

TEST(memory_given_back_comes_empty) {
  Stream stream;
  constexpr size_t kBytes = size_t{1} << 20;
  void* ptr = nullptr;
  OK(rt().memory_alloc(0, kBytes, KL_MEMORY_MAIN, &ptr));
  OK(rt().memset_async(ptr, 0x77, kBytes, stream));
  OK(rt().stream_synchronize(stream));
  OK(rt().memory_free(0, ptr));
  void* again = nullptr;
  OK(rt().memory_alloc(0, kBytes, KL_MEMORY_MAIN, &again));
  CHECK(again == ptr); // best fit
  std::vector<char> back(kBytes);
  OK(copy(back.data(), again, kBytes, KL_COPY_DEVICE_TO_HOST, stream));
  CHECK(back == std::vector<char>(kBytes, 0));
  OK(rt().memory_free(0, again));
}

TEST(wrong_frees_are_refused) {
  Memory memory(8192);
  CHECK(rt().memory_free(0, memory.bytes() + 4096) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "is not the start of a segment of device 0"));
  CHECK(rt().memory_free(1, memory.ptr) == KL_ERROR_VALUE);
  int local = 0;
  CHECK(rt().memory_free(0, &local) == KL_ERROR_VALUE);
  OK(rt().memory_free(0, nullptr));
  void* out = nullptr;
  CHECK(rt().memory_alloc(0, 4096, KL_MEMORY_L3, &out) == KL_ERROR_NOT_IMPLEMENTED);
  CHECK(rt().memory_alloc(0, 4096, 42, &out) == KL_ERROR_VALUE);
}

TEST(memory_from_many_threads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([t] {
      Stream stream(t % 2);
      for (int i = 0; i < 40; ++i) {
        const size_t bytes = 4096 * static_cast<size_t>(1 + (i * 7 + t) % 40);
        Memory memory(bytes, t % 2);
        const auto data = pattern(bytes, t * 100 + i);
        std::vector<char> back(bytes);
        OK(copy(memory.ptr, data.data(), bytes, KL_COPY_HOST_TO_DEVICE, stream));
        OK(copy(back.data(), memory.ptr, bytes, KL_COPY_DEVICE_TO_HOST, stream));
        CHECK(back == data);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

// With KUNLUN_SIM_MEMORY=64M.
TEST_ALONE(out_of_memory_tells_the_numbers) {
  uint64_t free_bytes = 0, total = 0;
  OK(rt().memory_info(0, &free_bytes, &total)); // before anything has started
  CHECK(total == uint64_t{64} << 20 && free_bytes == total);
  Memory most(uint64_t{40} << 20);
  void* out = nullptr;
  CHECK(rt().memory_alloc(0, uint64_t{30} << 20, KL_MEMORY_MAIN, &out) == KL_ERROR_OUT_OF_MEMORY);
  const kl_error error = lastError();
  CHECK(error.device == 0);
  CHECK(contains(error.text, "simulated device 0 is out of memory: 30.00 MiB asked for, 24.00 MiB free of 64.00 MiB"));
  CHECK(rt().memory_alloc(0, UINT64_MAX, KL_MEMORY_MAIN, &out) == KL_ERROR_OUT_OF_MEMORY);
  Memory rest(uint64_t{24} << 20); // the device goes on
  OK(rt().memory_info(0, &free_bytes, &total));
  CHECK(free_bytes == 0);
  Memory elsewhere(uint64_t{64} << 20, 1); // budgets are per device
}

// With KUNLUN_SIM_POISON=1.
TEST_ALONE(fresh_memory_is_poisoned) {
  Stream stream;
  constexpr size_t kBytes = size_t{5} << 20;
  Memory memory(kBytes);
  std::vector<unsigned char> back(kBytes);
  OK(copy(back.data(), memory.ptr, kBytes, KL_COPY_DEVICE_TO_HOST, stream));
  CHECK(back == std::vector<unsigned char>(kBytes, 0xCB));
}
