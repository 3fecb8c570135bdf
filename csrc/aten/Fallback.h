// The policy for operators that only the host could compute, on copies.
#pragma once

#include <string>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include "runtime/Env.h"

namespace kunlun::aten {

// Throws for an operator that the policy forbids: c10::NotImplementedError until
// the Python module installs its own, whose exceptions Python sees as
// torch_xpu_kunlun.UnsupportedOperatorError (a subclass of NotImplementedError).
using UnsupportedOperatorThrower = void (*)(std::string text);
void setUnsupportedOperatorThrower(UnsupportedOperatorThrower thrower);

// Applies the policy to one call: throws, or warns (once
// per operator), or passes; counts the call. `arguments` describes the tensors.
void permitFallback(const std::string& op, c10::Device device, const std::string& arguments);
void permitFallback(const std::string& op, c10::Device device, at::ArrayRef<c10::IValue> arguments);

// The policy in force: KUNLUN_FALLBACK until it is set at run time.
FallbackPolicy fallbackPolicy();
void setFallbackPolicy(const std::string& text); // the variable's grammar

} // namespace kunlun::aten
