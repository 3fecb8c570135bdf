// Events: waits between streams and devices, re-recording and timing.
#include <atomic>
#include <chrono>
#include <memory>
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

struct Flag {
  std::atomic<bool> set{false};
  kl_result operator()(kl_error*) {
    set = true;
    return KL_SUCCESS;
  }
};

} // namespace

TEST(an_event_orders_two_streams_of_two_devices) {
  Stream a(0), b(1);
  Event event(0);
  Gate gate;
  Flag before;
  bool seen = false;
  auto look = [&](kl_error*) {
    seen = before.set;
    return KL_SUCCESS;
  };
  OK(enqueue(a, "gate", gate));
  OK(enqueue(a, "before", before));
  OK(rt().event_record(event, a));
  OK(rt().stream_wait_event(b, event));
  OK(enqueue(b, "look", look));
  CHECK(rt().event_query(event) == KL_NOT_READY);
  CHECK(rt().stream_query(b) == KL_NOT_READY);
  gate.open = true;
  OK(rt().stream_synchronize(b));
  CHECK(seen);
  OK(rt().event_query(event));
  OK(rt().event_synchronize(event));
}

TEST(an_event_never_recorded_is_complete) {
  Stream stream;
  Event event;
  OK(rt().event_query(event));
  OK(rt().event_synchronize(event));
  OK(rt().stream_wait_event(stream, event));
  uint64_t sequence = 1;
  OK(rt().stream_sequence(stream, &sequence));
  CHECK(sequence == 0);
}

TEST(a_wait_keeps_the_record_it_was_asked_for) {
  Stream a, b, c;
  Event event;
  Gate first, second;
  Flag done;
  OK(enqueue(a, "first", first));
  OK(rt().event_record(event, a));
  OK(rt().stream_wait_event(b, event)); // for the first record
  OK(enqueue(b, "done", done));
  OK(enqueue(c, "second", second));
  OK(rt().event_record(event, c)); // again, elsewhere
  CHECK(rt().event_query(event) == KL_NOT_READY);
  first.open = true;
  OK(rt().stream_synchronize(b)); // does not wait for the second gate
  CHECK(done.set);
  CHECK(rt().event_query(event) == KL_NOT_READY);
  second.open = true;
  OK(rt().event_synchronize(event));
  OK(rt().stream_synchronize(c));
}

TEST(an_event_may_be_destroyed_while_a_stream_waits_for_it) {
  for (int round = 0; round < 30; ++round) {
    Gate gate;
    Flag done;
    Stream b(1);
    {
      Stream a(0);
      OK(enqueue(a, "gate", gate));
      {
        Event event(0);
        OK(rt().event_record(event, a));
        OK(rt().stream_wait_event(b, event));
        OK(enqueue(b, "done", done));
      }
      CHECK(!done.set);
      gate.open = true;
    } // the recording stream too
    OK(rt().stream_synchronize(b));
    CHECK(done.set);
  }
}

TEST(thirty_two_streams_with_crossed_waits) {
  constexpr size_t kStreams = 32;
  constexpr size_t kRounds = 60;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<Stream>(static_cast<int>(i % 2)));
    events.push_back(std::make_unique<Event>(static_cast<int>(i % 2)));
  }
  // Each stream adds one to its own counter; after a crossed wait a stream must see the other's counter at least as
  // high as it was when the event was recorded.
  struct Counter {
    std::atomic<size_t> value{0};
  };
  std::vector<Counter> counters(kStreams);
  struct Payload {
    Counter* own;
    Counter* other;
    size_t at_least;
  };
  static std::atomic<int> early{0};
  early = 0;
  for (size_t round = 1; round <= kRounds; ++round) {
    for (size_t i = 0; i < kStreams; ++i) {
      const size_t other = (i * 7 + round) % kStreams;
      // Streams before this one have recorded in this round already.
      const size_t at_least = other < i ? round : round - 1;
      OK(rt().stream_wait_event(*streams[i], *events[other]));
      const Payload payload{&counters[i], &counters[other], at_least};
      OK(kunlun::sim::enqueue(
          *streams[i],
          "step",
          [](void*, void* p, kl_error*) {
            const auto* mine = static_cast<const Payload*>(p);
            early += mine->other->value >= mine->at_least ? 0 : 1;
            ++mine->own->value;
            return KL_SUCCESS;
          },
          nullptr,
          &payload,
          sizeof(payload)));
      OK(rt().event_record(*events[i], *streams[i]));
    }
  }
  OK(rt().device_synchronize(0));
  OK(rt().device_synchronize(1));
  CHECK(early == 0);
  for (const auto& counter : counters) {
    CHECK(counter.value == kRounds);
  }
}

TEST(recording_and_waiting_from_many_threads) {
  Stream a(0), b(0);
  Event event(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        OK(rt().event_record(event, t % 2 == 0 ? a : b));
        OK(rt().stream_wait_event(t % 2 == 0 ? b : a, event));
        if (i % 50 == 0) {
          OK(rt().event_synchronize(event));
        }
        const kl_result ready = rt().event_query(event);
        CHECK(ready == KL_SUCCESS || ready == KL_NOT_READY);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  OK(rt().device_synchronize(0));
}

TEST(elapsed_time_is_measured_on_the_stream) {
  Stream stream;
  Event start(0, KL_EVENT_TIMING), end(0, KL_EVENT_TIMING);
  auto rest = [](kl_error*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return KL_SUCCESS;
  };
  OK(rt().event_record(start, stream));
  OK(enqueue(stream, "rest", rest));
  OK(rt().event_record(end, stream));
  OK(rt().event_synchronize(end));
  double milliseconds = 0;
  OK(rt().event_elapsed(start, end, &milliseconds));
  CHECK(milliseconds >= 20); // no upper bound: the machine may be busy
  OK(rt().event_elapsed(end, start, &milliseconds));
  CHECK(milliseconds <= -20);
}

TEST(elapsed_time_is_refused_with_a_reason) {
  Stream stream;
  Event plain, start(0, KL_EVENT_TIMING), end(0, KL_EVENT_TIMING), elsewhere(1, KL_EVENT_TIMING);
  double milliseconds = 0;
  CHECK(rt().event_elapsed(plain, end, &milliseconds) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "timing enabled"));
  CHECK(rt().event_elapsed(start, end, &milliseconds) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "must be recorded"));
  CHECK(rt().event_elapsed(start, elsewhere, &milliseconds) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "two events of one device"));
  Gate gate;
  OK(rt().event_record(start, stream));
  OK(enqueue(stream, "gate", gate));
  OK(rt().event_record(end, stream));
  CHECK(rt().event_elapsed(start, end, &milliseconds) == KL_NOT_READY);
  CHECK(contains(lastError().text, "must be completed"));
  gate.open = true;
  OK(rt().event_synchronize(end));
  OK(rt().event_elapsed(start, end, &milliseconds));
}

TEST(an_event_is_recorded_on_its_own_device_only) {
  Stream stream(1);
  Event event(0);
  CHECK(rt().event_record(event, stream) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "an event of device 0 cannot be recorded on a stream of device 1"));
}
