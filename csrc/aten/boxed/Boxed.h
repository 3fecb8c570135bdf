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

// The same, but `cpu_op`, an operator with the same arguments and results, runs
// in place of `op`: for operators that torch implements under another name on
// the CPU.
void boxedTierAs(const c10::OperatorHandle& op, const c10::OperatorHandle& cpu_op, torch::jit::Stack* stack);

// "aten::add.Tensor"
std::string qualifiedName(const c10::OperatorHandle& op);

} // namespace kunlun::aten
