// The vendor's error codes, and the thread-local error of the adapter.
#include "runtime/xre/Status.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace kunlun::xre {
namespace {

thread_local kl_error last_error{KL_SUCCESS, -1, 0, {}, {}};

struct Code {
  int code;
  kl_result result;
  const char* text;
};

// The library exports no texts.
constexpr Code kCodes[] = {
    {701, KL_ERROR_INDEX, "no such device, or its node cannot be read"},
    {702, KL_ERROR_RUNTIME, "the runtime is not initialised"},
    {703, KL_ERROR_RUNTIME, "there is no device"},
    {704, KL_ERROR_RUNTIME, "the versions of runtime and kernel driver do not match"},
    {705, KL_ERROR_OUT_OF_MEMORY, "the device is out of memory"},
    {706, KL_ERROR_OUT_OF_MEMORY, "the host is out of memory"},
    {707, KL_ERROR_VALUE, "an invalid parameter"},
    {708, KL_ERROR_NOT_IMPLEMENTED, "the kernel was not found"},
    {709, KL_ERROR_RUNTIME, "a library could not be loaded"},
    {710, KL_ERROR_RUNTIME, "a symbol could not be found"},
    {711, KL_ERROR_RUNTIME, "an error of the vendor's simulator"},
    {712, KL_ERROR_NOT_IMPLEMENTED, "not supported"},
    {713, KL_ERROR_DEVICE, "the device is unusable after an earlier failure"},
    {714, KL_ERROR_DEVICE, "a kernel failed"},
    {715, KL_ERROR_DEVICE, "a kernel ran out of time"},
    {716, KL_ERROR_RUNTIME, "the device is busy"},
    {717, KL_ERROR_RUNTIME, "a stream was used after its end"},
    {718, KL_ERROR_DEVICE, "an uncorrectable memory error"},
    {719, KL_ERROR_DEVICE, "the device is too hot"},
    {720, KL_ERROR_RUNTIME, "an event failed, or carries the failure of a stream"},
    {800, KL_ERROR_DEVICE, "an unexpected failure"},
    {801, KL_ERROR_DEVICE, "the device was reset"},
    {802, KL_ERROR_DEVICE, "a hardware failure"},
    {803, KL_ERROR_DEVICE, "device memory could not be initialised"},
    {804, KL_ERROR_DEVICE, "the device could not be initialised"},
    {805, KL_ERROR_DEVICE, "a peer device was reset"},
    {806, KL_ERROR_RUNTIME, "too many devices"},
    {807, KL_ERROR_RUNTIME, "an operation that the kernel driver does not know"},
    {808, KL_ERROR_DEVICE, "a copy ran out of time"},
    {809, KL_ERROR_RUNTIME, "a copy was aborted, mostly because of a bad address"},
    {810, KL_ERROR_DEVICE, "the device's controller is not initialised"},
    {811, KL_ERROR_RUNTIME, "the device's firmware is too old"},
    {812, KL_ERROR_DEVICE, "a failure of the PCI bus"},
    {813, KL_ERROR_RUNTIME, "a fault of the kernel driver"},
    {814, KL_ERROR_RUNTIME, "the call was interrupted"},
    {815, KL_ERROR_DEVICE, "a unit of the device ran out of time"},
    {816, KL_ERROR_VALUE, "the host memory is registered already"},
    {817, KL_ERROR_RUNTIME, "an error of the tracer"},
};

const Code* find(int code) {
  for (const Code& each : kCodes) {
    if (each.code == std::abs(code)) {
      return &each;
    }
  }
  return nullptr;
}

kl_error errorOf(kl_result code, const char* text) {
  kl_error error{code, -1, 0, {}, {}};
  std::snprintf(error.text, sizeof(error.text), "%s", text);
  return error;
}

} // namespace

void raise(kl_result code, int device, const char* format, ...) {
  kl_error error{code, device, 0, {}, {}};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error.text, sizeof(error.text), format, arguments);
  va_end(arguments);
  throw Failure(error);
}

kl_result resultOf(int code) {
  const Code* known = find(code);
  return code == 0 ? KL_SUCCESS : known == nullptr ? KL_ERROR_RUNTIME : known->result;
}

void check(int code, const char* call, int device) {
  if (code != 0) {
    const Code* known = find(code);
    raise(
        resultOf(code),
        device,
        "the vendor's runtime failed in %s with code %d: %s",
        call,
        code,
        known == nullptr ? "an unknown code" : known->text);
  }
}

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) {
    raise(KL_ERROR_VALUE, -1, "%s is NULL", what);
  }
}

const kl_error& lastError() {
  return last_error;
}

kl_error errorInFlight() noexcept {
  try {
    throw;
  } catch (const Failure& failure) {
    return failure.error;
  } catch (const std::bad_alloc&) {
    return errorOf(KL_ERROR_OUT_OF_MEMORY, "the host has no memory left for the adapter's own needs");
  } catch (const std::exception& failure) {
    return errorOf(KL_ERROR_RUNTIME, failure.what());
  }
}

kl_result translateException(const char* op) noexcept {
  last_error = errorInFlight();
  std::snprintf(last_error.op, sizeof(last_error.op), "%s", op);
  return static_cast<kl_result>(last_error.code);
}

} // namespace kunlun::xre
