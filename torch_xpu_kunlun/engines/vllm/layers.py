"""vLLM's layers that have a fused operator, registered in place of upstream's classes."""

from __future__ import annotations

import functools

import torch
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.activation import QuickGELU, SiluAndMul, SwigluOAIAndMul
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from torch_xpu_kunlun import engines
from torch_xpu_kunlun.engines.vllm import moe, quantization


class KunlunSiluAndMul(SiluAndMul):
    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.kunlun.silu_and_mul(x)


class KunlunSwigluOAIAndMul(SwigluOAIAndMul):
    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.kunlun.swigluoai_and_mul(x, self.alpha, self.limit)


class KunlunQuickGELU(QuickGELU):
    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.kunlun.quick_gelu(x)


def _rotate(self, positions, query, key=None):
    """Rotates in place what may be a part of a fused projection; returns both, as vLLM's layers do."""
    cache = self._match_cos_sin_cache_dtype(query)
    torch.ops.kunlun.rotary_embedding(positions, query, key, self.head_size, cache, self.is_neox_style)
    return query, key


def _rotaries(cls: type = RotaryEmbedding) -> list[type]:
    """The class and those below it that differ only in how they fill the table of cosines and sines."""
    own = [cls] if cls.forward_native is RotaryEmbedding.forward_native and cls.forward is CustomOp.forward else []
    return own + [found for below in cls.__subclasses__() for found in _rotaries(below)]


@functools.cache
def register() -> None:
    """Registers the layers with vLLM's registry of operators from outside."""
    moe.register()
    quantization.register()
    if not engines.use_custom_ops():
        return
    import vllm.model_executor.layers.rotary_embedding  # noqa: F401  defines the classes below RotaryEmbedding

    for upstream, layer in (
        (SiluAndMul, KunlunSiluAndMul),
        (SwigluOAIAndMul, KunlunSwigluOAIAndMul),
        (QuickGELU, KunlunQuickGELU),
    ):
        CustomOp.register_oot(layer, name=upstream.__name__)
    for upstream in _rotaries():
        layer = type(f"Kunlun{upstream.__name__}", (upstream,), {"forward_oot": _rotate})
        CustomOp.register_oot(layer, name=upstream.__name__)
