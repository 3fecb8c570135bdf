// Defines the fused operators of namespace kunlun: for inference, with shape functions, honest about what they write.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include "aten/Shortcut.h"

namespace kunlun::aten::fused {

// The operator's name as a template argument: "rmsnorm", "rmsnorm.out".
template <size_t N>
struct Name {
  constexpr Name(const char (&literal)[N]) {
    std::copy_n(literal, N, text);
  }
  char text[N];
};

namespace detail {

template <class T>
bool needsGradient(const T& argument) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return argument.defined() && (argument.requires_grad() || argument._fw_grad(0).defined());
  } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    return argument.has_value() && needsGradient(*argument);
  } else {
    return false;
  }
}

// What the operator writes, its signature takes as Tensor&: saved tensors must notice.
template <class T>
void noticeWrite(T&& argument) {
  if constexpr (std::is_same_v<T, at::Tensor&>) {
    if (argument.defined() && !argument.is_inference()) {
      argument.unsafeGetTensorImpl()->bump_version();
    }
  } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    if (argument.has_value()) {
      noticeWrite<at::Tensor&>(*argument);
    }
  }
}

[[noreturn]] void refuseGradient(const char* name);
c10::OperatorHandle find(const char* name);

template <Name kName, auto Function>
struct Inference;

template <Name kName, class R, class... Args, R (*Function)(Args...)>
struct Inference<kName, Function> {
  static R call(c10::DispatchKeySet keys, Args... args) {
    if (at::GradMode::is_enabled() && (needsGradient<std::remove_cvref_t<Args>>(args) || ...)) {
      refuseGradient(kName.text);
    }
    (noticeWrite<Args>(static_cast<Args>(args)), ...);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (onlyChipBelowAutograd(keys)) {
      return Function(static_cast<Args>(args)...);
    }
    static const auto op = find(kName.text).template typed<R(Args...)>();
    return op.redispatch(keys & c10::after_ADInplaceOrView_keyset, static_cast<Args>(args)...);
  }
};

} // namespace detail

// `Chip` launches the operator, `Meta` makes results without memory; a call that asks for a gradient is an error.
template <Name kName, auto Chip, auto Meta>
void define(torch::Library& m, const char* schema, std::vector<at::Tag> tags = {}) {
  using Above = detail::Inference<kName, Chip>;
  tags.push_back(at::Tag::pt2_compliant_tag);
  m.def(schema, std::as_const(tags));
  m.impl(kName.text, torch::dispatch(c10::DispatchKey::PrivateUse1, TORCH_FN(Chip)));
  m.impl(kName.text, torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(Meta)));
  m.impl(kName.text, torch::dispatch(c10::DispatchKey::AutogradPrivateUse1, TORCH_FN(Above::call)));
}

} // namespace kunlun::aten::fused
