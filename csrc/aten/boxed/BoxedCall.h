// Calls the boxed tier with typed arguments, for launchers that serve some of their calls only.
#pragma once

#include <utility>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>

#include "aten/boxed/Boxed.h"

namespace kunlun::aten {

template <class Signature>
struct BoxedCall;

template <class Result, class... Args>
struct BoxedCall<Result(Args...)> {
  static Result call(const c10::OperatorHandle& op, Args... args) {
    static const auto kernel = c10::BoxedKernel::makeFromFunction<&boxedTier>();
    return c10::impl::BoxedKernelWrapper<Result(Args...)>::call(
        kernel, op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), std::forward<Args>(args)...);
  }
};

} // namespace kunlun::aten
