"""Drawing tokens from probabilities restricted to the most likely ones.

Random numbers come from the device's generator, or the given one: a call draws once for each row, and the same seed
gives the same tokens.
"""

import torch
from torch import Tensor


def _for_rows(value: Tensor | float, probs: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.full(probs.shape[:1], value, dtype=dtype, device=probs.device)


def top_k_sampling_from_probs(
    probs: Tensor, top_k: Tensor | int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draws from the ``top_k`` most likely of each row, and from what is as likely as the last of them.

    Args:
        probs: ``[rows, n]``, float32, not negative; need not sum to one.
        top_k: ``[rows]``, int32 or int64, or one number for all; at least 1, and no limit from ``n`` on.

    Returns:
        ``[rows]``, int32.

    Raises:
        RuntimeError, ValueError: a row is all zero or not finite, or ``top_k`` is less than 1 (reported at the next
            synchronisation).
    """
    return torch.ops.kunlun.top_k_sampling_from_probs(probs, _for_rows(top_k, probs, torch.int32), generator=generator)


def top_p_sampling_from_probs(
    probs: Tensor, top_p: Tensor | float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draws from the fewest most likely of each row that hold the share ``top_p`` of its sum, and from what is as
    likely as the last of them.

    Args:
        probs: ``[rows, n]``, float32, not negative; need not sum to one.
        top_p: ``[rows]``, float32, or one number for all; from 0 (the most likely only) to 1 (no limit).

    Returns:
        ``[rows]``, int32.

    Raises:
        RuntimeError, ValueError: as for :func:`top_k_sampling_from_probs`.
    """
    limits = _for_rows(top_p, probs, torch.float)
    return torch.ops.kunlun.top_p_sampling_from_probs(probs, limits, generator=generator)


def top_k_top_p_sampling_from_probs(
    probs: Tensor, top_k: Tensor | int, top_p: Tensor | float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Both limits, one after the other: ``top_p`` is a share of what ``top_k`` has left over."""
    k, p = _for_rows(top_k, probs, torch.int32), _for_rows(top_p, probs, torch.float)
    return torch.ops.kunlun.top_k_top_p_sampling_from_probs(probs, k, p, generator=generator)
