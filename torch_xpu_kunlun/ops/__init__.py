"""Fused operators for language models, ``torch.ops.kunlun.*``, named as the vendor's library names them.

They are for inference: a call that asks for a gradient raises. Activations are float32, float16 or bfloat16;
everything is computed and summed in float32 and rounded once. ``torch_xpu_kunlun.ops.reference`` has the same functions
composed of torch's own operators, for any device, differentiable.
"""

from torch_xpu_kunlun.ops.activation import quick_gelu, silu_and_mul, swiglu, swigluoai_and_mul
from torch_xpu_kunlun.ops.attention import attention_merge_stage, fwd_kvcache_mla, paged_attention, prefill_attention
from torch_xpu_kunlun.ops.cache import concat_and_cache_mla, reshape_and_cache, reshape_and_cache_flash
from torch_xpu_kunlun.ops.lora import bgmv_expand, bgmv_shrink
from torch_xpu_kunlun.ops.moe import (
    moe_fc,
    moe_ffn_block,
    moe_sigmoid_group_topk_norm,
    moe_softmax_topk,
    moe_softmax_topk_norm,
)
from torch_xpu_kunlun.ops.norm import add_rmsnorm, add_rmsnorm_, rmsnorm
from torch_xpu_kunlun.ops.quant import (
    awq_dequantize,
    awq_gemm,
    cutlass_scaled_mm,
    dynamic_scaled_int8_quant,
    gemm_I8_I8_bf16_nt,
    gptq_gemm,
    quant2d,
)
from torch_xpu_kunlun.ops.rotary import rotary_embedding, split_norm_rope
from torch_xpu_kunlun.ops.sampling import (
    top_k_sampling_from_probs,
    top_k_top_p_sampling_from_probs,
    top_p_sampling_from_probs,
)

__all__ = [
    "add_rmsnorm",
    "add_rmsnorm_",
    "attention_merge_stage",
    "awq_dequantize",
    "awq_gemm",
    "bgmv_expand",
    "bgmv_shrink",
    "concat_and_cache_mla",
    "cutlass_scaled_mm",
    "dynamic_scaled_int8_quant",
    "fwd_kvcache_mla",
    "gemm_I8_I8_bf16_nt",
    "gptq_gemm",
    "moe_fc",
    "moe_ffn_block",
    "moe_sigmoid_group_topk_norm",
    "moe_softmax_topk",
    "moe_softmax_topk_norm",
    "paged_attention",
    "prefill_attention",
    "quant2d",
    "quick_gelu",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "rmsnorm",
    "rotary_embedding",
    "silu_and_mul",
    "split_norm_rope",
    "swiglu",
    "swigluoai_and_mul",
    "top_k_sampling_from_probs",
    "top_k_top_p_sampling_from_probs",
    "top_p_sampling_from_probs",
]
