"""SGLang's layers on the fused operators.

SGLang looks for a platform's own forward function of a layer by the exact class, so a function is registered for each
class that has the computation which the function replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.kernels.fused_op import BaseFusedOp
from sglang.srt.layers.activation import QuickGELU, SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

from torch_xpu_kunlun import engines, ops

_PLATFORM = "kunlun"


def rms_norm(
    self: RMSNorm,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: torch.nn.Module | None = None,
) -> Any:
    """``RMSNorm.forward``; as on CUDA, ``x`` and ``residual`` are written where there is a residual."""
    special = (
        self.variance_size_override is not None
        or self.cast_x_before_out_mul
        or self.fp32_residual
        or self.override_orig_dtype is not None
        or self.weight.dtype not in (x.dtype, torch.float32)
    )
    if special:
        return self.forward_native(x, residual, post_residual_addition)
    if residual is None:
        return ops.rmsnorm(x, self.weight, self.variance_epsilon)
    if post_residual_addition is not None:
        residual = residual + post_residual_addition
    ops.add_rmsnorm_(x, residual, self.weight, self.variance_epsilon)
    return x, residual


def silu_and_mul(self: SiluAndMul, x: torch.Tensor) -> torch.Tensor:
    """``SiluAndMul.forward``."""
    return ops.silu_and_mul(x)


def quick_gelu(self: QuickGELU, x: torch.Tensor) -> torch.Tensor:
    """``QuickGELU.forward``."""
    return ops.quick_gelu(x)


def rotary_embedding(
    self: RotaryEmbedding,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
    fused_set_kv_buffer_arg: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``RotaryEmbedding.forward``; as on CUDA, ``query`` and ``key`` are rotated in place."""
    if fused_set_kv_buffer_arg is not None:
        raise NotImplementedError("rotary embedding on kunlun does not write the cache of keys and values")
    cache = self.cos_sin_cache
    if cache.dtype not in (query.dtype, torch.float32):
        return self.forward_native(positions, query, key, offsets)
    if offsets is not None:
        positions = positions + offsets
    ops.rotary_embedding(positions, query, key, self.head_size, cache, self.is_neox_style)
    return query, key


def experts(self: UnquantizedFusedMoEMethod, layer: torch.nn.Module, dispatch_output: Any) -> StandardCombineInput:
    """``UnquantizedFusedMoEMethod.forward``."""
    config = self.moe_runner_config
    plain = (
        config.activation == "silu"
        and config.is_gated
        and config.gemm1_alpha is None
        and not config.apply_router_weight_on_input
        and getattr(layer, "w13_weight_bias", None) is None
        and getattr(layer, "w2_weight_bias", None) is None
    )
    if not plain:
        return self.forward_native(layer, dispatch_output)
    weights, ids, _ = dispatch_output.topk_output
    x = dispatch_output.hidden_states
    return StandardCombineInput(ops.moe_ffn_block(x, layer.w13_weight, layer.w2_weight, weights.float(), ids))


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for child in cls.__subclasses__():
        yield from _with_subclasses(child)


#: Class whose computation is replaced, and by which function.
REPLACED: dict[type, Callable[..., Any]] = {
    RMSNorm: rms_norm,
    SiluAndMul: silu_and_mul,
    QuickGELU: quick_gelu,
    RotaryEmbedding: rotary_embedding,
    UnquantizedFusedMoEMethod: experts,
}


def register() -> None:
    """Registers the functions with SGLang, unless ``KUNLUN_CUSTOM_OPS=0``: then each layer runs its composed form."""
    if not engines.use_custom_ops():
        return
    for base, function in REPLACED.items():
        for cls in _with_subclasses(base):
            if cls.forward_native is base.forward_native:
                BaseFusedOp.register_oot_forward(cls, function, _PLATFORM)
