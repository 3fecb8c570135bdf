// Functions of users' extensions, run by the chip's thread in stream order.
#include <memory>
#include <utility>

#include "runtime/chip/Loader.h"
#include "runtime/frame/CpuCall.h"
#include "runtime/frame/Threads.h"
#include "torch_xpu_kunlun/extension.h"

namespace kunlun {

namespace {

struct HostFunction {
  std::function<void()> function;
  int64_t work;
};

kl_result runHostFunction(void* arg, const kl_error* error, kl_error* result) {
  const std::unique_ptr<HostFunction> call(static_cast<HostFunction*>(arg));
  if (error != nullptr) {
    return KL_SUCCESS; // the stream carries an earlier failure: skipped like any kernel
  }
  try {
    frame::TeamScope team(call->work);
    call->function();
    return KL_SUCCESS;
  } catch (...) {
    return frame::describeException(result);
  }
}

} // namespace

bool isHostAddressable(c10::DeviceIndex device) {
  lazyInit();
  return hasCapability(resolveDevice(device), KL_CAP_HOST_ADDRESSABLE);
}

void launchHostFunction(const KunlunStream& stream, const char* name, std::function<void()> function, int64_t work) {
  TORCH_CHECK_VALUE(function != nullptr, "launchHostFunction was given an empty function for ", name);
  const auto handle = stream.handle();
  auto call = std::make_unique<HostFunction>(HostFunction{std::move(function), work});
  check(chip::runtime().launch_host(handle, name, &runHostFunction, call.get()), name);
  call.release(); // the host call owns it
  afterLaunch(handle);
}

} // namespace kunlun
