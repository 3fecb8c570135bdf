// Packs one operator call into a call frame (runtime/chip/frame.h).
#include "runtime/frame/FrameBuilder.h"

#include <c10/util/Exception.h>

#include "runtime/CachingAllocator.h"

namespace kunlun::frame {

FrameBuilder::FrameBuilder(const char* schema, kl_stream_st* stream, c10::Device device, uint32_t nargs, uint32_t nouts)
    : used_(0), limit_(nargs + nouts), device_(device) {
  grow(sizeof(kl_frame) + sizeof(kl_value) * limit_);
  auto* header = reinterpret_cast<kl_frame*>(block_);
  *header = kl_frame{};
  header->schema = schema;
  header->stream = stream;
  header->nargs = nargs;
  header->nouts = nouts;
}

uint32_t FrameBuilder::grow(size_t bytes) {
  const uint32_t start = used_;
  const size_t rounded = (bytes + 7) & ~size_t{7};
  if (C10_UNLIKELY(used_ + rounded > capacity_)) {
    capacity_ = std::max(capacity_ * 2, used_ + rounded);
    TORCH_CHECK(capacity_ < (uint64_t{1} << 31), "kunlun: an operator's arguments do not fit into a call frame");
    auto larger = std::make_unique<char[]>(capacity_);
    std::memcpy(larger.get(), block_, used_);
    heap_ = std::move(larger);
    block_ = heap_.get();
  }
  used_ += static_cast<uint32_t>(rounded);
  return start;
}

kl_value* FrameBuilder::next(uint32_t tag) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(values_ < limit_);
  auto* value = valueAt(sizeof(kl_frame) + sizeof(kl_value) * values_++);
  value->tag = tag;
  value->count = 0;
  return value;
}

kl_frame* FrameBuilder::finish() {
  TORCH_INTERNAL_ASSERT(values_ == limit_, "call frame with ", values_, " of ", limit_, " values");
  auto* header = reinterpret_cast<kl_frame*>(block_);
  header->bytes = used_;
  return header;
}

void FrameBuilder::fillTensor(kl_value* value, const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  auto& t = value->v.t;
  t.flags = 0;
  if (C10_UNLIKELY(tensor.is_conj())) {
    t.flags |= KL_TENSOR_CONJ;
  }
  if (C10_UNLIKELY(tensor.is_neg())) {
    t.flags |= KL_TENSOR_NEG;
  }
  if (impl->is_wrapped_number()) {
    t.flags |= KL_TENSOR_WRAPPED_NUMBER;
  }
  t.dtype = toChipDtype(tensor.scalar_type());
  const auto sizes = impl->sizes();
  t.ndim = static_cast<uint32_t>(sizes.size());
  t.tensor_id = reinterpret_cast<uint64_t>(impl);
  if (C10_LIKELY(impl->device() == device_)) {
    const auto& storage = impl->unsafe_storage();
    t.data = const_cast<void*>(storage.data());
    CachingAllocator::checkAwake(t.data);
    t.storage_id = reinterpret_cast<uint64_t>(storage.unsafeGetStorageImpl());
    t.storage_bytes = storage.nbytes();
    t.offset = impl->storage_offset();
  } else {
    TORCH_CHECK(
        impl->device().is_cpu() && t.ndim == 0,
        "Expected all tensors to be on the same device, but found at least two devices, ",
        device_,
        " and ",
        impl->device(),
        "! (in a call of ",
        reinterpret_cast<kl_frame*>(block_)->schema,
        "; only 0-dim CPU tensors may be mixed with kunlun tensors)");
    t.data = nullptr;
    t.storage_id = 0;
    t.storage_bytes = 0;
    t.offset = 0;
    t.flags |= KL_TENSOR_HOST_SCALAR;
    std::memcpy(t.scalar, tensor.const_data_ptr(), tensor.element_size());
  }
  const uint32_t at = static_cast<uint32_t>(reinterpret_cast<char*>(value) - block_);
  const uint32_t dims = grow(2 * sizeof(int64_t) * sizes.size());
  valueAt(at)->v.t.dims = dims;
  auto* out = reinterpret_cast<int64_t*>(block_ + dims);
  const auto strides = impl->strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    out[i] = sizes[i];
    out[i + sizes.size()] = strides[i];
  }
}

void FrameBuilder::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    addAbsent();
    return;
  }
  fillTensor(next(KL_TAG_TENSOR), tensor);
}

void FrameBuilder::add(const std::optional<at::Tensor>& tensor) {
  if (tensor.has_value()) {
    add(*tensor);
  } else {
    addAbsent();
  }
}

template <class List>
void FrameBuilder::addTensors(const List& tensors) {
  auto* list = next(KL_TAG_TENSOR_LIST);
  list->count = static_cast<uint32_t>(tensors.size());
  const uint32_t at = static_cast<uint32_t>(reinterpret_cast<char*>(list) - block_);
  const uint32_t tail = grow(sizeof(kl_value) * tensors.size());
  valueAt(at)->v.tail = tail;
  uint32_t slot = tail;
  for (const auto& element : tensors) {
    auto* value = valueAt(slot);
    value->count = 0;
    const at::Tensor* tensor = nullptr;
    if constexpr (requires { element.getTensorRef(); }) {
      tensor = &element.getTensorRef();
    } else if constexpr (std::is_convertible_v<decltype(element), const at::Tensor&>) {
      tensor = &static_cast<const at::Tensor&>(element);
    } else {
      tensor = element.has_value() ? &*element : nullptr;
    }
    if (tensor != nullptr && tensor->defined()) {
      value->tag = KL_TAG_TENSOR;
      fillTensor(value, *tensor);
    } else {
      value->tag = KL_TAG_ABSENT;
    }
    slot += sizeof(kl_value);
  }
}

void FrameBuilder::add(at::ITensorListRef tensors) {
  addTensors(tensors);
}

void FrameBuilder::add(at::TensorList tensors) {
  addTensors(tensors);
}

void FrameBuilder::add(at::IOptTensorListRef tensors) {
  addTensors(tensors);
}

void FrameBuilder::add(const c10::List<std::optional<at::Tensor>>& tensors) {
  addTensors(at::IOptTensorListRef(tensors));
}

void FrameBuilder::add(const at::Scalar& scalar) {
  if (scalar.isBoolean()) {
    add(scalar.toBool());
  } else if (scalar.isIntegral(/*includeBool=*/false)) {
    add(scalar.toLong());
  } else if (scalar.isFloatingPoint()) {
    add(scalar.toDouble());
  } else {
    auto* value = next(KL_TAG_COMPLEX);
    const auto number = scalar.toComplexDouble();
    value->v.d[0] = number.real();
    value->v.d[1] = number.imag();
  }
}

void FrameBuilder::add(const std::optional<at::Scalar>& scalar) {
  if (scalar.has_value()) {
    add(*scalar);
  } else {
    addAbsent();
  }
}

void FrameBuilder::add(at::ArrayRef<at::Scalar> scalars) {
  std::vector<kl_value> values(scalars.size());
  for (size_t i = 0; i < scalars.size(); ++i) {
    const auto& s = scalars[i];
    auto& value = values[i];
    value = kl_value{};
    if (s.isBoolean()) {
      value.tag = KL_TAG_BOOL;
      value.v.i = s.toBool();
    } else if (s.isIntegral(false)) {
      value.tag = KL_TAG_INT;
      value.v.i = s.toLong();
    } else if (s.isFloatingPoint()) {
      value.tag = KL_TAG_DOUBLE;
      value.v.d[0] = s.toDouble();
    } else {
      value.tag = KL_TAG_COMPLEX;
      value.v.d[0] = s.toComplexDouble().real();
      value.v.d[1] = s.toComplexDouble().imag();
    }
  }
  addList(KL_TAG_SCALAR_LIST, values.data(), values.size());
}

void FrameBuilder::add(bool value) {
  next(KL_TAG_BOOL)->v.i = value;
}

void FrameBuilder::add(int64_t value) {
  next(KL_TAG_INT)->v.i = value;
}

void FrameBuilder::add(double value) {
  next(KL_TAG_DOUBLE)->v.d[0] = value;
}

void FrameBuilder::add(std::optional<bool> value) {
  value.has_value() ? add(*value) : addAbsent();
}

void FrameBuilder::add(std::optional<int64_t> value) {
  value.has_value() ? add(*value) : addAbsent();
}

void FrameBuilder::add(std::optional<double> value) {
  value.has_value() ? add(*value) : addAbsent();
}

template <class T>
void FrameBuilder::addList(uint32_t tag, const T* values, size_t count) {
  auto* list = next(tag);
  list->count = static_cast<uint32_t>(count);
  const uint32_t at = static_cast<uint32_t>(reinterpret_cast<char*>(list) - block_);
  const uint32_t tail = grow(sizeof(T) * count);
  valueAt(at)->v.tail = tail;
  if (count != 0) {
    std::memcpy(block_ + tail, values, sizeof(T) * count);
  }
}

void FrameBuilder::add(at::IntArrayRef values) {
  addList(KL_TAG_INT_LIST, values.data(), values.size());
}

void FrameBuilder::add(at::OptionalIntArrayRef values) {
  values.has_value() ? add(*values) : addAbsent();
}

void FrameBuilder::add(at::ArrayRef<double> values) {
  addList(KL_TAG_DOUBLE_LIST, values.data(), values.size());
}

void FrameBuilder::add(std::optional<at::ArrayRef<double>> values) {
  values.has_value() ? add(*values) : addAbsent();
}

void FrameBuilder::add(at::ArrayRef<bool> values) {
  addList(KL_TAG_BOOL_LIST, values.data(), values.size());
}

void FrameBuilder::add(std::string_view text) {
  addList(KL_TAG_STRING, text.data(), text.size());
}

void FrameBuilder::add(std::optional<std::string_view> text) {
  text.has_value() ? add(*text) : addAbsent();
}

void FrameBuilder::add(c10::ScalarType dtype) {
  next(KL_TAG_DTYPE)->v.i = toChipDtype(dtype);
}

void FrameBuilder::add(std::optional<c10::ScalarType> dtype) {
  dtype.has_value() ? add(*dtype) : addAbsent();
}

void FrameBuilder::add(c10::Layout layout) {
  TORCH_CHECK_VALUE(layout == c10::kStrided, "kunlun: only strided layouts cross the chip interface, not ", layout);
  next(KL_TAG_LAYOUT)->v.i = 0;
}

void FrameBuilder::add(std::optional<c10::Layout> layout) {
  layout.has_value() ? add(*layout) : addAbsent();
}

void FrameBuilder::add(c10::MemoryFormat format) {
  next(KL_TAG_MEMORY_FORMAT)->v.i = toChipMemoryFormat(format);
}

void FrameBuilder::add(std::optional<c10::MemoryFormat> format) {
  format.has_value() ? add(*format) : addAbsent();
}

void FrameBuilder::add(Philox philox) {
  auto* value = next(KL_TAG_PHILOX);
  value->v.u[0] = philox.seed;
  value->v.u[1] = philox.offset;
}

void FrameBuilder::addAbsent() {
  next(KL_TAG_ABSENT);
}

void FrameBuilder::addUnknownOut() {
  auto* value = next(KL_TAG_ABSENT);
  value->v.t = kl_tensor{};
  const uint32_t at = static_cast<uint32_t>(reinterpret_cast<char*>(value) - block_);
  const uint32_t dims = grow(2 * sizeof(int64_t) * kMaxDims);
  valueAt(at)->v.t.dims = dims;
}

void fillOut(kl_frame* frame, uint32_t slot, const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  TORCH_CHECK_VALUE(
      impl->dim() <= kMaxDims,
      frame->schema,
      ": an output has ",
      impl->dim(),
      " dimensions, ",
      kMaxDims,
      " are allowed");
  auto* value = const_cast<kl_value*>(kl_frame_outs(frame)) + slot;
  const auto dims = value->v.t.dims;
  value->tag = KL_TAG_TENSOR;
  value->v.t = kl_tensor{};
  value->v.t.data = const_cast<void*>(impl->unsafe_storage().data());
  value->v.t.storage_id = reinterpret_cast<uint64_t>(impl->unsafe_storage().unsafeGetStorageImpl());
  value->v.t.tensor_id = reinterpret_cast<uint64_t>(impl);
  value->v.t.storage_bytes = impl->unsafe_storage().nbytes();
  value->v.t.dtype = toChipDtype(tensor.scalar_type());
  value->v.t.ndim = static_cast<uint32_t>(impl->dim());
  value->v.t.dims = dims;
  auto* out = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(frame) + dims);
  std::copy(impl->sizes().begin(), impl->sizes().end(), out);
  std::copy(impl->strides().begin(), impl->strides().end(), out + impl->dim());
}

void FrameBuilder::add(const c10::IValue& value) {
  if (value.isNone() || value.isDevice()) {
    addAbsent(); // the device is the stream's
  } else if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isBool()) {
    add(value.toBool());
  } else if (value.isInt() || value.isSymInt()) {
    add(value.toInt());
  } else if (value.isDouble()) {
    add(value.toDouble());
  } else if (value.isComplexDouble()) {
    add(at::Scalar(value.toComplexDouble()));
  } else if (value.isString()) {
    add(value.toStringView());
  } else if (value.isIntList()) {
    add(at::IntArrayRef(value.toIntVector()));
  } else if (value.isDoubleList()) {
    add(at::ArrayRef<double>(value.toDoubleVector()));
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    const auto copy = std::make_unique<bool[]>(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      copy[i] = list.get(i);
    }
    add(at::ArrayRef<bool>(copy.get(), list.size()));
  } else if (value.isTensorList()) {
    add(at::TensorList(value.toTensorVector()));
  } else if (value.isOptionalTensorList()) {
    add(value.toOptionalTensorList());
  } else if (value.isList()) {
    std::vector<at::Scalar> scalars;
    for (const auto& element : value.toListRef()) {
      scalars.push_back(element.toScalar());
    }
    add(at::ArrayRef<at::Scalar>(scalars));
  } else {
    TORCH_CHECK_TYPE(false, "kunlun: an argument of type ", value.tagKind(), " cannot cross the chip interface");
  }
}

} // namespace kunlun::frame
