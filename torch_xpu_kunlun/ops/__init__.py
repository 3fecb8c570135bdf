"""Fused operators for language models, ``torch.ops.kunlun.*``, named as the vendor's library names them.

They are for inference: a call that asks for a gradient raises. Each takes float32, float16 and bfloat16, computes and
sums in float32 and rounds once. ``torch_xpu_kunlun.ops.reference`` has the same functions composed of torch's own
operators, for any device, differentiable.
"""

from torch_xpu_kunlun.ops.activation import quick_gelu, silu_and_mul, swiglu, swigluoai_and_mul
from torch_xpu_kunlun.ops.attention import attention_merge_stage, paged_attention, prefill_attention
from torch_xpu_kunlun.ops.cache import reshape_and_cache, reshape_and_cache_flash
from torch_xpu_kunlun.ops.norm import add_rmsnorm, add_rmsnorm_, rmsnorm
from torch_xpu_kunlun.ops.rotary import rotary_embedding, split_norm_rope

__all__ = [
    "add_rmsnorm",
    "add_rmsnorm_",
    "attention_merge_stage",
    "paged_attention",
    "prefill_attention",
    "quick_gelu",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "rmsnorm",
    "rotary_embedding",
    "silu_and_mul",
    "split_norm_rope",
    "swiglu",
    "swigluoai_and_mul",
]
