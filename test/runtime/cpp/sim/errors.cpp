// Failures of work: skipping, spreading, the one report, poison and reset.
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "check.h"

using namespace test;

namespace {

struct Gate {
  std::atomic<bool> open{false};
  kl_result operator()(kl_error*) {
    while (!open) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  }
};

struct Count {
  std::atomic<int> ran{0};
  kl_result operator()(kl_error*) {
    ++ran;
    return KL_SUCCESS;
  }
};

struct Fail {
  kl_result code = KL_ERROR_INDEX;
  kl_result operator()(kl_error* error) {
    std::snprintf(error->text, sizeof(error->text), "index 7 is out of range");
    return code;
  }
};

// A host call that remembers what it was told.
struct Host {
  std::atomic<int> calls{0};
  kl_error told{};
  static kl_result run(void* arg, const kl_error* error, kl_error*) {
    auto* self = static_cast<Host*>(arg);
    if (error != nullptr) {
      self->told = *error;
    }
    ++self->calls;
    return KL_SUCCESS;
  }
};

} // namespace

TEST(a_failure_is_reported_once_and_names_the_item) {
  Stream stream(1);
  Count before, after, later;
  Fail fail;
  OK(enqueue(stream, "before", before));
  OK(enqueue(stream, "aten::embedding", fail));
  Gate gate; // never runs: it lies behind the failure
  // Whether the thread has failed yet or not, this launch either reports or is skipped.
  const kl_result launched = enqueue(stream, "gate", gate);
  const kl_result synchronized = rt().stream_synchronize(stream);
  CHECK((launched == KL_ERROR_INDEX) != (synchronized == KL_ERROR_INDEX));
  const kl_error error = lastError();
  CHECK(error.code == KL_ERROR_INDEX && error.device == 1 && error.sequence == 2);
  CHECK(std::string(error.op) == "aten::embedding" && std::string(error.text) == "index 7 is out of range");
  CHECK(before.ran == 1);
  OK(rt().stream_synchronize(stream)); // clean again
  OK(enqueue(stream, "later", later));
  OK(rt().stream_synchronize(stream));
  CHECK(later.ran == 1);
}

TEST(what_was_enqueued_before_the_report_is_skipped) {
  Stream stream;
  Gate gate;
  Fail fail;
  Count skipped, later;
  Host host;
  Event event;
  OK(enqueue(stream, "gate", gate));
  OK(enqueue(stream, "fail", fail));
  for (int i = 0; i < 100; ++i) {
    OK(enqueue(stream, "skipped", skipped)); // the gate is closed, so nothing has failed yet
  }
  OK(rt().launch_host(stream, "host", Host::run, &host));
  OK(rt().event_record(event, stream));
  gate.open = true;
  CHECK(rt().event_synchronize(event) == KL_ERROR_INDEX); // the report
  CHECK(skipped.ran == 0);
  CHECK(host.calls == 1); // it happened, and was told
  CHECK(host.told.code == KL_ERROR_INDEX && host.told.sequence == 2 && std::string(host.told.op) == "fail");
  OK(rt().event_synchronize(event)); // once
  OK(enqueue(stream, "later", later));
  OK(rt().stream_synchronize(stream));
  CHECK(later.ran == 1);
}

TEST(a_report_comes_before_the_thread_has_reached_the_rest) {
  Stream stream, other;
  Gate first, second;
  Fail fail;
  Count skipped, later;
  Event second_passed, failed;
  OK(enqueue(other, "second gate", second));
  OK(rt().event_record(second_passed, other));
  OK(enqueue(stream, "first gate", first));
  OK(enqueue(stream, "fail", fail));
  OK(rt().event_record(failed, stream));
  OK(rt().stream_wait_event(stream, second_passed)); // kept although it lies behind the failure
  for (int i = 0; i < 100; ++i) {
    OK(enqueue(stream, "skipped", skipped));
  }
  first.open = true;
  while (rt().event_query(failed) == KL_NOT_READY) {
    std::this_thread::yield();
  }
  CHECK(enqueue(stream, "not enqueued", skipped) == KL_ERROR_INDEX);
  OK(enqueue(stream, "later", later)); // clean for the caller although the thread is still behind
  CHECK(rt().stream_query(stream) == KL_NOT_READY);
  second.open = true;
  OK(rt().stream_synchronize(stream));
  CHECK(skipped.ran == 0);
  CHECK(later.ran == 1);
  OK(rt().stream_synchronize(other));
}

TEST(a_failure_spreads_through_events) {
  Stream a(0), b(1), c(0);
  Event on_a(0), on_b(1);
  Gate gate;
  Fail fail;
  Count skipped, unaffected;
  OK(enqueue(a, "gate", gate));
  OK(enqueue(a, "fail", fail));
  OK(rt().event_record(on_a, a));
  OK(rt().stream_wait_event(b, on_a));
  OK(enqueue(b, "skipped", skipped));
  OK(rt().event_record(on_b, b));
  OK(rt().stream_wait_event(c, on_b));
  OK(enqueue(c, "skipped", skipped));
  gate.open = true;
  // Each stream reports once, and each names the origin.
  for (const kl_stream stream : {c.handle, b.handle, a.handle}) {
    CHECK(rt().stream_synchronize(stream) == KL_ERROR_INDEX);
    CHECK(lastError().device == 0 && lastError().sequence == 2 && std::string(lastError().op) == "fail");
    OK(rt().stream_synchronize(stream));
    OK(enqueue(stream, "unaffected", unaffected));
    OK(rt().stream_synchronize(stream));
  }
  CHECK(skipped.ran == 0);
  CHECK(unaffected.ran == 3);
}

TEST(an_event_recorded_after_the_report_is_clean) {
  Stream a, b;
  Event event;
  Fail fail;
  Count work;
  OK(enqueue(a, "fail", fail));
  CHECK(rt().stream_synchronize(a) == KL_ERROR_INDEX);
  OK(rt().event_record(event, a));
  OK(rt().stream_wait_event(b, event));
  OK(enqueue(b, "work", work));
  OK(rt().stream_synchronize(b));
  CHECK(work.ran == 1);
}

TEST(a_device_synchronisation_reports_a_spread_failure_once) {
  Stream a, b;
  Event event;
  Fail fail;
  OK(enqueue(a, "fail", fail));
  OK(rt().event_record(event, a));
  OK(rt().stream_wait_event(b, event));
  CHECK(rt().device_synchronize(0) == KL_ERROR_INDEX);
  OK(rt().device_synchronize(0));
  OK(rt().stream_synchronize(a));
  OK(rt().stream_synchronize(b));
}

TEST(every_launching_call_reports) {
  Stream stream;
  Fail fail;
  Memory memory(1 << 20);
  std::vector<char> host(1 << 20);
  const auto untilReported = [&](auto call) {
    OK(enqueue(stream, "fail", fail));
    while (rt().stream_query(stream) == KL_NOT_READY) { // a query does not report
      std::this_thread::yield();
    }
    OK(rt().stream_query(stream));
    CHECK(call() == KL_ERROR_INDEX);
    CHECK(std::string(lastError().op) == "fail");
    OK(rt().stream_synchronize(stream));
  };
  untilReported([&] { return rt().memcpy_async(host.data(), memory.ptr, 4, KL_COPY_DEVICE_TO_HOST, 0, stream); });
  untilReported([&] { return rt().memcpy_async(memory.ptr, host.data(), 4, KL_COPY_HOST_TO_DEVICE, 0, stream); });
  untilReported([&] { return rt().memset_async(memory.ptr, 0, 4, stream); });
  untilReported([&] { return rt().stream_synchronize(stream); });
  untilReported([&] { return rt().device_synchronize(0); });
  Count work;
  untilReported([&] { return enqueue(stream, "work", work); });
  CHECK(work.ran == 0);
}

TEST(a_copy_to_the_host_reports_what_it_waited_for) {
  Stream stream;
  Memory memory(1 << 20);
  std::vector<char> host(1 << 20, 'h');
  Gate gate;
  Fail fail;
  OK(enqueue(stream, "gate", gate));
  OK(enqueue(stream, "fail", fail));
  std::thread opener([&] { gate.open = true; });
  // Whether it finds the failure before or after its own wait.
  CHECK(rt().memcpy_async(host.data(), memory.ptr, host.size(), KL_COPY_DEVICE_TO_HOST, 0, stream) == KL_ERROR_INDEX);
  opener.join();
  CHECK(host == std::vector<char>(1 << 20, 'h')); // the copy was skipped
  OK(rt().stream_synchronize(stream));
}

TEST(a_host_call_may_fail) {
  Stream stream;
  OK(rt().launch_host(
      stream,
      "callback",
      [](void*, const kl_error*, kl_error* result) {
        std::snprintf(result->text, sizeof(result->text), "no luck");
        return KL_ERROR_LINALG;
      },
      nullptr));
  CHECK(rt().stream_synchronize(stream) == KL_ERROR_LINALG);
  CHECK(std::string(lastError().op) == "callback" && std::string(lastError().text) == "no luck");
}

TEST(an_exception_of_a_kernel_is_a_failure) {
  Stream stream;
  auto throws = [](kl_error*) -> kl_result { throw std::runtime_error("thrown"); };
  OK(enqueue(stream, "throws", throws));
  CHECK(rt().stream_synchronize(stream) == KL_ERROR_RUNTIME);
  CHECK(std::string(lastError().text) == "thrown");
  auto silent = [](kl_error*) { return KL_ERROR_TYPE; };
  OK(enqueue(stream, "silent", silent));
  CHECK(rt().stream_synchronize(stream) == KL_ERROR_TYPE);
  CHECK(std::string(lastError().text) == "failed without a message");
}

TEST(destroying_a_stream_hands_out_its_failure) {
  kl_stream stream = nullptr;
  OK(rt().stream_create(0, 0, &stream));
  Fail fail;
  OK(enqueue(stream, "fail", fail));
  CHECK(rt().stream_destroy(stream) == KL_ERROR_INDEX);
  OK(rt().device_synchronize(0)); // it is gone all the same
}

TEST(a_device_failure_poisons_until_the_reset) {
  Stream a(1), b(1), elsewhere(0);
  Fail fail{KL_ERROR_DEVICE};
  Count work;
  Host host;
  Event event(1);
  Memory memory(4096, 1);
  OK(rt().memset_async(memory.ptr, 1, 4096, b));
  OK(rt().stream_synchronize(b));
  OK(enqueue(a, "fail", fail));
  CHECK(rt().stream_synchronize(a) == KL_ERROR_DEVICE);
  for (int i = 0; i < 2; ++i) { // again and again, from every call
    CHECK(rt().stream_synchronize(a) == KL_ERROR_DEVICE);
    CHECK(rt().stream_synchronize(b) == KL_ERROR_DEVICE);
    CHECK(rt().device_synchronize(1) == KL_ERROR_DEVICE);
    CHECK(enqueue(b, "work", work) == KL_ERROR_DEVICE);
    CHECK(rt().event_record(event, b) == KL_ERROR_DEVICE);
    CHECK(rt().launch_host(b, "host", Host::run, &host) == KL_ERROR_DEVICE);
    kl_stream more = nullptr;
    CHECK(rt().stream_create(1, 0, &more) == KL_ERROR_DEVICE);
    void* out = nullptr;
    CHECK(rt().memory_alloc(1, 4096, KL_MEMORY_MAIN, &out) == KL_ERROR_DEVICE);
    CHECK(std::string(lastError().op) == "fail" && lastError().device == 1);
  }
  OK(enqueue(elsewhere, "work", work)); // other devices are well
  OK(rt().stream_synchronize(elsewhere));
  CHECK(work.ran == 1);

  OK(rt().device_reset(1));
  OK(enqueue(a, "work", work));
  OK(rt().event_record(event, a));
  OK(rt().stream_wait_event(b, event));
  char contents = 'x';
  OK(rt().memcpy_async(&contents, memory.ptr, 1, KL_COPY_DEVICE_TO_HOST, 0, b));
  CHECK(contents == 0); // memory is lost
  CHECK(work.ran == 2);
}

TEST(a_reset_drops_work_and_wakes_waiting_streams) {
  Stream a(1), elsewhere(0);
  Event event(0);
  Gate gate;
  Count dropped;
  Host host;
  OK(enqueue(elsewhere, "gate", gate));
  OK(rt().event_record(event, elsewhere));
  OK(rt().stream_wait_event(a, event)); // the gate is closed
  OK(enqueue(a, "dropped", dropped));
  OK(rt().launch_host(a, "host", Host::run, &host));
  OK(rt().device_reset(1));
  CHECK(dropped.ran == 0);
  CHECK(host.calls == 1 && contains(host.told.text, "dropped because the device was reset"));
  OK(rt().stream_synchronize(a));
  OK(enqueue(a, "work", dropped));
  OK(rt().stream_synchronize(a));
  CHECK(dropped.ran == 1);
  gate.open = true;
  OK(rt().stream_synchronize(elsewhere));
}

TEST(failures_under_load_keep_the_streams_usable) {
  constexpr int kThreads = 4;
  Stream shared, second(1);
  Event event(0);
  std::atomic<int> reports{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      static Fail fail;
      static Count count;
      for (int i = 0; i < 400; ++i) {
        kl_result result = KL_SUCCESS;
        switch ((i * 5 + t) % 7) {
          case 0:
            result = enqueue(shared, "fail", fail);
            break;
          case 1:
            result = rt().event_record(event, shared);
            break;
          case 2:
            result = rt().stream_wait_event(second, event);
            break;
          case 3:
            result = rt().stream_synchronize(second);
            break;
          case 4:
            result = rt().stream_synchronize(shared);
            break;
          case 5:
            result = enqueue(second, "count", count);
            break;
          default:
            result = enqueue(shared, "count", count);
            break;
        }
        CHECK(result == KL_SUCCESS || result == KL_ERROR_INDEX);
        reports += result == KL_ERROR_INDEX ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(reports > 0);
  // What is left is reported once; then both streams work.
  for (const kl_stream stream : {shared.handle, second.handle}) {
    rt().stream_synchronize(stream);
    OK(rt().stream_synchronize(stream));
    Count last;
    OK(enqueue(stream, "last", last));
    OK(rt().stream_synchronize(stream));
    CHECK(last.ran == 1);
  }
}
