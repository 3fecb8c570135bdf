// Runs the operator of a call frame with ATen's CPU kernel.
#include "runtime/frame/CpuCall.h"

#include <cstring>
#include <exception>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include "runtime/frame/Unpack.h"

namespace kunlun::frame {

c10::OperatorHandle findOperator(const char* schema) {
  const std::string_view full(schema);
  const auto space = full.find("::");
  const auto dot = full.find('.', space);
  const std::string name(full.substr(0, dot));
  const std::string overload(dot == std::string_view::npos ? std::string_view() : full.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_CHECK_NOT_IMPLEMENTED(handle.has_value(), "torch has no operator ", schema);
  return *handle;
}

namespace {

void copyResult(FrameReader& reader, uint32_t slot, const at::Tensor& result) {
  const kl_frame* frame = reader.frame();
  if (reader.out(slot).tag == KL_TAG_ABSENT) {
    if (!result.defined()) {
      return;
    }
    TORCH_INTERNAL_ASSERT(frame->alloc != nullptr, frame->schema, ": output ", slot, " has no shape");
    const auto dims = static_cast<uint32_t>(result.dim());
    const auto code = frame->alloc(
        const_cast<kl_frame*>(frame),
        slot,
        toChipDtype(result.scalar_type()),
        dims,
        result.sizes().data(),
        result.is_non_overlapping_and_dense() ? result.strides().data() : nullptr);
    TORCH_CHECK_WITH(OutOfMemoryError, code == KL_SUCCESS, frame->schema, ": no memory for output ", slot);
  }
  const auto out = reader.tensor(reader.out(slot));
  if (result.defined()) {
    out.copy_(result);
  }
}

} // namespace

void callCpu(const c10::OperatorHandle& op, const kl_frame* frame) {
  FrameReader reader(frame);
  const auto& schema = op.schema();
  auto stack = toStack(reader, schema);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.callBoxed(stack);
  bool writes_in_place = false;
  for (const auto& argument : schema.arguments()) {
    writes_in_place |= argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  }
  if (writes_in_place) {
    return;
  }
  uint32_t slot = 0;
  for (const auto& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        copyResult(reader, slot++, tensor);
      }
    } else if (slot < reader.nouts()) {
      copyResult(reader, slot++, value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
}

kl_result describeException(kl_error* error) {
  auto fill = [&](kl_result code, const char* text) {
    error->code = code;
    std::strncpy(error->text, text, sizeof(error->text) - 1);
    error->text[sizeof(error->text) - 1] = '\0';
    return code;
  };
  try {
    throw;
  } catch (const c10::IndexError& e) {
    return fill(KL_ERROR_INDEX, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    return fill(KL_ERROR_VALUE, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    return fill(KL_ERROR_TYPE, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    return fill(KL_ERROR_NOT_IMPLEMENTED, e.what_without_backtrace());
  } catch (const c10::LinAlgError& e) {
    return fill(KL_ERROR_LINALG, e.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& e) {
    return fill(KL_ERROR_OUT_OF_MEMORY, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return fill(KL_ERROR_RUNTIME, e.what_without_backtrace());
  } catch (const std::bad_alloc& e) {
    return fill(KL_ERROR_OUT_OF_MEMORY, e.what());
  } catch (const std::exception& e) {
    return fill(KL_ERROR_RUNTIME, e.what());
  }
}

} // namespace kunlun::frame
