// Start, fork and exit of the simulated chip.
#include "runtime/sim/Process.h"

#include <pthread.h>

#include <cstdlib>
#include <ctime>

#include "runtime/sim/Device.h"
#include "runtime/sim/Faults.h"
#include "runtime/sim/Progress.h"
#include "runtime/sim/Protect.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {
namespace {

constexpr time_t kExitSeconds = 2;

// No thread of the chip exists in a child, and any lock may have been taken at the moment of the fork: nothing is
// touched there from now on.
void inChild() {
  phase.store(Phase::Forked, std::memory_order_relaxed);
}

void start() {
  startProtection();
  Progress::start();
  startFaults();
  if (pthread_atfork(nullptr, nullptr, inChild) != 0 || std::atexit(shutdown) != 0) {
    raise(KL_ERROR_RUNTIME, -1, "cannot register the handlers of the simulated chip for fork and exit");
  }
  phase.store(Phase::Running, std::memory_order_release);
}

} // namespace

void startProcess() {
  static const bool started = (start(), true); // tried again after an exception
  static_cast<void>(started);
}

void shutdown() {
  Phase running = Phase::Running;
  if (!phase.compare_exchange_strong(running, Phase::ShutDown)) {
    return;
  }
  std::vector<std::shared_ptr<Stream>> all;
  for (int i = 0, count = deviceCount(); i < count; ++i) {
    if (Device* device = startedDevice(i)) {
      for (auto& stream : device->streams()) {
        all.push_back(std::move(stream));
      }
    }
  }
  for (const auto& stream : all) {
    stream->stop();
  }
  // An item that runs for longer, or hangs, must not keep the process from exiting.
  timespec deadline{};
  clock_gettime(CLOCK_REALTIME, &deadline); // the clock of pthread_timedjoin_np
  deadline.tv_sec += kExitSeconds;
  for (const auto& stream : all) {
    stream->join(deadline);
  }
}

} // namespace kunlun::sim
