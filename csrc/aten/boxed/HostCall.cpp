// Runs a function on the chip's own thread, in stream order, and waits for it.
#include "aten/boxed/HostCall.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "aten/boxed/HostMemory.h"
#include "runtime/Error.h"
#include "runtime/Stream.h"
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
  explicit Call(c10::function_ref<void()> f) : function(f) {}
  c10::function_ref<void()> function;
  int64_t work = 0;
  c10::DeviceIndex device = -1;
  kl_stream stream = nullptr;
  uint64_t sequence = 0;
  // The caller's modes: some kernels compute what only a backward pass needs, where there will be one.
  bool inference_mode = c10::InferenceMode::is_enabled();
  bool grad_mode = c10::GradMode::is_enabled();
  std::exception_ptr exception;
  bool tainted = false;
  kl_error taint; // filled where tainted is set; clearing its text for every call would cost more than the call
  WarningCollector warnings;
  std::atomic<uint32_t> done{0};
  std::atomic<bool> left{false}; // the chip's thread has touched this object for the last time
};

kl_result runCall(void* arg, const kl_error* error, kl_error*) {
  auto* call = static_cast<Call*>(arg);
  if (error != nullptr) {
    call->tainted = true;
    call->taint = *error;
  } else {
    try {
      c10::WarningUtils::WarningHandlerGuard warnings(&call->warnings);
      DeviceMemoryScope memory(call->device, call->stream, call->sequence);
      c10::InferenceMode inference(call->inference_mode);
      c10::AutoGradMode grad(call->grad_mode);
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      frame::TeamScope team(call->work);
      call->function();
    } catch (...) {
      // Rethrown by the caller, who waits.
      call->exception = std::current_exception();
    }
  }
  call->done.store(1, std::memory_order_release);
  call->done.notify_one();
  call->left.store(true, std::memory_order_release);
  return KL_SUCCESS;
}

// Spins for about the time a small kernel takes, then sleeps: longer spins cost
// whole time slices when another process wants the core. Where spinning keeps
// failing, because the chip's thread has no core of its own or the kernels are
// long, it is left out for a while: it would only keep the core from that thread.
void waitFor(const Call& call) {
  constexpr int kFailures = 4;
  constexpr int kPause = 64; // calls
  thread_local int failures = 0;
  const auto& done = call.done;
  bool ready = done.load(std::memory_order_acquire) != 0;
  if (ready) {
    failures = 0;
  } else if (failures < kFailures) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
    do {
      ready = done.load(std::memory_order_acquire) != 0;
    } while (!ready && std::chrono::steady_clock::now() < deadline);
    failures = ready ? 0 : failures + 1;
  } else if (++failures > kFailures + kPause) {
    failures = 0;
  }
  if (!ready) {
    done.wait(0, std::memory_order_acquire);
  }
  while (!call.left.load(std::memory_order_acquire)) {
    std::this_thread::yield();
  }
}

} // namespace

void runOnChip(c10::Device device, const char* name, int64_t work, c10::function_ref<void()> function) {
  installHostAllocator();
  const auto& runtime = chip::runtime();
  Call call(function);
  call.work = work;
  call.device = device.index();
  call.stream = currentStreamHandle(device.index());
  check(runtime.stream_sequence(call.stream, &call.sequence), "stream_sequence");
  check(runtime.launch_host(call.stream, name, &runCall, &call), name);
  waitFor(call);
  for (const auto& warning : call.warnings.warnings) {
    c10::warn(warning);
  }
  if (call.tainted) {
    // Takes delivery of the stream's failure, which is then clean again.
    const auto result = runtime.stream_synchronize(call.stream);
    check(result, name);
    raise(call.taint);
  }
  if (call.exception) {
    std::rethrow_exception(call.exception);
  }
}

} // namespace kunlun::aten
