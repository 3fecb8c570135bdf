// Runs a function as the chip, in stream order, and waits for it.
#include "aten/boxed/HostCall.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "aten/boxed/HostMemory.h"
#include "runtime/Error.h"
#include "runtime/Futex.h"
#include "runtime/Interrupt.h"
#include "runtime/Stream.h"
#include "runtime/SyncDebug.h"
#include "runtime/chip/Loader.h"
#include "runtime/frame/Threads.h"

namespace kunlun::aten {

namespace {

class WarningCollector final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    warnings.push_back(warning);
  }
  std::vector<c10::Warning> warnings;
};

// Lives on the caller's stack for the length of the call.
struct Call {
  Call(c10::Device on, int64_t elements, c10::function_ref<void()> f)
      : function(f), work(elements), device(on.index()), stream(currentStreamHandle(on.index())) {
    check(chip::runtime().stream_sequence(stream, &sequence), "stream_sequence");
  }
  c10::function_ref<void()> function;
  int64_t work;
  Spare* spare = nullptr;
  c10::DeviceIndex device;
  kl_stream stream;
  uint64_t sequence = 0;
  CachingAllocator::Route route = CachingAllocator::currentRoute();
  // The caller's modes: some kernels compute what only a backward pass needs, where there will be one.
  bool inference_mode = c10::InferenceMode::is_enabled();
  bool grad_mode = c10::GradMode::is_enabled();
  std::exception_ptr exception;
  bool tainted = false;
  kl_error taint; // filled where tainted is set; clearing its text for every call would cost more than the call
  WarningCollector warnings;
  // The chip's thread touches this object for the last time when it sets Done.
  enum State : uint32_t { Running, Sleeping, Done };
  std::atomic<uint32_t> state{Running};
};

// Between a caller and the chip's thread: whoever takes the call out of it decides what becomes of the call. A caller
// who gives up before the chip's thread has come leaves the ticket to it.
struct Ticket {
  std::atomic<Call*> call{nullptr};
};

void compute(Call& call) {
  DeviceMemoryScope memory(call.device, call.stream, call.sequence, call.route, call.spare);
  call.function();
}

kl_result runCall(void* arg, const kl_error* error, kl_error*) {
  auto* ticket = static_cast<Ticket*>(arg);
  auto* call = ticket->call.exchange(nullptr, std::memory_order_acq_rel);
  if (call == nullptr) {
    delete ticket;
    return KL_SUCCESS;
  }
  if (error != nullptr) {
    call->tainted = true;
    call->taint = *error;
  } else {
    try {
      c10::WarningUtils::WarningHandlerGuard warnings(&call->warnings);
      std::optional<c10::InferenceMode> inference;
      if (call->inference_mode != c10::InferenceMode::is_enabled()) {
        inference.emplace(call->inference_mode);
      }
      c10::AutoGradMode grad(call->grad_mode);
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      frame::TeamScope team(call->work);
      compute(*call);
    } catch (...) {
      // Rethrown by the caller, who waits.
      call->exception = std::current_exception();
    }
  }
  auto* state = &call->state;
  if (state->exchange(Call::Done, std::memory_order_acq_rel) == Call::Sleeping) {
    futexWakeAll(state); // by address alone: the caller may have seen Done and left already
  }
  afterwards().clear();
  return KL_SUCCESS;
}

// On the caller's thread, whose modes are right, and its warnings arrive. What else it has set for its own calls
// (autocast, function transforms, tracing) is not for the kernel.
kl_result runCallHere(void* arg, const kl_error*, kl_error*) {
  auto* call = static_cast<Call*>(arg);
  try {
    const auto above = c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, above);
    std::optional<at::RecordFunctionGuard> unrecorded;
    if (at::hasCallbacks()) { // switching it off for nobody would take longer than the call
      unrecorded.emplace(/*is_enabled=*/false);
    }
    frame::GuestScope guest;
    compute(*call);
  } catch (...) {
    call->exception = std::current_exception();
  }
  afterwards().clear();
  return KL_SUCCESS;
}

// Whether the kernel is short enough to be run by its caller. Longer ones get the chip's cores, or would keep others
// from the stream.
bool isShort(int64_t work) {
  constexpr int64_t kShortWork = 32768;
  return work < kShortWork;
}

// Whether the chip let the caller run it. If so, its exception has been thrown.
bool runHere(Call& call, const char* name) {
  const auto result = chip::runtime().try_host(call.stream, name, &runCallHere, &call);
  if (result == KL_NOT_READY) {
    return false;
  }
  check(result, name);
  if (call.exception) {
    std::rethrow_exception(call.exception);
  }
  return true;
}

// Spins for about the time a small kernel takes, then sleeps: longer spins cost
// whole time slices when another process wants the core. Where spinning keeps
// failing, because the chip's thread has no core of its own or the kernels are
// long, it is left out for a while: it would only keep the core from that thread.
// An interrupt ends the wait: at once and with false if the call has not begun, else when it is done.
bool waitFor(Call& call, Ticket& ticket, bool& interrupted) {
  constexpr int kFailures = 4;
  constexpr int kPause = 64; // calls
  thread_local int failures = 0;
  const auto done = [&] { return call.state.load(std::memory_order_acquire) == Call::Done; };
  bool ready = done();
  if (ready) {
    failures = 0;
  } else if (failures < kFailures) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
    do {
      for (int i = 0; i < 16 && !ready; ++i) { // reading the clock takes longer than looking
        ready = done();
      }
    } while (!ready && std::chrono::steady_clock::now() < deadline);
    failures = ready ? 0 : failures + 1;
  } else if (++failures > kFailures + kPause) {
    failures = 0;
  }
  uint32_t running = Call::Running;
  if (!ready && call.state.compare_exchange_strong(running, Call::Sleeping, std::memory_order_acq_rel)) {
    while (!done()) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      futexWaitUntil(
          call.state,
          Call::Sleeping,
          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() + kInterruptNanoseconds);
      if (!interrupted && !done() && interruptPending()) {
        interrupted = true;
        if (ticket.call.exchange(nullptr, std::memory_order_acq_rel) != nullptr) {
          return false;
        }
      }
    }
  }
  return true;
}

void runOnItsThread(Call& call, const char* name, c10::function_ref<Spare()> set_aside) {
  Spare spare;
  if (set_aside) {
    spare = set_aside();
    call.spare = &spare;
  }
  thread_local std::unique_ptr<Ticket> spare_ticket; // of the thread's last call
  auto ticket = spare_ticket != nullptr ? std::move(spare_ticket) : std::make_unique<Ticket>();
  ticket->call.store(&call, std::memory_order_relaxed);
  check(chip::runtime().launch_host(call.stream, name, &runCall, ticket.get()), name);
  bool interrupted = false;
  if (!waitFor(call, *ticket, interrupted)) {
    ticket.release(); // the chip's thread deletes it
    raiseInterrupted();
  }
  spare_ticket = std::move(ticket);
  if (interrupted) {
    raiseInterrupted();
  }
  for (const auto& warning : call.warnings.warnings) {
    c10::warn(warning);
  }
}

} // namespace

std::vector<c10::IValue>& afterwards() {
  thread_local std::vector<c10::IValue> values;
  return values;
}

bool tryOnCaller(c10::Device device, const char* name, int64_t work, c10::function_ref<void()> function) {
  if (!isShort(work) || syncDebugMode() != SyncDebugMode::Default) {
    return false; // what waits is reported where it surely will
  }
  installHostAllocator();
  Call call(device, work, function);
  return runHere(call, name);
}

void runOnChip(
    c10::Device device,
    const char* name,
    int64_t work,
    c10::function_ref<void()> function,
    c10::function_ref<Spare()> set_aside) {
  noteSynchronization(name);
  installHostAllocator();
  Call call(device, work, function);
  if (isShort(work) && runHere(call, name)) {
    return;
  }
  runOnItsThread(call, name, set_aside);
  if (call.tainted) {
    // Takes delivery of the stream's failure, which is then clean again.
    const auto result = chip::runtime().stream_synchronize(call.stream);
    check(result, name);
    raise(call.taint);
  }
  if (call.exception) {
    std::rethrow_exception(call.exception);
  }
}

} // namespace kunlun::aten
