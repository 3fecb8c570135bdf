// Injected faults, limited links, and waits that are interrupted.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "check.h"
#include "runtime/sim/Faults.h"

using namespace test;
using kunlun::SimFault;
using Kind = kunlun::SimFault::Kind;
namespace sim = kunlun::sim;

namespace {

struct Count {
  std::atomic<int> ran{0};
  kl_result operator()(kl_error*) {
    ++ran;
    return KL_SUCCESS;
  }
};

void inject(Kind kind, uint64_t after = 0, std::optional<int> device = {}, std::optional<int64_t> nanoseconds = {}) {
  SimFault fault;
  fault.kind = kind;
  fault.after = after;
  fault.device = device;
  fault.nanoseconds = nanoseconds;
  sim::injectFault(fault);
}

void untilHanging(int streams) {
  while (sim::hangingStreams() != streams) {
    std::this_thread::yield();
  }
}

// The check of a host language, which interrupts the waits of one thread while it is armed.
std::atomic<bool> interrupt{false};
std::thread::id interrupted_thread;
int32_t checkInterrupt() {
  return interrupt && std::this_thread::get_id() == interrupted_thread ? 1 : 0;
}

struct Interrupting {
  Interrupting() {
    interrupted_thread = std::this_thread::get_id();
    OK(rt().set_interrupt_check(checkInterrupt));
    interrupt = true;
  }
  ~Interrupting() {
    interrupt = false;
    OK(rt().set_interrupt_check(nullptr));
  }
};

} // namespace

TEST(faults_count_operators_of_their_device) {
  Stream here(0), there(1);
  Count count;
  inject(Kind::Launch, 1, 1);
  inject(Kind::Kernel, 1);
  OK(enqueue(here, "first", count));   // counts for the one of every device
  OK(enqueue(there, "second", count)); // which is shown now
  CHECK(rt().stream_synchronize(there) == KL_ERROR_RUNTIME);
  CHECK(std::string(lastError().op) == "second" && lastError().device == 1);
  CHECK(enqueue(there, "third", count) == KL_ERROR_RUNTIME); // refused at once
  CHECK(std::string(lastError().op) == "third" && contains(lastError().text, "refused the launch"));
  OK(enqueue(there, "fourth", count));
  OK(rt().stream_synchronize(there));
  OK(rt().stream_synchronize(here));
  CHECK(count.ran == 2);
  CHECK(sim::pendingFaults().empty());
}

TEST(pending_faults_are_named_and_can_be_forgotten) {
  Stream stream;
  Count count;
  inject(Kind::Hang, 3, 0, 1'500'000'000);
  inject(Kind::Poison, 9);
  OK(enqueue(stream, "count", count));
  CHECK((sim::pendingFaults() == std::vector<std::string>{"hang:2:1.5@0", "poison:8"}));
  sim::clearFaults();
  for (int i = 0; i < 20; ++i) {
    OK(enqueue(stream, "count", count));
  }
  OK(rt().stream_synchronize(stream));
  CHECK(count.ran == 21);
}

TEST(a_hang_stops_one_stream_until_its_release) {
  Stream stream(1), other(1);
  Count count, free;
  Event event(1);
  inject(Kind::Hang, 0, 1);
  OK(enqueue(stream, "hung", count));
  OK(rt().event_record(event, stream));
  untilHanging(1);
  OK(enqueue(other, "free", free));
  OK(rt().stream_synchronize(other));
  CHECK(free.ran == 1 && count.ran == 0);
  CHECK(rt().stream_query(stream) == KL_NOT_READY && rt().event_query(event) == KL_NOT_READY);
  sim::releaseHangs();
  OK(rt().event_synchronize(event));
  CHECK(count.ran == 1 && sim::hangingStreams() == 0);
}

TEST(a_release_before_the_stream_gets_to_its_hang_counts) {
  Stream stream;
  Count count;
  for (int i = 0; i < 200; ++i) {
    inject(Kind::Hang);
    OK(enqueue(stream, "hung", count));
    sim::releaseHangs();
  }
  OK(rt().stream_synchronize(stream));
  CHECK(count.ran == 200);
}

TEST(a_hang_with_a_deadline_fails) {
  Stream stream;
  Count skipped, later;
  inject(Kind::Hang, 0, {}, 20'000'000);
  OK(enqueue(stream, "aten::mm", skipped));
  CHECK(rt().stream_synchronize(stream) == KL_ERROR_RUNTIME);
  CHECK(std::string(lastError().op) == "aten::mm" && contains(lastError().text, "given up after 0.02 seconds"));
  OK(enqueue(stream, "later", later));
  OK(rt().stream_synchronize(stream));
  CHECK(skipped.ran == 0 && later.ran == 1);
}

TEST(a_reset_ends_hangs_and_slow_copies) {
  Stream hung(1), copying(1);
  Memory memory(1 << 20, 1);
  std::vector<char> host(1 << 20);
  Count dropped, later;
  inject(Kind::Hang, 0, 1);
  OK(enqueue(hung, "hung", dropped));
  untilHanging(1);
  sim::setCopySpeed(1); // this will take eleven days
  OK(rt().memcpy_async(memory.ptr, host.data(), host.size(), KL_COPY_HOST_TO_DEVICE, KL_COPY_ASYNC, copying));
  OK(rt().device_reset(1));
  sim::setCopySpeed(std::nullopt);
  CHECK(dropped.ran == 0 && sim::hangingStreams() == 0);
  for (const kl_stream stream : {hung.handle, copying.handle}) {
    OK(rt().stream_synchronize(stream));
    OK(enqueue(stream, "later", later));
    OK(rt().stream_synchronize(stream));
  }
  CHECK(later.ran == 2);
}

TEST(a_poisoned_device_with_a_hang_is_reset) {
  Stream hung(1), broken(1);
  Count count;
  inject(Kind::Hang, 0, 1);
  OK(enqueue(hung, "hung", count));
  inject(Kind::Poison, 0, 1);
  OK(enqueue(broken, "broken", count));
  while (enqueue(broken, "more", count) != KL_ERROR_DEVICE) {
    std::this_thread::yield();
  }
  CHECK(contains(lastError().text, "broke the device") && std::string(lastError().op) == "broken");
  OK(rt().device_reset(1));
  const int before = count.ran;
  OK(enqueue(hung, "count", count));
  OK(rt().device_synchronize(1));
  CHECK(count.ran == before + 1);
}

TEST(links_take_their_time) {
  using Clock = std::chrono::steady_clock;
  Stream stream(0);
  Memory here(1 << 20, 0), there(1 << 20, 1), also_here(1 << 20, 0);
  OK(rt().memset_async(here.ptr, 7, 1 << 20, stream));
  sim::setLinkSpeed(20 << 20);
  auto begin = Clock::now();
  OK(rt().memcpy_async(there.ptr, here.ptr, 1 << 20, KL_COPY_DEVICE_TO_DEVICE, 0, stream));
  OK(rt().stream_synchronize(stream));
  CHECK(Clock::now() - begin >= std::chrono::milliseconds(50));
  sim::setLinkSpeed(1); // not taken inside a device
  OK(rt().memcpy_async(also_here.ptr, here.ptr, 1 << 20, KL_COPY_DEVICE_TO_DEVICE, 0, stream));
  OK(rt().stream_synchronize(stream));
  sim::setLinkSpeed(20 << 20);
  // What goes by another way, as a collective would.
  begin = Clock::now();
  auto pass = [](kl_error*) { return sim::passLink(0, 1 << 20); };
  OK(enqueue(stream, "pass", pass));
  OK(rt().stream_synchronize(stream));
  CHECK(Clock::now() - begin >= std::chrono::milliseconds(50));
  CHECK(sim::passLink(0, 1) == KL_ERROR_RUNTIME && contains(lastError().text, "thread of a stream"));
  sim::setLinkSpeed(std::nullopt);
  std::vector<char> host(1 << 20);
  OK(rt().memcpy_async(host.data(), there.ptr, host.size(), KL_COPY_DEVICE_TO_HOST, 0, stream));
  CHECK(host == std::vector<char>(1 << 20, 7));
}

TEST(waits_are_interrupted_and_the_work_goes_on) {
  Stream stream;
  Event event;
  Memory memory(1 << 20);
  std::vector<char> host(1 << 20, 'h');
  Count count;
  inject(Kind::Hang);
  OK(enqueue(stream, "hung", count));
  OK(rt().event_record(event, stream));
  {
    Interrupting scope;
    CHECK(rt().stream_synchronize(stream) == KL_ERROR_INTERRUPTED);
    CHECK(rt().event_synchronize(event) == KL_ERROR_INTERRUPTED);
    CHECK(rt().device_synchronize(0) == KL_ERROR_INTERRUPTED);
    CHECK(
        rt().memcpy_async(host.data(), memory.ptr, host.size(), KL_COPY_DEVICE_TO_HOST, 0, stream) ==
        KL_ERROR_INTERRUPTED);
    kl_result full = KL_SUCCESS;
    for (int i = 0; i < 100'000 && full == KL_SUCCESS; ++i) {
      full = enqueue(stream, "count", count);
    }
    CHECK(full == KL_ERROR_INTERRUPTED);
  }
  CHECK(count.ran == 0);
  sim::releaseHangs();
  OK(rt().stream_synchronize(stream));
  CHECK(count.ran > 1);
  CHECK(host == std::vector<char>(1 << 20, 'h')); // the copy was dropped with its wait
}
