// Packs one operator call into a call frame (runtime/chip/frame.h).
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/OptionalArrayRef.h>

#include "runtime/chip/frame.h"
#include "runtime/frame/DTypes.h"

namespace kunlun::frame {

// Seed and offset that a random operator uses; the caller has advanced the generator.
struct Philox {
  uint64_t seed;
  uint64_t offset;
};

// Values are added in the order of the frame: all arguments, then all outputs.
// Tensors must live on `device`; 0-dim CPU tensors are captured by value, and
// any other device is the error that torch raises for mixed devices.
class FrameBuilder {
 public:
  FrameBuilder(const char* schema, kl_stream_st* stream, c10::Device device, uint32_t nargs, uint32_t nouts);
  FrameBuilder(const FrameBuilder&) = delete;
  FrameBuilder& operator=(const FrameBuilder&) = delete;
  ~FrameBuilder() = default;

  void add(const at::Tensor& tensor);
  void add(const std::optional<at::Tensor>& tensor);
  void add(at::ITensorListRef tensors);
  void add(at::TensorList tensors);
  void add(at::IOptTensorListRef tensors);
  void add(const c10::List<std::optional<at::Tensor>>& tensors);
  void add(const at::Scalar& scalar);
  void add(const std::optional<at::Scalar>& scalar);
  void add(at::ArrayRef<at::Scalar> scalars);
  void add(bool value);
  void add(int64_t value);
  void add(double value);
  void add(std::optional<bool> value);
  void add(std::optional<int64_t> value);
  void add(std::optional<double> value);
  void add(at::IntArrayRef values);
  void add(at::OptionalIntArrayRef values);
  void add(at::ArrayRef<double> values);
  void add(std::optional<at::ArrayRef<double>> values);
  void add(at::ArrayRef<bool> values);
  void add(std::string_view text);
  void add(std::optional<std::string_view> text);
  void add(c10::ScalarType dtype);
  void add(std::optional<c10::ScalarType> dtype);
  void add(c10::Layout layout);
  void add(std::optional<c10::Layout> layout);
  void add(c10::MemoryFormat format);
  void add(std::optional<c10::MemoryFormat> format);
  void add(Philox philox);
  void addAbsent();
  // An argument of a boxed call. TypeError for what has no place in a frame.
  void add(const c10::IValue& value);

  void addOut(const at::Tensor& tensor) {
    add(tensor);
  }
  // An output whose shape only the operator knows: absent, with room in the
  // tail for the sizes and strides that kl_frame::alloc will fill in.
  void addUnknownOut();

  // Valid until the builder is destroyed or something is added.
  kl_frame* finish();

 private:
  kl_value* next(uint32_t tag);
  void fillTensor(kl_value* value, const at::Tensor& tensor);
  template <class T>
  void addList(uint32_t tag, const T* values, size_t count);
  template <class List>
  void addTensors(const List& tensors);
  // Reserves bytes in the tail; pointers into the block are invalid afterwards.
  uint32_t grow(size_t bytes);
  kl_value* valueAt(uint32_t offset) {
    return reinterpret_cast<kl_value*>(block_ + offset);
  }

  static constexpr size_t kInline = 1152; // a binary operator with eight dimensions fits
  alignas(16) char inline_[kInline];
  std::unique_ptr<char[]> heap_;
  char* block_ = inline_;
  size_t capacity_ = kInline;
  uint32_t used_;
  uint32_t values_ = 0;
  uint32_t limit_;
  c10::Device device_;
};

// Dimensions that an output may have whose shape only the operator knows.
inline constexpr int64_t kMaxDims = 64;

// What kl_frame::alloc does with the tensor it made for an unknown output.
void fillOut(kl_frame* frame, uint32_t slot, const at::Tensor& tensor);

} // namespace kunlun::frame
