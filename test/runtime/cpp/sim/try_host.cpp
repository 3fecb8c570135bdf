// Host calls that the calling thread runs itself.
#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"

using namespace test;

namespace {

template <class Callable>
kl_result tryHost(kl_stream stream, Callable& callable) {
  return rt().try_host(
      stream,
      "test call",
      [](void* arg, const kl_error* error, kl_error* result) -> kl_result {
        CHECK(error == nullptr);
        return (*static_cast<Callable*>(arg))(result);
      },
      &callable);
}

// Keeps a stream busy until it is opened.
class Gate {
 public:
  explicit Gate(kl_stream stream) {
    OK(enqueue(stream, "gate", wait_));
  }
  void open() {
    open_ = true;
  }

 private:
  std::atomic<bool> open_{false};
  std::function<kl_result(kl_error*)> wait_ = [this](kl_error*) {
    while (!open_) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  };
};

} // namespace

TEST(an_idle_stream_lets_the_caller_run_its_call) {
  Stream stream;
  Memory memory(4096);
  const auto caller = std::this_thread::get_id();
  int calls = 0;
  auto call = [&](kl_error*) {
    CHECK(std::this_thread::get_id() == caller);
    CHECK(kunlun::sim::currentStream() == stream.handle);
    memory.bytes()[0] = 42; // as the chip, it may
    ++calls;
    return KL_SUCCESS;
  };
  OK(tryHost(stream, call));
  CHECK(calls == 1);
  CHECK(kunlun::sim::currentStream() == nullptr);
  uint64_t sequence = 0;
  OK(rt().stream_sequence(stream, &sequence));
  CHECK(sequence == 1);
  OK(rt().stream_query(stream));
  char seen = 0;
  OK(rt().memcpy_async(&seen, memory.ptr, 1, KL_COPY_DEVICE_TO_HOST, 0, stream));
  OK(rt().stream_synchronize(stream));
  CHECK(seen == 42);
}

TEST(a_busy_stream_does_not) {
  Stream stream;
  Gate gate(stream);
  auto never = [](kl_error*) -> kl_result { failCheck(__FILE__, __LINE__, "the call ran ahead of earlier work"); };
  CHECK(tryHost(stream, never) == KL_NOT_READY);
  gate.open();
  OK(rt().stream_synchronize(stream));
  int calls = 0;
  auto call = [&](kl_error*) {
    ++calls;
    return KL_SUCCESS;
  };
  OK(tryHost(stream, call));
  CHECK(calls == 1);
}

TEST(what_is_enqueued_meanwhile_comes_after_the_call) {
  Stream stream;
  std::vector<int> order;
  auto later = [&](kl_error*) {
    order.push_back(2);
    return KL_SUCCESS;
  };
  auto from_outside = [&](kl_error*) {
    order.push_back(3);
    return KL_SUCCESS;
  };
  auto nested = [](kl_error*) -> kl_result { failCheck(__FILE__, __LINE__, "a call ran within another"); };
  Event event;
  auto call = [&](kl_error*) {
    OK(enqueue(stream, "later", later));
    OK(rt().event_record(event, stream));
    std::thread([&] {
      CHECK(tryHost(stream, nested) == KL_NOT_READY);
      OK(enqueue(stream, "from outside", from_outside));
    }).join();
    CHECK(tryHost(stream, nested) == KL_NOT_READY);
    CHECK(rt().event_query(event) == KL_NOT_READY);
    CHECK(rt().stream_query(stream) == KL_NOT_READY);
    // It would wait for itself.
    CHECK(rt().stream_synchronize(stream) == KL_ERROR_RUNTIME);
    order.push_back(1);
    return KL_SUCCESS;
  };
  OK(tryHost(stream, call));
  OK(rt().stream_synchronize(stream));
  OK(rt().event_query(event));
  CHECK((order == std::vector<int>{1, 2, 3}));
}

TEST(a_call_that_fails_leaves_its_fault_on_the_stream) {
  Stream stream;
  auto fails = [](kl_error* error) -> kl_result {
    std::strcpy(error->text, "on purpose");
    return KL_ERROR_VALUE;
  };
  OK(tryHost(stream, fails));
  auto never = [](kl_error*) -> kl_result { failCheck(__FILE__, __LINE__, "a call ran behind a failure"); };
  CHECK(tryHost(stream, never) == KL_NOT_READY);
  CHECK(rt().stream_synchronize(stream) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "on purpose"));
  CHECK(std::strcmp(lastError().op, "test call") == 0);
  OK(rt().stream_synchronize(stream));
}

// Callers' own calls, calls of the stream's thread and plain work of many threads: each one alone, and none lost.
TEST(calls_and_work_of_many_threads_never_overlap) {
  Stream stream;
  std::atomic<int> inside{0};
  std::atomic<int> here{0};
  int total = 0; // guarded by the stream's order
  auto item = [&](kl_error*) {
    CHECK(inside.fetch_add(1) == 0);
    ++total;
    CHECK(inside.fetch_sub(1) == 1);
    return KL_SUCCESS;
  };
  constexpr int kThreads = 4;
  constexpr int kRounds = 3000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const auto result = tryHost(stream, item);
        if (result == KL_SUCCESS) {
          ++here;
        } else {
          CHECK(result == KL_NOT_READY);
          OK(enqueue(stream, "item", item));
        }
        if (i % 16 == t) {
          OK(rt().stream_synchronize(stream));
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  OK(rt().stream_synchronize(stream));
  CHECK(total == kThreads * kRounds);
  CHECK(here > 0);
}
