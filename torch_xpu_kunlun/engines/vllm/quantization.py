"""Linear layers of few bits: int8 weights and activations, and weights of four bits in GPTQ's format."""

from __future__ import annotations

import torch
from vllm.model_executor.kernels.linear import register_linear_kernel
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearKernel, MPLinearLayerConfig
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    Int8ScaledMMLinearKernel,
    Int8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig, AutoGPTQLinearMethod
from vllm.model_executor.layers.quantization.utils import replace_parameter
from vllm.model_executor.layers.quantization.utils.gptq_utils import get_linear_quant_method
from vllm.model_executor.layers.quantization.utils.w8a8_utils import convert_to_channelwise
from vllm.model_executor.parameter import permute_param_layout_
from vllm.platforms import PlatformEnum
from vllm.scalar_type import scalar_types

from torch_xpu_kunlun import engines, ops
from torch_xpu_kunlun.ops import reference

_SEVENS = 0x77777777  # eight zero points of 8 in GPTQ's format, which stores them less one


def _kernels():
    return ops if engines.use_custom_ops() else reference


def _frozen(data: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad=False)


class KunlunInt8LinearKernel(Int8ScaledMMLinearKernel):
    """Weights ``[out, in]`` and activations in int8, both symmetric; sums are exact integers."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    @classmethod
    def can_implement(cls, c: Int8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        return (True, None) if c.input_symmetric else (False, "kunlun has symmetric activations only")

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        weight, scale, input_scale, _, _ = self.layer_param_names
        replace_parameter(layer, weight, _frozen(getattr(layer, weight).data.contiguous().t()))
        scales = getattr(layer, scale)
        if len(layer.logical_widths) > 1 and not self.config.is_channelwise:
            scales = convert_to_channelwise(scales, layer.logical_widths)
        replace_parameter(layer, scale, _frozen(scales.data.float().reshape(-1)))
        if self.config.is_static_input_scheme:
            replace_parameter(layer, input_scale, _frozen(getattr(layer, input_scale).max().float()))

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight, scales, input_scale, _, _ = self._get_layer_params(layer)
        rows = x.reshape(-1, x.shape[-1])
        if self.config.is_static_input_scheme:
            quantized = (rows.float() / input_scale).round().clamp(-128, 127).to(torch.int8)
        else:
            quantized, input_scale = _kernels().dynamic_scaled_int8_quant(rows)
        out = _kernels().cutlass_scaled_mm(quantized, weight, input_scale, scales, x.dtype, bias)
        return out.reshape(*x.shape[:-1], -1)


class KunlunMixedPrecisionLinearKernel(MPLinearKernel):
    """Weights of four bits around a zero point of 8, with a scale for each group of inputs."""

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        if c.weight_type != scalar_types.uint4b8 or c.zero_points:
            return False, f"kunlun has four bits with the zero point 8 (uint4b8), not {c.weight_type}"
        if c.act_type not in (torch.float32, torch.float16, torch.bfloat16):
            return False, f"kunlun has no activations in {c.act_type}"
        inputs, outputs = c.partition_weight_shape
        if inputs % 8 or outputs % 8:
            return False, "inputs and outputs must be multiples of 8"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        def weights(parameter):
            permute_param_layout_(parameter, input_dim=0, output_dim=1, packed_dim=0)
            return parameter.data.contiguous()

        def scales(parameter):
            permute_param_layout_(parameter, input_dim=0, output_dim=1)
            return parameter.data.contiguous().to(self.config.act_type)

        self._transform_param(layer, self.w_q_name, weights)
        self._transform_param(layer, self.w_s_name, scales)
        groups, outputs = getattr(layer, self.w_s_name).shape
        zeros = torch.full((groups, outputs // 8), _SEVENS, dtype=torch.int32, device="kunlun")
        layer.register_buffer("kunlun_zeros", zeros, persistent=False)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight, scales, _ = self._get_weight_params(layer)
        out = _kernels().gptq_gemm(x.reshape(-1, x.shape[-1]), weight, layer.kunlun_zeros, scales)
        out = out if bias is None else out + bias
        return out.reshape(*x.shape[:-1], -1)


class KunlunGPTQLinearMethod(AutoGPTQLinearMethod):
    def __init__(self, quant_config: AutoGPTQConfig) -> None:
        """Without upstream's demand for CUDA's Marlin kernels; which kernel is taken is asked later anyhow."""
        self.quant_config = quant_config
        self.quant_type = quant_config.quant_type
        self.input_dtype = None


class KunlunGPTQConfig(AutoGPTQConfig):
    def get_quant_method(self, layer: torch.nn.Module, prefix: str):
        if isinstance(layer, RoutedExperts):
            raise NotImplementedError("experts in GPTQ's format do not run on kunlun: use a checkpoint without it")
        return get_linear_quant_method(self, layer, prefix, KunlunGPTQLinearMethod)


def register_configs() -> None:
    """Registers the format whose configuration upstream ties to CUDA; in the process that reads the model's."""
    for name in ("gptq", "auto_gptq", "gptq_marlin"):
        register_quantization_config(name)(KunlunGPTQConfig)


def register() -> None:
    register_linear_kernel(KunlunInt8LinearKernel, PlatformEnum.OOT, "int8")
    register_linear_kernel(KunlunMixedPrecisionLinearKernel, PlatformEnum.OOT, "mp")
