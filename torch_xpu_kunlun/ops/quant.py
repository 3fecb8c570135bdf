"""Weights and activations of few bits, and products with them."""

import torch
from torch import Tensor


def quant2d(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises every row of ``x`` to int8 by its own largest magnitude: ``x = int8 * max / 127``.

    Args:
        x: ``[..., n]``, float32, float16 or bfloat16, ``n >= 1``.

    Returns:
        The int8 tensor of the shape of ``x`` (from -127 to 127, rounded to nearest, halves to even), and the largest
        magnitudes ``[..., 1]`` in float32. A row of zeros gives zeros and 0.
    """
    return torch.ops.kunlun.quant2d(x)


def dynamic_scaled_int8_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`quant2d` with scales, ``max / 127``, in place of the largest magnitudes: ``x = int8 * scale``."""
    return torch.ops.kunlun.dynamic_scaled_int8_quant(x)


def gemm_I8_I8_bf16_nt(x: Tensor, x_max: Tensor, weight: Tensor, weight_max: Tensor) -> Tensor:
    """``x @ weight.T`` of int8 in exact integer sums, scaled by ``x_max / 127`` and ``weight_max / 127``.

    Args:
        x: ``[m, k]``, int8.
        x_max: float32, one number or one for each row of ``x``, as :func:`quant2d` returns it.
        weight: ``[n, k]``, int8.
        weight_max: float32, one number or one for each row of ``weight``.

    Returns:
        ``[m, n]`` in bfloat16.
    """
    return torch.ops.kunlun.gemm_I8_I8_bf16_nt(x, x_max, weight, weight_max)


def cutlass_scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """``(scale_a * a) @ (scale_b * b) + bias`` of int8 in exact integer sums.

    Args:
        a: ``[m, k]``, int8.
        b: ``[k, n]``, int8; without a copy where it is the transpose of a contiguous ``[n, k]``.
        scale_a: float32, one number or one for each row of ``a``.
        scale_b: float32, one number or one for each column of ``b``.
        out_dtype: float32, float16 or bfloat16.
        bias: ``[n]`` of ``out_dtype``.

    Returns:
        ``[m, n]`` of ``out_dtype``.
    """
    return torch.ops.kunlun.cutlass_scaled_mm(a, b, scale_a, scale_b, out_dtype, bias)


def awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """The weights of an AWQ layer: ``(four bits - zero point) * scale``.

    Args:
        qweight: ``[in, out / 8]``, int32: eight columns in a word, in AWQ's order (0, 2, 4, 6, 1, 3, 5, 7 from the
            lowest bits up).
        scales: ``[groups, out]``, float32, float16 or bfloat16; ``in / groups`` neighbouring rows share one.
        qzeros: ``[groups, out / 8]``, int32, packed as ``qweight``.

    Returns:
        ``[in, out]`` of the dtype of ``scales``.
    """
    return torch.ops.kunlun.awq_dequantize(qweight, scales, qzeros)


def awq_gemm(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """``x @ awq_dequantize(qweight, scales, qzeros)`` without making the weights whole.

    Args:
        x: ``[tokens, in]`` of the dtype of ``scales``.

    Returns:
        ``[tokens, out]`` of the dtype of ``x``. The weights are not rounded before they are multiplied.
    """
    return torch.ops.kunlun.awq_gemm(x, qweight, scales, qzeros)


def gptq_gemm(x: Tensor, qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None) -> Tensor:
    """``x`` times the weights of a GPTQ layer of four bits: ``(four bits - (zero point + 1)) * scale``.

    Args:
        x: ``[tokens, in]`` of the dtype of ``scales``.
        qweight: ``[in / 8, out]``, int32: eight rows in a word, the first in the lowest bits.
        qzeros: ``[groups, out / 8]``, int32: eight columns in a word; zero points less one.
        scales: ``[groups, out]``.
        g_idx: ``[in]``, int32 or int64: the group of every row; None for neighbouring rows.

    Returns:
        ``[tokens, out]`` of the dtype of ``x``.
    """
    return torch.ops.kunlun.gptq_gemm(x, qweight, qzeros, scales, g_idx)
