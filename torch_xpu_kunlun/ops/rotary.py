"""Rotary position embedding."""

import torch
from torch import Tensor


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    """Rotates the heads of ``query`` and ``key`` in place.

    Args:
        positions: ``[...]``, int32 or int64, the position of every token.
        query: ``[..., heads * head_size]`` or ``[..., heads, head_size]``, contiguous in its last dimension.
        key: the same with its own number of heads, of the dtype of ``query``; None rotates the queries only.
        head_size: elements of a head.
        cos_sin_cache: ``[max_position, rotary_dim]``, of the dtype of ``query`` or float32: cosines in the first half
            of a row, sines in the second. The first ``rotary_dim <= head_size`` elements of a head are rotated.
        is_neox: elements ``i`` and ``i + rotary_dim / 2`` are a pair; otherwise ``2 * i`` and ``2 * i + 1``.

    Raises:
        IndexError: a position is outside the cache (reported like every error of the device's own work, at the next
            synchronisation).
    """
    torch.ops.kunlun.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)


def split_norm_rope(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos_sin_cache: Tensor,
    positions: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    eps: float = 1e-6,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits the result of a fused projection, normalises every query and key head, and rotates them.

    Args:
        qkv: ``[tokens, (num_heads + 2 * num_kv_heads) * head_size]``.
        q_weight, k_weight: ``[head_size]``, weights of the root mean square normalisation; both None leave it out.
        cos_sin_cache, is_neox: as for :func:`rotary_embedding`.
        positions: ``[tokens]``, int32 or int64.
        eps: added to the mean of the squares.

    Returns:
        ``q`` of ``[tokens, num_heads * head_size]``, ``k`` and ``v`` of ``[tokens, num_kv_heads * head_size]``,
        contiguous, of the dtype of ``qkv``.
    """
    return torch.ops.kunlun.split_norm_rope(
        qkv, q_weight, k_weight, cos_sin_cache, positions, num_heads, num_kv_heads, head_size, eps, is_neox
    )
