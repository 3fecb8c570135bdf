// The boxed tier: every operator with a CPU kernel, synchronous and zero copy.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

namespace kunlun::aten {

// A boxed kernel for any operator. In this order: the driver's own kernel, if
// its table has one; the CPU kernel over the device's memory, on the chip's own
// thread, if the chip is host-addressable; a copying fallback under the policy
// of KUNLUN_FALLBACK. Returns when the operator is done.
void boxedTier(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// "aten::add.Tensor"
std::string qualifiedName(const c10::OperatorHandle& op);

} // namespace kunlun::aten
