"""Weights and activations of eight bits: ``--quantization w8a8_int8``."""

from __future__ import annotations

import torch
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.quantization.base_config import QuantizeMethodBase
from sglang.srt.layers.quantization.w8a8_int8 import W8A8Int8Config, W8A8Int8LinearMethod

from torch_xpu_kunlun.engines.sglang import fused


class KunlunW8A8Int8Config(W8A8Int8Config):
    """SGLang's configuration: int8 weights with a scale for each row, activations quantised token by token."""

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.float32, torch.float16, torch.bfloat16]

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        method = super().get_quant_method(layer, prefix)
        if isinstance(layer, FusedMoE) and method is not None:
            raise NotImplementedError(
                f"{prefix}: SGLang on kunlun has no experts in int8. Name them in `ignore` of the model's "
                "quantization_config, or leave out --quantization w8a8_int8"
            )
        return KunlunW8A8Int8LinearMethod(self) if isinstance(method, W8A8Int8LinearMethod) else method


class KunlunW8A8Int8LinearMethod(W8A8Int8LinearMethod):
    """SGLang's weights, multiplied in exact integer sums by the fused operators."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        ops = fused.operators()
        rows, scales = ops.dynamic_scaled_int8_quant(x.reshape(-1, x.size(-1)))
        out = ops.cutlass_scaled_mm(rows, layer.weight, scales, layer.weight_scale, x.dtype, bias)
        return out.view(*x.shape[:-1], -1)


#: Configurations in place of SGLang's, by the name of ``--quantization``.
CONFIGS = {"w8a8_int8": KunlunW8A8Int8Config}
