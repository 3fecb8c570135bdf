// Thread-local error of the simulated driver and translation of exceptions.
#include "runtime/sim/Status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "runtime/Env.h"
#include "runtime/sim/Sim.h"

namespace kunlun::sim {
namespace {

thread_local kl_error last_error{KL_SUCCESS, -1, 0, {}, {}};

void copyText(char* to, size_t size, const char* from) {
  std::snprintf(to, size, "%s", from == nullptr ? "" : from);
}

} // namespace

kl_error makeError(kl_result code, int device, const char* op, uint64_t sequence, const char* text) {
  kl_error error;
  error.code = code;
  error.device = device;
  error.sequence = sequence;
  copyText(error.op, sizeof(error.op), op);
  copyText(error.text, sizeof(error.text), text);
  return error;
}

void raise(kl_result code, int device, const char* format, ...) {
  char text[sizeof(kl_error::text)];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  throw Failure(makeError(code, device, "", 0, text));
}

const kl_error& lastError() {
  return last_error;
}

kl_result setLastError(const kl_error& error) {
  last_error = error;
  return static_cast<kl_result>(error.code);
}

kl_result fail(kl_result code, const char* op, const char* text) {
  return setLastError(makeError(code, -1, op, 0, text));
}

kl_result refuseUnusable(const char* op) {
  if (phase.load(std::memory_order_relaxed) == Phase::Forked) {
    return fail(
        KL_ERROR_RUNTIME,
        op,
        "the simulated chip was started before this process was forked and cannot be used in the child; "
        "start the child with the spawn or forkserver method, or fork before the first use of a device");
  }
  return fail(KL_ERROR_RUNTIME, op, "the simulated chip has been shut down because the process is exiting");
}

kl_result translateException(const char* op) noexcept {
  try {
    throw;
  } catch (const Failure& failure) {
    kl_error error = failure.error;
    if (error.op[0] == '\0') {
      copyText(error.op, sizeof(error.op), op);
    }
    return setLastError(error);
  } catch (const EnvError& failure) {
    return fail(KL_ERROR_VALUE, op, failure.what());
  } catch (const std::bad_alloc&) {
    return fail(KL_ERROR_OUT_OF_MEMORY, op, "the host has no memory left for the simulated chip's own needs");
  } catch (const std::exception& failure) {
    return fail(KL_ERROR_RUNTIME, op, failure.what());
  }
}

} // namespace kunlun::sim
