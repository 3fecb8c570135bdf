// The simulated chip's fused operators, kunlun::*.
#pragma once

#include <ATen/native/DispatchStub.h>

#include "runtime/sim/ops/Kernels.h"

namespace kunlun::sim {

using KernelList = c10::ArrayRef<Kernel> (*)();

// Kernels that only move memory.
c10::ArrayRef<Kernel> cacheKernels();

} // namespace kunlun::sim

// Kernels that are compiled for several instruction sets (folder vec): the list for the running processor.
// In torch's namespace, because the slots of its stubs can be filled only there.
namespace at::native {

DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_norm_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_activation_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_rotary_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_paged_attention_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_prefill_attention_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_moe_routing_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_moe_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_quant_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_int4_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_sampling_kernels)
DECLARE_DISPATCH(kunlun::sim::KernelList, kunlun_lora_kernels)

} // namespace at::native
