// Reads a call frame back into ATen's types, over host-addressable memory.
#include "runtime/frame/Unpack.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace kunlun::frame {

const kl_value& FrameReader::arg(uint32_t i) const {
  TORCH_INTERNAL_ASSERT(i < frame_->nargs, frame_->schema, ": call frame has no argument ", i);
  return kl_frame_args(frame_)[i];
}

const kl_value& FrameReader::out(uint32_t i) const {
  TORCH_INTERNAL_ASSERT(i < frame_->nouts, frame_->schema, ": call frame has no output ", i);
  return kl_frame_outs(frame_)[i];
}

at::Tensor FrameReader::tensor(const kl_value& value) {
  if (value.tag == KL_TAG_ABSENT) {
    return {};
  }
  TORCH_INTERNAL_ASSERT(value.tag == KL_TAG_TENSOR, frame_->schema, ": expected a tensor in the call frame");
  const auto& t = value.v.t;
  c10::Storage storage;
  if (t.storage_id != 0) {
    for (const auto& seen : seen_) {
      if (seen.tensor_id == t.tensor_id) {
        return seen.tensor;
      }
      if (seen.storage_id == t.storage_id) {
        storage = seen.tensor.storage();
      }
    }
  }
  if (!storage) {
    const bool host = (t.flags & KL_TENSOR_HOST_SCALAR) != 0;
    void* data = host ? const_cast<unsigned char*>(t.scalar) : t.data;
    const auto bytes = static_cast<int64_t>(host ? sizeof(t.scalar) : t.storage_bytes);
    storage = c10::Storage(
        c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(),
            bytes,
            c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)),
            /*allocator=*/nullptr,
            /*resizable=*/false));
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(fromChipDtype(t.dtype)));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(t.offset);
  impl->set_sizes_and_strides(
      at::IntArrayRef(kl_tensor_sizes(frame_, &t), t.ndim), at::IntArrayRef(kl_tensor_strides(frame_, &t), t.ndim));
  if (t.flags & KL_TENSOR_WRAPPED_NUMBER) {
    impl->set_wrapped_number(true);
  }
  if (t.flags & KL_TENSOR_CONJ) {
    impl->_set_conj(true);
  }
  if (t.flags & KL_TENSOR_NEG) {
    impl->_set_neg(true);
  }
  seen_.push_back({t.tensor_id, t.storage_id, tensor});
  return tensor;
}

std::vector<at::Tensor> FrameReader::tensors(const kl_value& value) {
  TORCH_INTERNAL_ASSERT(value.tag == KL_TAG_TENSOR_LIST, frame_->schema, ": expected a tensor list in the call frame");
  const auto* elements = static_cast<const kl_value*>(kl_frame_at(frame_, value.v.tail));
  std::vector<at::Tensor> tensors;
  tensors.reserve(value.count);
  for (uint32_t i = 0; i < value.count; ++i) {
    tensors.push_back(tensor(elements[i]));
  }
  return tensors;
}

at::Scalar FrameReader::scalar(const kl_value& value) const {
  switch (value.tag) {
    case KL_TAG_BOOL:
      return at::Scalar(value.v.i != 0);
    case KL_TAG_INT:
      return at::Scalar(value.v.i);
    case KL_TAG_DOUBLE:
      return at::Scalar(value.v.d[0]);
    case KL_TAG_COMPLEX:
      return at::Scalar(c10::complex<double>(value.v.d[0], value.v.d[1]));
    default:
      TORCH_INTERNAL_ASSERT(false, frame_->schema, ": expected a number in the call frame, not tag ", value.tag);
  }
}

at::IntArrayRef FrameReader::ints(const kl_value& value) const {
  TORCH_INTERNAL_ASSERT(value.tag == KL_TAG_INT_LIST, frame_->schema, ": expected integers in the call frame");
  return {static_cast<const int64_t*>(kl_frame_at(frame_, value.v.tail)), value.count};
}

at::ArrayRef<double> FrameReader::doubles(const kl_value& value) const {
  TORCH_INTERNAL_ASSERT(value.tag == KL_TAG_DOUBLE_LIST, frame_->schema, ": expected doubles in the call frame");
  return {static_cast<const double*>(kl_frame_at(frame_, value.v.tail)), value.count};
}

std::string_view FrameReader::string(const kl_value& value) const {
  TORCH_INTERNAL_ASSERT(value.tag == KL_TAG_STRING, frame_->schema, ": expected a string in the call frame");
  return {static_cast<const char*>(kl_frame_at(frame_, value.v.tail)), value.count};
}

at::Generator FrameReader::generator(const kl_value& value) const {
  TORCH_INTERNAL_ASSERT(value.tag == KL_TAG_PHILOX, frame_->schema, ": expected a seed and offset in the call frame");
  return philoxCpuGenerator(value.v.u[0], value.v.u[1]);
}

at::Generator philoxCpuGenerator(uint64_t seed, uint64_t offset) {
  // The CPU kernels draw from a Mersenne twister. Filling its whole state from
  // Philox keeps calls with different (seed, offset) apart, which seeding it
  // with one 32-bit number would not.
  at::philox_engine philox(seed, /*subsequence=*/0, offset);
  at::mt19937_data_pod state{};
  for (auto& word : state.state_) {
    word = philox();
  }
  state.seed_ = seed;
  state.seeded_ = true;
  state.left_ = 1;
  state.next_ = 0;
  at::mt19937 engine;
  engine.set_data(state);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  generator.get<at::CPUGeneratorImpl>()->set_engine(engine);
  return generator;
}

namespace {

c10::IValue listValue(FrameReader& reader, const kl_value& value, const c10::TypePtr& element) {
  const auto* frame = reader.frame();
  switch (value.tag) {
    case KL_TAG_TENSOR_LIST: {
      if (element->kind() == c10::TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> list;
        for (auto& tensor : reader.tensors(value)) {
          list.push_back(tensor.defined() ? std::optional<at::Tensor>(std::move(tensor)) : std::nullopt);
        }
        return list;
      }
      return c10::List<at::Tensor>(at::ArrayRef<at::Tensor>(reader.tensors(value)));
    }
    case KL_TAG_INT_LIST:
      return c10::List<int64_t>(reader.ints(value));
    case KL_TAG_DOUBLE_LIST:
      return c10::List<double>(reader.doubles(value));
    case KL_TAG_BOOL_LIST: {
      c10::List<bool> list;
      const auto* bytes = static_cast<const bool*>(kl_frame_at(frame, value.v.tail));
      for (uint32_t i = 0; i < value.count; ++i) {
        list.push_back(bytes[i]);
      }
      return list;
    }
    case KL_TAG_SCALAR_LIST: {
      c10::List<at::Scalar> list;
      const auto* elements = static_cast<const kl_value*>(kl_frame_at(frame, value.v.tail));
      for (uint32_t i = 0; i < value.count; ++i) {
        list.push_back(reader.scalar(elements[i]));
      }
      return list;
    }
    default:
      TORCH_INTERNAL_ASSERT(false, frame->schema, ": expected a list in the call frame, not tag ", value.tag);
  }
}

} // namespace

c10::IValue FrameReader::ivalue(const kl_value& value, const c10::TypePtr& type) {
  // By kind: casts would count references of the types, which all threads share.
  if (type->kind() == c10::TypeKind::OptionalType) {
    return value.tag == KL_TAG_ABSENT ? c10::IValue()
                                      : ivalue(value, type->expectRef<c10::OptionalType>().getElementType());
  }
  if (type->kind() == c10::TypeKind::ListType) {
    return listValue(*this, value, type->expectRef<c10::ListType>().getElementType());
  }
  switch (value.tag) {
    case KL_TAG_ABSENT:
      // A Tensor that is undefined, or a device, which on this side is the CPU.
      return type->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor())
                                                       : c10::IValue(c10::Device(c10::DeviceType::CPU));
    case KL_TAG_TENSOR:
      return tensor(value);
    case KL_TAG_DTYPE:
      return static_cast<int64_t>(fromChipDtype(static_cast<int32_t>(value.v.i)));
    case KL_TAG_LAYOUT:
      return static_cast<int64_t>(c10::kStrided);
    case KL_TAG_MEMORY_FORMAT:
      return static_cast<int64_t>(fromChipMemoryFormat(value.v.i));
    case KL_TAG_STRING:
      return std::string(string(value));
    case KL_TAG_PHILOX:
      return generator(value);
    default:
      return c10::IValue(scalar(value));
  }
}

torch::jit::Stack toStack(FrameReader& reader, const c10::FunctionSchema& schema) {
  torch::jit::Stack stack;
  stack.reserve(schema.arguments().size());
  uint32_t next_arg = 0;
  uint32_t next_out = 0;
  for (const auto& argument : schema.arguments()) {
    if (argument.is_out()) {
      stack.emplace_back(reader.ivalue(reader.out(next_out++), argument.type()));
    } else {
      stack.emplace_back(reader.ivalue(reader.arg(next_arg++), argument.type()));
    }
  }
  TORCH_INTERNAL_ASSERT(
      next_arg == reader.nargs(), schema.operator_name(), ": call frame with ", reader.nargs(), " arguments");
  return stack;
}

} // namespace kunlun::frame
