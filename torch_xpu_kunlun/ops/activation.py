"""Gated and ungated activations."""

import torch
from torch import Tensor


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up`` where ``x`` holds gate and up side by side.

    Args:
        x: ``[..., 2 * d]``.
        out: where to write the result: ``[..., d]`` of the dtype of ``x``, contiguous in its last dimension.

    Returns:
        ``[..., d]`` of the dtype of ``x``, or ``out``.
    """
    if out is None:
        return torch.ops.kunlun.silu_and_mul(x)
    torch.ops.kunlun.silu_and_mul.out(x, out=out)
    return out


def swiglu(x: Tensor, y: Tensor | None = None) -> Tensor:
    """``silu(x) * y``; without ``y``, the two halves of ``x`` are gate and up.

    Args:
        x: ``[..., d]``, or ``[..., 2 * d]`` without ``y``.
        y: of the shape and dtype of ``x``.

    Returns:
        ``[..., d]`` of the dtype of ``x``.
    """
    return torch.ops.kunlun.swiglu(x, y)


def swigluoai_and_mul(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """``(up + 1) * gate * sigmoid(alpha * gate)`` where gate and up alternate in the last dimension of ``x``.

    Args:
        x: ``[..., 2 * d]``: elements 0, 2, ... are the gate, elements 1, 3, ... the other factor.
        alpha: slope of the sigmoid.
        limit: the gate is clamped to at most ``limit``, the other factor to ``[-limit, limit]``.

    Returns:
        ``[..., d]`` of the dtype of ``x``.
    """
    return torch.ops.kunlun.swigluoai_and_mul(x, alpha, limit)


def quick_gelu(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``x * sigmoid(1.702 * x)``.

    Args:
        x: of any shape with at least one dimension.
        out: where to write the result, of the shape and dtype of ``x``, contiguous in its last dimension; may be ``x``.

    Returns:
        A tensor of the shape and dtype of ``x``, or ``out``.
    """
    if out is None:
        return torch.ops.kunlun.quick_gelu(x)
    torch.ops.kunlun.quick_gelu.out(x, out=out)
    return out
