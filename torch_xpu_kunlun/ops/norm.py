"""Root mean square normalisation."""

import torch
from torch import Tensor


def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, out: Tensor | None = None) -> Tensor:
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last dimension.

    Args:
        x: ``[..., hidden]``.
        weight: ``[hidden]``, of the dtype of ``x`` or float32.
        eps: added to the mean of the squares.
        out: where to write the result, of the shape and dtype of ``x`` and contiguous in its last dimension; may be
            ``x`` itself.

    Returns:
        A contiguous tensor of the shape and dtype of ``x``, or ``out``.
    """
    if out is None:
        return torch.ops.kunlun.rmsnorm(x, weight, eps)
    torch.ops.kunlun.rmsnorm.out(x, weight, eps, out=out)
    return out


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """``rmsnorm(x + residual)``, and the sum.

    Args:
        x, residual: ``[..., hidden]``, of one dtype. The sum is rounded to it before it is normalised.
        weight: ``[hidden]``, of the dtype of ``x`` or float32.
        eps: added to the mean of the squares.

    Returns:
        The normalised sum and the sum, both of the shape and dtype of ``x``.
    """
    return torch.ops.kunlun.add_rmsnorm(x, residual, weight, eps)


def add_rmsnorm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    """``add_rmsnorm`` in place: ``residual`` becomes the sum and ``x`` the normalised sum.

    Both must be contiguous in their last dimension.
    """
    torch.ops.kunlun.add_rmsnorm_(x, residual, weight, eps)
