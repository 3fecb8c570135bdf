// Reads the arguments of a fused operator from its call frame. No torch in here: the kernels work on addresses.
#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include "runtime/chip/frame.h"

namespace kunlun::sim {

// Included by files for several instruction sets: all of it has internal linkage.
namespace {

inline int64_t itemSize(int32_t dtype) {
  switch (dtype) {
    case KL_BOOL:
    case KL_UINT8:
    case KL_INT8:
    case KL_FLOAT8_E4M3FN:
    case KL_FLOAT8_E5M2:
    case KL_FLOAT8_E4M3FNUZ:
    case KL_FLOAT8_E5M2FNUZ:
    case KL_FLOAT8_E8M0FNU:
      return 1;
    case KL_INT16:
    case KL_UINT16:
    case KL_FLOAT16:
    case KL_BFLOAT16:
      return 2;
    case KL_INT32:
    case KL_UINT32:
    case KL_FLOAT32:
    case KL_COMPLEX32:
      return 4;
    case KL_COMPLEX128:
      return 16;
    default:
      return 8;
  }
}

// A tensor of the frame. Strides are in elements.
struct View {
  char* data = nullptr; // of the first element; nullptr for an absent tensor
  int32_t dtype = KL_DTYPE_UNDEFINED;
  int64_t dims = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;

  bool defined() const {
    return data != nullptr;
  }
  // Negative dimensions count from the back.
  int64_t size(int64_t dim) const {
    return sizes[dim < 0 ? dims + dim : dim];
  }
  int64_t stride(int64_t dim) const {
    return strides[dim < 0 ? dims + dim : dim];
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  // Of a tensor of int32 or int64: what lies `offset` elements after the first.
  int64_t indexAt(int64_t offset) const {
    return dtype == KL_INT32 ? as<int32_t>()[offset] : as<int64_t>()[offset];
  }
  // Element i of a vector, element (i, j) of a matrix.
  int64_t index(int64_t i) const {
    return indexAt(i * strides[0]);
  }
  int64_t index(int64_t i, int64_t j) const {
    return indexAt(i * strides[0] + j * strides[1]);
  }
};

// The rows of a tensor: all dimensions but the last `inner`, in order.
struct Rows {
  explicit Rows(const View& tensor, int64_t inner = 1)
      : sizes(tensor.sizes), strides(tensor.strides), leading(tensor.dims - inner) {
    bool first = true;
    int64_t expected = 0;
    for (int64_t d = leading - 1; d >= 0; --d) {
      if (sizes[d] != 1) {
        if (first) {
          step = strides[d];
          expected = strides[d];
          first = false;
        }
        even &= strides[d] == expected;
        expected *= sizes[d];
      }
      count *= sizes[d];
    }
  }
  // Where row r begins, in elements.
  int64_t offset(int64_t r) const {
    if (even) {
      return r * step;
    }
    int64_t at = 0;
    for (int64_t d = leading - 1; d >= 0; --d) {
      at += r % sizes[d] * strides[d];
      r /= sizes[d];
    }
    return at;
  }

  const int64_t* sizes;
  const int64_t* strides;
  int64_t leading;
  int64_t count = 1;
  int64_t step = 0;
  bool even = true; // each row lies `step` after the one before
};

class Args {
 public:
  explicit Args(const kl_frame* frame) : frame_(frame) {}

  View in(uint32_t i) const {
    return view(kl_frame_args(frame_)[i]);
  }
  View out(uint32_t i) const {
    return view(kl_frame_outs(frame_)[i]);
  }
  bool has(uint32_t i) const {
    return kl_frame_args(frame_)[i].tag != KL_TAG_ABSENT;
  }
  int64_t integer(uint32_t i) const { // and bool
    return kl_frame_args(frame_)[i].v.i;
  }
  float number(uint32_t i) const {
    return static_cast<float>(kl_frame_args(frame_)[i].v.d[0]);
  }
  // Seed and offset.
  const uint64_t* philox(uint32_t i) const {
    return kl_frame_args(frame_)[i].v.u;
  }

 private:
  View view(const kl_value& value) const {
    if (value.tag != KL_TAG_TENSOR) {
      return {};
    }
    const auto& t = value.v.t;
    return {
        static_cast<char*>(t.data) + t.offset * itemSize(t.dtype),
        t.dtype,
        t.ndim,
        kl_tensor_sizes(frame_, &t),
        kl_tensor_strides(frame_, &t)};
  }

  const kl_frame* frame_;
};

// function(T()) with T the element type. The caller of the operator has checked that it is one of these.
template <class Function>
void withFloatType(int32_t dtype, const Function& function) {
  switch (dtype) {
    case KL_FLOAT32:
      return function(float());
    case KL_FLOAT16:
      return function(c10::Half());
    case KL_BFLOAT16:
      return function(c10::BFloat16());
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, "the simulated chip's fused operators take float32, float16 and bfloat16, not chip dtype ", dtype);
  }
}

} // namespace

} // namespace kunlun::sim
