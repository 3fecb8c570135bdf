"""Implementations of the operators of vLLM's IR by the fused operators, under the provider ``kunlun``."""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import ir

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _fits(x: Tensor, weight: Tensor | None, variance_size: int | None) -> bool:
    """Whether the fused operator computes just this; in float32 and rounded once, as vLLM's definition does."""
    return (
        variance_size is None and weight is not None and x.dtype in _DTYPES and weight.dtype in (x.dtype, torch.float)
    )


def _rms_norm_fits(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return _fits(x, weight, variance_size)


def _add_rms_norm_fits(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _fits(x, weight, variance_size) and x_residual.dtype == x.dtype


@ir.ops.rms_norm.register_impl("kunlun", supports_args=_rms_norm_fits)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return torch.ops.kunlun.rmsnorm(x, weight, epsilon)


@ir.ops.fused_add_rms_norm.register_impl("kunlun", supports_args=_add_rms_norm_fits, inplace=True)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    torch.ops.kunlun.add_rmsnorm_(x, x_residual, weight, epsilon)
    return x, x_residual
