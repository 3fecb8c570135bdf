// Launchers of structured operators: torch's own meta functions compute shapes
// and dtypes and check the arguments on the caller's thread; these classes take
// what they compute and provide the outputs.
#pragma once

#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/core/Tensor.h>

#include "aten/Launch.h"
#include "runtime/TorchVersion.h"

namespace kunlun::aten {

namespace detail {
at::Tensor
createOutput(at::IntArrayRef sizes, at::IntArrayRef strides, const c10::TensorOptions& options, c10::Device device);
// Raise where torch's generated kernels raise, with the same words.
void checkInplace(const at::Tensor& self, at::IntArrayRef sizes, const c10::TensorOptions& options);
void resizeOutput(
    const at::Tensor& out,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    const c10::TensorOptions& options);
// For kernels that take operands of one dtype only.
void checkSameDtype(const at::Tensor& a, const at::Tensor& b);

} // namespace detail

// Meta is an at::meta::structured_* class; Derived::provide gives output `i`
// the shape that the meta function asks for.
template <class Meta, class Derived>
class StructuredOp : public Meta {
 public:
#if KUNLUN_TORCH_BEFORE(2, 13)
  // Meta functions of these versions hand on the outputs' names, which operands on the device never have.
  void set_output_strided(
      int64_t i,
      at::IntArrayRef sizes,
      at::IntArrayRef strides,
      c10::TensorOptions options,
      at::DimnameList) override {
    set(i, sizes, strides, options);
  }
  void set_output_raw_strided(
      int64_t i,
      at::IntArrayRef sizes,
      at::IntArrayRef strides,
      c10::TensorOptions options,
      at::DimnameList) override {
    set(i, sizes, strides, options);
  }
#else
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, c10::TensorOptions options)
      override {
    set(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, c10::TensorOptions options)
      override {
    set(i, sizes, strides, options);
  }
#endif
  const at::Tensor& maybe_get_output(int64_t i) override {
    return static_cast<Derived*>(this)->output(i);
  }

 private:
  void set(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, const c10::TensorOptions& options) {
    static_cast<Derived*>(this)->provide(i, sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
      // The iterator takes the output's dtype and strides from there on.
#if KUNLUN_TORCH_BEFORE(2, 13)
      at::TensorIteratorBase::set_output_raw_strided(i, sizes, strides, options, {});
#else
      at::TensorIteratorBase::set_output_raw_strided(i, sizes, strides, options);
#endif
    }
  }
};

template <class Meta, size_t N>
class FunctionalOp final : public StructuredOp<Meta, FunctionalOp<Meta, N>> {
 public:
  explicit FunctionalOp(c10::Device device) : device_(device) {}

  void provide(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, const c10::TensorOptions& options) {
    outputs_[i] = detail::createOutput(sizes, strides, options, device_);
  }
  const at::Tensor& output(int64_t i) const {
    return outputs_[i];
  }
  std::array<const at::Tensor*, N> outputs() const {
    std::array<const at::Tensor*, N> all;
    for (size_t i = 0; i < N; ++i) {
      all[i] = &outputs_[i];
    }
    return all;
  }
  auto take() {
    if constexpr (N == 1) {
      return std::move(outputs_[0]);
    } else {
      return std::tuple_cat(std::move(outputs_));
    }
  }

 private:
  c10::Device device_;
  std::array<at::Tensor, N> outputs_;
};

template <class Meta>
class InplaceOp final : public StructuredOp<Meta, InplaceOp<Meta>> {
 public:
  InplaceOp(c10::Device, const at::Tensor& self) : self_(self) {}

  void provide(int64_t, at::IntArrayRef sizes, at::IntArrayRef, const c10::TensorOptions& options) {
    detail::checkInplace(self_, sizes, options);
  }
  const at::Tensor& output(int64_t) const {
    return self_;
  }
  std::array<const at::Tensor*, 1> outputs() const {
    return {&self_};
  }

 private:
  const at::Tensor& self_;
};

template <class Meta, size_t N>
class OutOp final : public StructuredOp<Meta, OutOp<Meta, N>> {
 public:
  OutOp(c10::Device, std::array<const at::Tensor*, N> outs) : outs_(outs) {}

  void provide(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, const c10::TensorOptions& options) {
    detail::resizeOutput(*outs_[i], sizes, strides, options);
  }
  const at::Tensor& output(int64_t i) const {
    return *outs_[i];
  }
  std::array<const at::Tensor*, N> outputs() const {
    return outs_;
  }

 private:
  std::array<const at::Tensor*, N> outs_;
};

} // namespace kunlun::aten
