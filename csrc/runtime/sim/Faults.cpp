// Faults that the simulated chip shows on request, and the speed of its links.
#include "runtime/sim/Faults.h"

#include <algorithm>
#include <cstdio>

#include "runtime/sim/Device.h"
#include "runtime/sim/Progress.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {
namespace {

using Kind = SimFault::Kind;

constexpr const char* kOrigin = "injected by KUNLUN_SIM_FAULT or torch_xpu_kunlun.sim";

struct Pending {
  std::mutex lock; // guards faults, and the flag faults_pending
  std::vector<SimFault> faults;
};

Pending& pending() {
  static Pending& value = *new Pending;
  return value;
}

// Grows with every release; a hang waits for the one after its launch.
struct Releases {
  std::mutex lock; // one release at a time
  Progress count;
  std::atomic<int> hanging{0};
};

Releases& releases() {
  static Releases& value = *new Releases;
  return value;
}

const char* nameOf(Kind kind) {
  switch (kind) {
    case Kind::Launch:
      return "launch";
    case Kind::Kernel:
      return "kernel";
    case Kind::Poison:
      return "poison";
    case Kind::Hang:
      return "hang";
  }
  return "";
}

std::optional<SimFault> take(int device) {
  Pending& p = pending();
  std::lock_guard lock(p.lock);
  std::optional<SimFault> due;
  for (auto fault = p.faults.begin(); fault != p.faults.end();) {
    if (fault->device && *fault->device != device) {
      ++fault;
    } else if (fault->after > 0) {
      --fault->after;
      ++fault;
    } else if (!due) {
      due = *fault;
      fault = p.faults.erase(fault);
    } else {
      ++fault; // its turn comes with the next operator
    }
  }
  detail::faults_pending.store(!p.faults.empty(), std::memory_order_relaxed);
  return due;
}

kl_result failKernel(void*, void*, kl_error* error) {
  std::snprintf(error->text, sizeof(error->text), "the operator failed on the chip (a fault %s)", kOrigin);
  return KL_ERROR_RUNTIME;
}

kl_result failDevice(void*, void*, kl_error* error) {
  std::snprintf(error->text, sizeof(error->text), "the operator broke the device (a fault %s)", kOrigin);
  return KL_ERROR_DEVICE;
}

struct Hang {
  uint64_t release;
  int64_t nanoseconds; // 0: for ever
};

kl_result hang(void*, void* payload, kl_error* error) {
  const auto& job = *static_cast<const Hang*>(payload);
  Releases& r = releases();
  const int64_t deadline = job.nanoseconds == 0 ? Progress::kNever : steadyNanoseconds() + job.nanoseconds;
  r.hanging.fetch_add(1);
  const auto waited = Stream::current()->pause(r.count, job.release, deadline);
  r.hanging.fetch_sub(1);
  if (waited != Progress::Waited::TimedOut) {
    return KL_SUCCESS; // released; or cancelled, and what follows is dropped
  }
  std::snprintf(
      error->text,
      sizeof(error->text),
      "the operator hung and was given up after %.3g seconds (a fault %s)",
      static_cast<double>(job.nanoseconds) * 1e-9,
      kOrigin);
  return KL_ERROR_RUNTIME;
}

// Of a pause that only its deadline or a cancellation ends.
Progress& never() {
  static Progress& value = *new Progress;
  return value;
}

} // namespace

void injectFault(const SimFault& fault) {
  if (fault.device) {
    checkIndex(*fault.device);
  }
  Pending& p = pending();
  std::lock_guard lock(p.lock);
  p.faults.push_back(fault);
  detail::faults_pending.store(true, std::memory_order_relaxed);
}

std::vector<std::string> pendingFaults() {
  Pending& p = pending();
  std::lock_guard lock(p.lock);
  std::vector<std::string> texts;
  for (const SimFault& fault : p.faults) {
    std::string text = std::string(nameOf(fault.kind)) + ":" + std::to_string(fault.after);
    if (fault.nanoseconds) {
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), ":%g", static_cast<double>(*fault.nanoseconds) * 1e-9);
      text += seconds;
    }
    if (fault.device) {
      text += "@" + std::to_string(*fault.device);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

void clearFaults() {
  Pending& p = pending();
  std::lock_guard lock(p.lock);
  p.faults.clear();
  detail::faults_pending.store(false, std::memory_order_relaxed);
}

void releaseHangs() {
  Releases& r = releases();
  std::lock_guard lock(r.lock);
  r.count.advance(r.count.get() + 1);
}

int hangingStreams() {
  return releases().hanging.load();
}

void startFaults() {
  for (const SimFault& fault : env().sim_faults) {
    injectFault(fault);
  }
}

bool showFault(Stream& stream, const char* op) {
  const auto fault = take(stream.device().index());
  if (!fault) {
    return false;
  }
  switch (fault->kind) {
    case Kind::Launch:
      raise(
          KL_ERROR_RUNTIME,
          stream.device().index(),
          "the chip refused the launch, and nothing was enqueued (a fault %s)",
          kOrigin);
    case Kind::Kernel:
      stream.work(op, failKernel, nullptr, nullptr, 0);
      return true;
    case Kind::Poison:
      stream.work(op, failDevice, nullptr, nullptr, 0);
      return true;
    case Kind::Hang: {
      const Hang job{releases().count.get() + 1, fault->nanoseconds.value_or(0)};
      stream.work(op, hang, nullptr, &job, sizeof(job));
      return false; // the operator itself follows
    }
  }
  return false;
}

void Link::setSpeed(std::optional<uint64_t> speed) {
  speed_.store(speed.value_or(0), std::memory_order_relaxed);
}

bool Link::pass(Stream& stream, uint64_t bytes) {
  const uint64_t speed = speed_.load(std::memory_order_relaxed);
  if (speed == 0) {
    return true;
  }
  int64_t arrival = 0;
  {
    std::lock_guard lock(lock_);
    const double seconds = static_cast<double>(bytes) / static_cast<double>(speed);
    free_at_ = std::max(free_at_, steadyNanoseconds()) + static_cast<int64_t>(seconds * 1e9);
    arrival = free_at_;
  }
  return stream.pause(never(), 1, arrival) == Progress::Waited::TimedOut;
}

} // namespace kunlun::sim
