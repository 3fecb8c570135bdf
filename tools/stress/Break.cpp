// A device on which everything goes wrong: failing operators, refused launches, hangs, a broken device, resets, slow
// copies, destruction while busy, and a check for interrupts. What arrives must be one of the failures that were asked
// for, and in the end the device must work.
#include <thread>

#include "Stress.h"
#include "runtime/sim/Faults.h"

namespace stress {

namespace {

namespace sim = kunlun::sim;
using kunlun::SimFault;

kl_result runNothing(void*, void*, kl_error*) {
  return KL_SUCCESS;
}

kl_result runFailing(void*, void*, kl_error* error) {
  std::snprintf(error->text, sizeof(error->text), "asked for");
  return KL_ERROR_INDEX;
}

kl_result countCall(void* arg, const kl_error*, kl_error*) {
  ++*static_cast<std::atomic<uint64_t>*>(arg); // happens whatever the stream carries
  return KL_SUCCESS;
}

class Breaker {
 public:
  Breaker(World& world, uint64_t seed) : world_(world), random_(seed) {
    while (rt().stream_create(kBroken, 0, &stream_) != KL_SUCCESS) {
      expected(KL_ERROR_DEVICE); // another thread has broken it just now
      reset();
    }
  }
  ~Breaker() {
    sim::releaseHangs();
    reset();
    destroy(stream_);
  }

  void step() {
    switch (random_.below(12)) {
      case 0:
        enqueue("failing", runFailing);
        break;
      case 1:
        inject(SimFault::Kind::Launch);
        break;
      case 2:
        inject(SimFault::Kind::Kernel);
        break;
      case 3:
        if (random_.oneIn(8)) {
          inject(SimFault::Kind::Poison);
        }
        break;
      case 4:
        inject(SimFault::Kind::Hang, random_.oneIn(2) ? std::optional<int64_t>(1'000'000) : std::nullopt);
        break;
      case 5:
        synchronize();
        break;
      case 6:
        if (random_.oneIn(4)) {
          reset();
        }
        break;
      case 7:
        destroyBusyStream();
        break;
      case 8:
        copy();
        break;
      case 9:
        if (rt().try_host(stream_, "count", countCall, &calls_) != KL_SUCCESS) {
          accept(rt().launch_host(stream_, "count", countCall, &calls_));
        }
        break;
      case 10:
        recordAndWait();
        break;
      default:
        enqueue("nothing", runNothing);
    }
  }

 private:
  void expected(kl_result result) {
    STRESS_CHECK(
        result == KL_SUCCESS || result == KL_NOT_READY || result == KL_ERROR_INDEX || result == KL_ERROR_RUNTIME ||
        result == KL_ERROR_DEVICE);
  }

  // A broken device is reset, as its text says.
  void accept(kl_result result) {
    expected(result);
    if (result > KL_NOT_READY) {
      ++world_.reports;
    }
    if (result == KL_ERROR_DEVICE) {
      kl_error error{};
      rt().last_error(&error);
      STRESS_CHECK(error.device == kBroken);
      reset();
    }
  }

  void enqueue(const char* name, sim::WorkFn run) {
    accept(sim::enqueue(stream_, name, run, nullptr, nullptr, 0));
  }

  void inject(SimFault::Kind kind, std::optional<int64_t> nanoseconds = {}) {
    SimFault fault;
    fault.kind = kind;
    fault.after = random_.below(5);
    fault.device = kBroken;
    fault.nanoseconds = nanoseconds;
    sim::injectFault(fault);
  }

  // Somebody must let hanging streams go before they are waited for.
  void synchronize() {
    std::thread releaser([] { sim::releaseHangs(); });
    std::thread again([this] {
      while (!synchronized_) {
        sim::releaseHangs();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    accept(random_.oneIn(2) ? rt().stream_synchronize(stream_) : rt().device_synchronize(kBroken));
    synchronized_ = true;
    releaser.join();
    again.join();
    synchronized_ = false;
  }

  void reset() {
    STRESS_OK(rt().device_reset(kBroken));
    ++world_.resets;
  }

  void destroy(kl_stream stream) {
    std::atomic<bool> destroyed{false};
    std::thread releaser([&] {
      while (!destroyed) {
        sim::releaseHangs();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    expected(rt().stream_destroy(stream));
    destroyed = true;
    releaser.join();
  }

  void destroyBusyStream() {
    kl_stream stream = nullptr;
    const kl_result made = rt().stream_create(kBroken, 0, &stream);
    if (made != KL_SUCCESS) {
      accept(made);
      return;
    }
    for (int i = 0; i < 5; ++i) {
      expected(sim::enqueue(stream, "busy", random_.oneIn(4) ? runFailing : runNothing, nullptr, nullptr, 0));
    }
    destroy(stream);
  }

  void copy() {
    void* data = nullptr;
    const kl_result got = rt().memory_alloc(kBroken, 8192, KL_MEMORY_MAIN, &data);
    if (got != KL_SUCCESS) {
      accept(got);
      return;
    }
    if (random_.oneIn(3)) {
      sim::setCopySpeed(random_.oneIn(2) ? std::optional<uint64_t>(64 << 20) : std::nullopt);
    }
    accept(rt().memset_async(data, 1, 8192, stream_));
    accept(rt().memcpy_async(data, buffer_, sizeof(buffer_), KL_COPY_HOST_TO_DEVICE, 0, stream_));
    synchronize();
    STRESS_OK(rt().memory_free(kBroken, data));
  }

  void recordAndWait() {
    kl_event event = nullptr;
    const kl_result made = rt().event_create(kBroken, 0, &event);
    if (made != KL_SUCCESS) {
      accept(made);
      return;
    }
    accept(rt().event_record(event, stream_));
    accept(rt().stream_wait_event(stream_, event));
    accept(rt().event_query(event));
    STRESS_OK(rt().event_destroy(event));
  }

  World& world_;
  Random random_;
  kl_stream stream_ = nullptr;
  std::atomic<uint64_t> calls_{0};
  std::atomic<bool> synchronized_{false};
  char buffer_[8192] = {};
};

} // namespace

void breakThings(World& world, uint64_t seed) {
  Breaker breaker(world, seed);
  while (!world.stop) {
    breaker.step();
  }
}

} // namespace stress
