// Boxed calls through the driver's operator table.
#include "aten/boxed/BoxedFrame.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/strides.h>

#include "aten/Empty.h"
#include "aten/Statistics.h"
#include "aten/boxed/Aliases.h"
#include "aten/random/Philox.h"
#include "runtime/CachingAllocator.h"
#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/SyncDebug.h"
#include "runtime/chip/Loader.h"
#include "runtime/frame/FrameBuilder.h"

namespace kunlun::aten {

namespace {

// What the driver's allocation requests need, for the length of the call.
struct Outputs {
  c10::Device device;
  kl_stream stream;
  uint64_t sequence;
  CachingAllocator::Route route;
  std::vector<at::Tensor> tensors;
  bool inference = c10::InferenceMode::is_enabled(); // the caller's: a chip's thread may be in that mode for good
};

// Called by the driver, on the chip's thread or the caller's.
kl_result allocateOutput(
    kl_frame* frame,
    uint32_t slot,
    int32_t dtype,
    uint32_t ndim,
    const int64_t* sizes,
    const int64_t* strides) {
  auto* outputs = static_cast<Outputs*>(frame->alloc_context);
  if (slot >= outputs->tensors.size() || ndim > frame::kMaxDims) {
    return KL_ERROR_INDEX;
  }
  try {
    const c10::InferenceMode inference(outputs->inference);
    CachingAllocator::HostCallScope scope(outputs->stream, outputs->sequence, outputs->route);
    const at::IntArrayRef shape(sizes, ndim);
    const auto dense = strides == nullptr ? c10::contiguous_strides(shape) : c10::DimVector(strides, strides + ndim);
    auto tensor = emptyStridedOnStream(
        shape, dense, frame::fromChipDtype(dtype), outputs->device, outputs->stream, outputs->sequence);
    frame::fillOut(frame, slot, tensor);
    outputs->tensors[slot] = std::move(tensor);
    return KL_SUCCESS;
  } catch (const c10::OutOfMemoryError&) {
    return KL_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception&) {
    return KL_ERROR_VALUE; // an impossible shape or dtype; the driver reports it with its operator's name
  }
}

bool written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Only results that are new tensors, or arguments that the operator changes in place, fit a frame. Views do not, and
// neither do out arguments, which the operator may have to grow.
bool fitsFrame(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.is_out()) {
      return false;
    }
  }
  for (const auto& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType || (result.alias_info() != nullptr && !written(result))) {
      return false;
    }
  }
  return !schema.returns().empty();
}

bool takesGenerator(const c10::Argument& argument) {
  auto type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool plainOnly(at::ArrayRef<c10::IValue> arguments) {
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined() && !isPlain(argument.toTensor())) {
      return false;
    }
  }
  return true;
}

bool takesDtypes(const char* name, at::ArrayRef<c10::IValue> arguments) {
  const auto* table = chip::operators();
  if (table->supports == nullptr) {
    return true;
  }
  std::vector<int32_t> dtypes;
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      dtypes.push_back(frame::toChipDtype(argument.toTensor().scalar_type()));
    }
  }
  return table->supports(name, dtypes.data(), static_cast<uint32_t>(dtypes.size())) != 0;
}

} // namespace

bool launchBoxedFrame(
    const c10::OperatorHandle& op,
    const char* name,
    const kl_operator& driver,
    c10::Device device,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count_args = schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, count_args);
  if (!fitsFrame(schema) || !plainOnly(arguments) || !takesDtypes(name, arguments)) {
    return false;
  }
  noteSynchronization(name);
  std::vector<c10::IValue> written_arguments;
  for (size_t i = 0; i < count_args; ++i) {
    if (written(schema.arguments()[i])) {
      written_arguments.push_back(arguments[i]);
    }
  }
  const bool allocates = written_arguments.empty();
  Outputs outputs{device, currentStreamHandle(device.index()), 0, CachingAllocator::currentRoute(), {}};
  const auto& runtime = chip::runtime();
  check(runtime.stream_sequence(outputs.stream, &outputs.sequence), "stream_sequence");
  outputs.tensors.resize(allocates ? schema.returns().size() : 0);
  frame::FrameBuilder builder(
      name, outputs.stream, device, static_cast<uint32_t>(count_args), static_cast<uint32_t>(outputs.tensors.size()));
  for (size_t i = 0; i < count_args; ++i) {
    if (takesGenerator(schema.arguments()[i])) {
      builder.add(drawPhilox(arguments[i].toOptional<at::Generator>(), device));
    } else {
      builder.add(arguments[i]);
    }
  }
  for (size_t i = 0; allocates && i < outputs.tensors.size(); ++i) {
    builder.addUnknownOut();
  }
  auto* frame = builder.finish();
  frame->flags |= KL_FRAME_WAITED;
  frame->alloc = &allocateOutput;
  frame->alloc_context = &outputs;
  const auto result = driver.launch(driver.context, frame);
  if (result == KL_ERROR_NOT_IMPLEMENTED) {
    return false;
  }
  check(result, name);
  countLaunch();
  trace(Tier::Launcher, name);
  check(runtime.stream_synchronize(outputs.stream), name);
  for (size_t i = 0; i < outputs.tensors.size(); ++i) {
    TORCH_CHECK(
        outputs.tensors[i].defined(),
        "the chip driver reported success of ",
        name,
        " but did not allocate its output ",
        i,
        "; a driver allocates outputs of unknown shape through kl_frame::alloc");
  }
  torch::jit::drop(*stack, count_args);
  if (allocates) {
    for (auto& tensor : outputs.tensors) {
      stack->emplace_back(std::move(tensor));
    }
  } else {
    for (auto& argument : written_arguments) {
      stack->push_back(argument);
    }
  }
  return true;
}

} // namespace kunlun::aten
