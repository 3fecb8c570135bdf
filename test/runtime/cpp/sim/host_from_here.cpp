// Host calls that begin on the calling thread and may go on on the stream's.
#include <cstring>
#include <functional>
#include <thread>

#include "check.h"
#include "runtime/sim/Stream.h"

using namespace test;

namespace {

struct Parts {
  std::function<kl_result(kl_error*)> begin, rest;
};

void hostFromHere(kl_stream stream, Parts& parts) {
  reinterpret_cast<kunlun::sim::Stream*>(stream)->hostFromHere(
      "in two parts",
      [](void* arg, const kl_error* failure, kl_error* result) {
        CHECK(failure == nullptr);
        return static_cast<Parts*>(arg)->begin(result);
      },
      [](void* arg, const kl_error*, kl_error* result) { return static_cast<Parts*>(arg)->rest(result); },
      &parts);
}

std::function<kl_result(kl_error*)> never() {
  return [](kl_error*) -> kl_result { failCheck(__FILE__, __LINE__, "this part must not run"); };
}

// The call begins on the caller's thread only where the stream has one.
void startThread(kl_stream stream) {
  std::function<kl_result(kl_error*)> nothing = [](kl_error*) { return KL_SUCCESS; };
  OK(enqueue(stream, "nothing", nothing));
  OK(rt().stream_synchronize(stream));
}

} // namespace

TEST(a_beginning_that_is_all_leaves_nothing_to_the_stream) {
  Stream stream;
  startThread(stream);
  for (int i = 0; i < 10000; ++i) { // more than the ring holds, if anything stayed there
    int calls = 0;
    Parts parts{
        [&](kl_error*) {
          ++calls;
          return KL_SUCCESS;
        },
        never()};
    hostFromHere(stream, parts);
    CHECK(calls == 1);
    OK(rt().stream_query(stream));
  }
  uint64_t sequence = 0;
  OK(rt().stream_sequence(stream, &sequence));
  CHECK(sequence == 10001);
}

TEST(the_rest_comes_before_what_is_enqueued_meanwhile) {
  for (const bool is_done : {true, false}) {
    Stream stream;
    startThread(stream);
    std::vector<int> order;
    std::function<kl_result(kl_error*)> later = [&](kl_error*) {
      order.push_back(3);
      return KL_SUCCESS;
    };
    Event event;
    Parts parts{
        [&](kl_error*) {
          OK(enqueue(stream, "later", later));
          std::thread([&] { OK(rt().event_record(event, stream)); }).join();
          CHECK(rt().event_query(event) == KL_NOT_READY);
          CHECK(rt().stream_query(stream) == KL_NOT_READY);
          order.push_back(1);
          return is_done ? KL_SUCCESS : KL_NOT_READY;
        },
        [&](kl_error*) {
          CHECK(kunlun::sim::currentStream() == stream.handle);
          order.push_back(2);
          return KL_SUCCESS;
        }};
    hostFromHere(stream, parts);
    OK(rt().stream_synchronize(stream));
    OK(rt().event_query(event));
    CHECK((order == (is_done ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3})));
  }
}

TEST(either_part_may_fail) {
  for (const bool fails_at_once : {true, false}) {
    Stream stream;
    startThread(stream);
    const auto fail = [](kl_error* error) -> kl_result {
      std::strcpy(error->text, "on purpose");
      return KL_ERROR_VALUE;
    };
    Parts parts{[&](kl_error* error) { return fails_at_once ? fail(error) : KL_NOT_READY; }, fail};
    hostFromHere(stream, parts);
    CHECK(rt().stream_synchronize(stream) == KL_ERROR_VALUE);
    CHECK(contains(lastError().text, "on purpose"));
    CHECK(std::strcmp(lastError().op, "in two parts") == 0);
    OK(rt().stream_synchronize(stream));
  }
}

TEST(a_stream_that_has_failed_runs_the_rest_alone) {
  Stream stream;
  std::function<kl_result(kl_error*)> fail = [](kl_error*) { return KL_ERROR_RUNTIME; };
  OK(enqueue(stream, "fails", fail));
  int calls = 0;
  Parts parts{never(), [&](kl_error*) {
                ++calls;
                return KL_SUCCESS;
              }};
  // Its failure has not been delivered when the call comes.
  while (rt().stream_query(stream) == KL_NOT_READY) {
    std::this_thread::yield();
  }
  hostFromHere(stream, parts);
  rt().stream_synchronize(stream);
  OK(rt().stream_synchronize(stream));
  CHECK(calls == 1);
}

TEST(an_event_recorded_on_an_idle_stream_has_happened) {
  Stream stream;
  Event event;
  OK(rt().event_record(event, stream));
  OK(rt().event_query(event));
  startThread(stream);
  OK(rt().event_record(event, stream));
  OK(rt().event_query(event));
}
