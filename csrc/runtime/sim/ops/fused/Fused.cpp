// The simulated chip's fused operators, kunlun::*.
#include "runtime/sim/ops/fused/Fused.h"

#include <c10/core/DeviceType.h>

namespace at::native {

DEFINE_DISPATCH(kunlun_norm_kernels);
DEFINE_DISPATCH(kunlun_activation_kernels);
DEFINE_DISPATCH(kunlun_rotary_kernels);
DEFINE_DISPATCH(kunlun_paged_attention_kernels);
DEFINE_DISPATCH(kunlun_prefill_attention_kernels);
DEFINE_DISPATCH(kunlun_moe_routing_kernels);
DEFINE_DISPATCH(kunlun_moe_kernels);
DEFINE_DISPATCH(kunlun_quant_kernels);
DEFINE_DISPATCH(kunlun_int4_kernels);
DEFINE_DISPATCH(kunlun_sampling_kernels);
DEFINE_DISPATCH(kunlun_lora_kernels);

} // namespace at::native

namespace kunlun::sim {

void visitFusedKernels(const std::function<void(c10::ArrayRef<Kernel>)>& visit) {
  visit(cacheKernels());
  visit(at::native::kunlun_norm_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_activation_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_rotary_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_paged_attention_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_prefill_attention_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_moe_routing_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_moe_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_quant_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_int4_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_sampling_kernels(c10::DeviceType::CPU));
  visit(at::native::kunlun_lora_kernels(c10::DeviceType::CPU));
}

} // namespace kunlun::sim
