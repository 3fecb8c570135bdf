// Reads a call frame back into ATen's types, over host-addressable memory.
//
// Used where ATen's CPU kernels are the silicon: in the simulated chip's
// operator library, and by the host-side execution of frames the driver has no
// kernel for. Tensors alias the device memory that the frame names.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/Scalar.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/SmallVector.h>

#include "runtime/chip/frame.h"
#include "runtime/frame/DTypes.h"

namespace kunlun::frame {

// A CPU generator whose whole state follows from a seed and an offset.
at::Generator philoxCpuGenerator(uint64_t seed, uint64_t offset);

class FrameReader {
 public:
  explicit FrameReader(const kl_frame* frame) : frame_(frame) {}

  uint32_t nargs() const {
    return frame_->nargs;
  }
  uint32_t nouts() const {
    return frame_->nouts;
  }
  const kl_value& arg(uint32_t i) const;
  const kl_value& out(uint32_t i) const;

  // Undefined for an absent value. Equal tensor ids give one Tensor, equal
  // storage ids one Storage, so that overlap checks and in-place tests hold.
  at::Tensor tensor(const kl_value& value);
  std::vector<at::Tensor> tensors(const kl_value& value);
  at::Scalar scalar(const kl_value& value) const;
  at::IntArrayRef ints(const kl_value& value) const;
  at::ArrayRef<double> doubles(const kl_value& value) const;
  std::string_view string(const kl_value& value) const;
  // A CPU generator whose state is drawn from the frame's seed and offset.
  at::Generator generator(const kl_value& value) const;
  c10::IValue ivalue(const kl_value& value, const c10::TypePtr& type);

  // Gives up the tensors read so far, for a caller that destroys them later.
  void moveTensorsTo(std::vector<c10::IValue>& values) {
    for (auto& seen : seen_) {
      values.emplace_back(std::move(seen.tensor));
    }
    seen_.clear();
  }

  const kl_frame* frame() const {
    return frame_;
  }

 private:
  struct Seen {
    uint64_t tensor_id;
    uint64_t storage_id;
    at::Tensor tensor;
  };
  const kl_frame* frame_;
  c10::SmallVector<Seen, 4> seen_;
};

// The arguments as the stack that the schema's boxed kernel takes. Trailing
// out-arguments of `.out` schemas come from the frame's outputs.
torch::jit::Stack toStack(FrameReader& reader, const c10::FunctionSchema& schema);

// ---- typed reading: Slot<T> holds what parameter type T refers to ----

template <class T>
struct Slot;

template <>
struct Slot<const at::Tensor&> {
  at::Tensor value;
  Slot(FrameReader& r, const kl_value& v) : value(r.tensor(v)) {}
  const at::Tensor& get() {
    return value;
  }
};

template <>
struct Slot<at::Tensor&> {
  at::Tensor value;
  Slot(FrameReader& r, const kl_value& v) : value(r.tensor(v)) {}
  at::Tensor& get() {
    return value;
  }
};

template <>
struct Slot<const std::optional<at::Tensor>&> {
  std::optional<at::Tensor> value;
  Slot(FrameReader& r, const kl_value& v) {
    if (v.tag != KL_TAG_ABSENT) {
      value = r.tensor(v);
    }
  }
  const std::optional<at::Tensor>& get() {
    return value;
  }
};

template <>
struct Slot<const at::ITensorListRef&> {
  std::vector<at::Tensor> tensors;
  at::ITensorListRef value;
  Slot(FrameReader& r, const kl_value& v) : tensors(r.tensors(v)), value(tensors) {}
  const at::ITensorListRef& get() {
    return value;
  }
};

template <>
struct Slot<at::TensorList> {
  std::vector<at::Tensor> tensors;
  Slot(FrameReader& r, const kl_value& v) : tensors(r.tensors(v)) {}
  at::TensorList get() {
    return tensors;
  }
};

template <>
struct Slot<const c10::List<std::optional<at::Tensor>>&> {
  c10::List<std::optional<at::Tensor>> value;
  Slot(FrameReader& r, const kl_value& v) {
    for (auto& tensor : r.tensors(v)) {
      value.push_back(tensor.defined() ? std::optional<at::Tensor>(std::move(tensor)) : std::nullopt);
    }
  }
  const c10::List<std::optional<at::Tensor>>& get() {
    return value;
  }
};

template <>
struct Slot<const at::Scalar&> {
  at::Scalar value;
  Slot(FrameReader& r, const kl_value& v) : value(r.scalar(v)) {}
  const at::Scalar& get() {
    return value;
  }
};

template <>
struct Slot<const std::optional<at::Scalar>&> {
  std::optional<at::Scalar> value;
  Slot(FrameReader& r, const kl_value& v) {
    if (v.tag != KL_TAG_ABSENT) {
      value = r.scalar(v);
    }
  }
  const std::optional<at::Scalar>& get() {
    return value;
  }
};

template <>
struct Slot<at::IntArrayRef> {
  at::IntArrayRef value;
  Slot(FrameReader& r, const kl_value& v) : value(r.ints(v)) {}
  at::IntArrayRef get() {
    return value;
  }
};

template <>
struct Slot<at::OptionalIntArrayRef> {
  at::OptionalIntArrayRef value;
  Slot(FrameReader& r, const kl_value& v) {
    if (v.tag != KL_TAG_ABSENT) {
      value = r.ints(v);
    }
  }
  at::OptionalIntArrayRef get() {
    return value;
  }
};

template <>
struct Slot<std::optional<at::ArrayRef<double>>> {
  std::optional<at::ArrayRef<double>> value;
  Slot(FrameReader& r, const kl_value& v) {
    if (v.tag != KL_TAG_ABSENT) {
      value = r.doubles(v);
    }
  }
  std::optional<at::ArrayRef<double>> get() {
    return value;
  }
};

template <>
struct Slot<std::string_view> {
  std::string_view value;
  Slot(FrameReader& r, const kl_value& v) : value(r.string(v)) {}
  std::string_view get() {
    return value;
  }
};

template <>
struct Slot<std::optional<std::string_view>> {
  std::optional<std::string_view> value;
  Slot(FrameReader& r, const kl_value& v) {
    if (v.tag != KL_TAG_ABSENT) {
      value = r.string(v);
    }
  }
  std::optional<std::string_view> get() {
    return value;
  }
};

// Numbers and enums that are passed by value.
template <class T>
T plain(const kl_value& v);
template <>
inline bool plain<bool>(const kl_value& v) {
  return v.v.i != 0;
}
template <>
inline int64_t plain<int64_t>(const kl_value& v) {
  return v.v.i;
}
template <>
inline double plain<double>(const kl_value& v) {
  return v.tag == KL_TAG_DOUBLE ? v.v.d[0] : static_cast<double>(v.v.i);
}
template <>
inline c10::ScalarType plain<c10::ScalarType>(const kl_value& v) {
  return fromChipDtype(static_cast<int32_t>(v.v.i));
}
template <>
inline c10::MemoryFormat plain<c10::MemoryFormat>(const kl_value& v) {
  return fromChipMemoryFormat(v.v.i);
}

template <class T>
struct PlainSlot {
  T value;
  PlainSlot(FrameReader&, const kl_value& v) : value(plain<T>(v)) {}
  T get() {
    return value;
  }
};
template <class T>
struct OptionalPlainSlot {
  std::optional<T> value;
  OptionalPlainSlot(FrameReader&, const kl_value& v) {
    if (v.tag != KL_TAG_ABSENT) {
      value = plain<T>(v);
    }
  }
  std::optional<T> get() {
    return value;
  }
};

template <>
struct Slot<bool> : PlainSlot<bool> {
  using PlainSlot::PlainSlot;
};
template <>
struct Slot<int64_t> : PlainSlot<int64_t> {
  using PlainSlot::PlainSlot;
};
template <>
struct Slot<double> : PlainSlot<double> {
  using PlainSlot::PlainSlot;
};
template <>
struct Slot<c10::ScalarType> : PlainSlot<c10::ScalarType> {
  using PlainSlot::PlainSlot;
};
template <>
struct Slot<std::optional<bool>> : OptionalPlainSlot<bool> {
  using OptionalPlainSlot::OptionalPlainSlot;
};
template <>
struct Slot<std::optional<int64_t>> : OptionalPlainSlot<int64_t> {
  using OptionalPlainSlot::OptionalPlainSlot;
};
template <>
struct Slot<std::optional<double>> : OptionalPlainSlot<double> {
  using OptionalPlainSlot::OptionalPlainSlot;
};
template <>
struct Slot<std::optional<c10::ScalarType>> : OptionalPlainSlot<c10::ScalarType> {
  using OptionalPlainSlot::OptionalPlainSlot;
};
template <>
struct Slot<std::optional<c10::MemoryFormat>> : OptionalPlainSlot<c10::MemoryFormat> {
  using OptionalPlainSlot::OptionalPlainSlot;
};

// Calls `function` with the frame's arguments, then its outputs.
template <class R, class... Args>
void callWithFrame(R (*function)(Args...), const kl_frame* frame) {
  FrameReader reader(frame);
  TORCH_INTERNAL_ASSERT(
      reader.nargs() + reader.nouts() == sizeof...(Args),
      frame->schema,
      ": frame and kernel differ in their arguments");
  [&]<size_t... I>(std::index_sequence<I...>) {
    // Braces: elements are read left to right, so equal tensors meet in order.
    std::tuple<Slot<Args>...> slots{Slot<Args>(reader, kl_frame_args(frame)[I])...};
    function(std::get<I>(slots).get()...);
  }(std::make_index_sequence<sizeof...(Args)>{});
}

} // namespace kunlun::frame
