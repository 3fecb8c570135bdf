// Turns results of the chip interface into torch's own exceptions.
#include "runtime/Error.h"

#include <string>

#include "runtime/Env.h"
#include "runtime/Interrupt.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {

std::string describe(const kl_error& error) {
  std::string text = error.text[0] != '\0' ? error.text : "the chip's driver reported a failure without a text";
  std::string where;
  auto add = [&](const std::string& part) { where += (where.empty() ? "" : ", ") + part; };
  if (error.op[0] != '\0') {
    add(error.op);
  }
  if (error.device >= 0) {
    add("device kunlun:" + std::to_string(error.device));
  }
  if (error.sequence != 0) {
    add("work item " + std::to_string(error.sequence) + " of its stream");
  }
  return where.empty() ? text : text + " (" + where + ")";
}

const char* nameOf(int32_t code) {
  switch (code) {
    case KL_NOT_READY:
      return "not ready";
    case KL_ERROR_INDEX:
      return "index error";
    case KL_ERROR_VALUE:
      return "value error";
    case KL_ERROR_TYPE:
      return "type error";
    case KL_ERROR_NOT_IMPLEMENTED:
      return "not implemented";
    case KL_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case KL_ERROR_DEVICE:
      return "device fault";
    case KL_ERROR_LINALG:
      return "linear algebra error";
    case KL_ERROR_INTERRUPTED:
      return "interrupted wait";
    default:
      return "runtime error";
  }
}

} // namespace

void raise(const kl_error& error) {
  std::string text = describe(error);
  switch (error.code) {
    case KL_ERROR_INDEX:
      C10_THROW_ERROR(IndexError, std::move(text));
    case KL_ERROR_VALUE:
      C10_THROW_ERROR(ValueError, std::move(text));
    case KL_ERROR_TYPE:
      C10_THROW_ERROR(TypeError, std::move(text));
    case KL_ERROR_NOT_IMPLEMENTED:
      C10_THROW_ERROR(NotImplementedError, std::move(text));
    case KL_ERROR_OUT_OF_MEMORY:
      C10_THROW_ERROR(OutOfMemoryError, std::move(text));
    case KL_ERROR_LINALG:
      C10_THROW_ERROR(LinAlgError, std::move(text));
    case KL_ERROR_INTERRUPTED:
      raiseInterrupted();
    case KL_ERROR_DEVICE:
      text += ". The device stays unusable until torch.kunlun.reset_device(); memory contents are lost then.";
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.code, std::move(text));
    default:
      C10_THROW_ERROR(Error, std::move(text));
  }
}

void raiseLastError(kl_result result, const char* what) {
  kl_error error{};
  // The text belongs to this failure only if the codes agree: a driver need not record a text for each.
  if (chip::runtime().last_error(&error) != KL_SUCCESS || error.code != result) {
    error = kl_error{};
    error.code = result;
    error.device = -1;
    std::string text = std::string("the chip's driver failed without a text: ") + nameOf(result);
    text.copy(error.text, sizeof(error.text) - 1);
  }
  if (error.op[0] == '\0' && what != nullptr) {
    std::string(what).copy(error.op, sizeof(error.op) - 1);
  }
  raise(error);
}

void rethrowLoadFailure() {
  try {
    throw;
  } catch (const EnvError& e) {
    C10_THROW_ERROR(ValueError, e.what());
  } catch (const chip::ChipError& e) {
    C10_THROW_ERROR(Error, e.what());
  }
}

} // namespace kunlun
