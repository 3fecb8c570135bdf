"""Low-rank adapters, one for each token: ``y = bgmv_shrink(x, a)``, then ``bgmv_expand(y, b, out)``."""

import torch
from torch import Tensor


def bgmv_shrink(x: Tensor, weights: Tensor, indices: Tensor, scale: float = 1.0) -> Tensor:
    """``scale * weights[indices[t]] @ x[t]`` for every token.

    Args:
        x: ``[tokens, in]``, float32, float16 or bfloat16.
        weights: ``[adapters, rank, in]`` of the dtype of ``x``.
        indices: ``[tokens]``, int32 or int64; -1 for a token without an adapter, whose result is zero. Neighbouring
            tokens with one adapter are computed together.
        scale: factor of the result.

    Returns:
        ``[tokens, rank]`` in float32.

    Raises:
        IndexError: an adapter is out of range (reported at the next synchronisation).
    """
    return torch.ops.kunlun.bgmv_shrink(x, weights, indices, scale)


def bgmv_expand(y: Tensor, weights: Tensor, out: Tensor, indices: Tensor, offset: int = 0, add: bool = True) -> None:
    """Adds ``weights[indices[t]] @ y[t]`` to columns ``offset`` and following of ``out``, or writes it there.

    Args:
        y: ``[tokens, rank]``, float32, as :func:`bgmv_shrink` returns it.
        weights: ``[adapters, columns, rank]`` of the dtype of ``out``.
        out: ``[tokens, at least offset + columns]``, contiguous in its last dimension.
        indices: as for :func:`bgmv_shrink`; a token without an adapter adds nothing.
        offset: first column of a part of ``out``, such as the keys of a fused projection.
        add: whether to add to what is there.
    """
    torch.ops.kunlun.bgmv_expand(y, weights, out, indices, offset, add)
