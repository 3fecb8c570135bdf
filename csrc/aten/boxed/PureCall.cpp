// Boxed calls that cross to the chip's thread as plain data.
#include "aten/boxed/PureCall.h"

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/clone.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include "aten/boxed/Aliases.h"
#include "aten/boxed/HostCall.h"
#include "aten/boxed/HostMemory.h"
#include "aten/boxed/ShortCall.h"
#include "runtime/Stream.h"
#include "runtime/frame/FrameBuilder.h"
#include "runtime/frame/Threads.h"
#include "runtime/frame/Unpack.h"

namespace kunlun::aten {

namespace {

bool isPlainType(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::StringType:
      return true;
    case c10::TypeKind::OptionalType:
      return isPlainType(type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType: {
      const auto& element = type->expectRef<c10::ListType>().getElementType();
      return element->kind() != c10::TypeKind::ListType && isPlainType(element);
    }
    default:
      return false; // devices, generators, and what a frame has no tag for
  }
}

bool carries(const at::Tensor& tensor) {
  return !tensor.defined() ||
      (isPlain(tensor) && !tensor._is_zerotensor() &&
       frame::detail::kToChip[static_cast<size_t>(tensor.scalar_type())] >= 0);
}

bool carries(const c10::IValue& value) {
  if (value.isTensor()) {
    return carries(value.toTensor());
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const auto& element : value.toListRef()) {
      if (element.isTensor() && !carries(element.toTensor())) {
        return false;
      }
    }
  }
  return true;
}

// One result, taken apart on the chip's thread: its tensor object ends there.
struct Result {
  bool defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  int64_t offset = 0;
  size_t nbytes = 0;
  c10::DataPtr data;
  at::DimVector sizes;
  at::DimVector strides;
};

void takeApart(at::Tensor&& tensor, Result& result) {
  if (!tensor.defined()) {
    return;
  }
  // The schema promises new memory. A kernel that hands out its argument's all the same, or one memory for two
  // results, or a lazily conjugated one, is held to it.
  if (tensor.storage().use_count() != 1 || tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor() ||
      tensor.storage().data_ptr().get_deleter() != deviceAllocator()->raw_deleter()) {
    tensor = at::clone(tensor);
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  result.defined = true;
  result.dtype = tensor.scalar_type();
  result.offset = impl->storage_offset();
  result.sizes = impl->sizes();
  result.strides = impl->strides();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  result.nbytes = storage->nbytes();
  result.data = storage->set_data_ptr({});
  tensor.reset();
}

// Most small operators answer with a tensor like their first. Larger ones do not
// notice the allocator, and memory set aside for nothing should be little.
constexpr size_t kMaxSpare = 64 << 10;

Spare setAside(at::ArrayRef<c10::IValue> arguments, c10::Device device, kl_stream stream) {
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined() && argument.toTensor().device() == device) {
      const auto& tensor = argument.toTensor();
      const auto nbytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
      if (nbytes != 0 && nbytes <= kMaxSpare) {
        return {nbytes, CachingAllocator::allocateOnStream(nbytes, device.index(), stream)};
      }
      break;
    }
  }
  return {};
}

at::Tensor putTogether(Result& result, c10::Device device) {
  if (!result.defined) {
    return {};
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      static_cast<int64_t>(result.nbytes),
      adopt(std::move(result.data), result.nbytes, device),
      deviceAllocator(),
      /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(result.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(result.offset);
  impl->set_sizes_and_strides(result.sizes, result.strides);
  return tensor;
}

} // namespace

bool isPure(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr || !isPlainType(argument.type())) {
      return false;
    }
  }
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr || result.type()->kind() != c10::TypeKind::TensorType) {
      return false;
    }
  }
  return !schema.returns().empty();
}

bool runPure(
    const c10::OperatorHandle& op,
    const char* name,
    c10::Device device,
    torch::jit::Stack* stack,
    std::atomic<bool>& pure) {
  const auto& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  for (const auto& argument : arguments) {
    if (!carries(argument)) {
      return false;
    }
  }
  switch (runShort(op, name, device, stack)) {
    case ShortCall::Done:
      return true;
    case ShortCall::Special:
      pure.store(false, std::memory_order_relaxed);
      return false;
    case ShortCall::NotNow:
      break;
  }
  const auto stream = currentStreamHandle(device.index());
  frame::FrameBuilder builder(name, stream, device, static_cast<uint32_t>(arguments.size()), 0);
  for (const auto& argument : arguments) {
    builder.add(argument);
  }
  const auto* frame = builder.finish();
  const auto count = schema.returns().size();
  c10::SmallVector<Result, 2> results;
  for (size_t i = 0; i < count; ++i) {
    results.emplace_back();
  }
  bool special = false; // sparse, quantised or nested
  const auto compute = [&] {
    frame::FrameReader reader(frame);
    auto values = frame::toStack(reader, schema);
    op.callBoxed(values);
    for (size_t i = 0; i < count; ++i) {
      auto tensor = std::move(values[i]).toTensor();
      special |= tensor.defined() && !isPlain(tensor);
      if (!special) {
        takeApart(std::move(tensor), results[i]);
      }
    }
    reader.moveTensorsTo(afterwards());
  };
  runOnChip(device, name, frame::workOf(frame), compute, [&] { return setAside(arguments, device, stream); });
  if (special) {
    pure.store(false, std::memory_order_relaxed);
    return false;
  }
  torch::jit::drop(*stack, arguments.size());
  for (size_t i = 0; i < count; ++i) {
    stack->emplace_back(putTogether(results[i], device));
  }
  return true;
}

} // namespace kunlun::aten
