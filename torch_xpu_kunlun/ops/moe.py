"""Mixtures of experts: routing and experts."""

import torch
from torch import Tensor


def moe_softmax_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` experts of the largest logits, and their shares of the softmax over all experts.

    Args:
        logits: ``[tokens, experts]``, float32, float16 or bfloat16.
        k: experts for each token.

    Returns:
        Weights ``[tokens, k]`` in float32 and experts ``[tokens, k]`` in int32, the best first; of equals the first.
    """
    return torch.ops.kunlun.moe_softmax_topk(logits, k)


def moe_softmax_topk_norm(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """:func:`moe_softmax_topk` with weights that sum to one for each token."""
    return torch.ops.kunlun.moe_softmax_topk_norm(logits, k)


def moe_sigmoid_group_topk_norm(
    logits: Tensor, bias: Tensor | None, k: int, n_group: int, topk_group: int, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Routing in two steps: the best groups of experts, then the best experts of those groups.

    The score of an expert is the sigmoid of its logit; ``bias`` is added for the choice only. The score of a group is
    the sum of its two best experts.

    Args:
        logits: ``[tokens, experts]``.
        bias: ``[experts]``, float32, or None.
        k: experts for each token.
        n_group: groups of ``experts // n_group`` neighbouring experts.
        topk_group: groups to choose from.
        scale: what the weights of a token sum to.

    Returns:
        Weights ``[tokens, k]`` in float32 and experts ``[tokens, k]`` in int32, the best first.
    """
    return torch.ops.kunlun.moe_sigmoid_group_topk_norm(logits, bias, k, n_group, topk_group, scale)


def moe_fc(x: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """``out[t, j] = weight[ids[t, j]] @ x[t]``: every token through the weights of its experts.

    Args:
        x: ``[tokens, in]``, or ``[tokens, k, in]`` for a row of its own for every choice.
        weight: ``[experts, out, in]``, of the dtype of ``x``.
        ids: ``[tokens, k]``, int32 or int64; -1 for an expert that another device has, whose result is zero.

    Returns:
        ``[tokens, k, out]`` of the dtype of ``x``.

    Raises:
        IndexError: an expert is out of range (reported at the next synchronisation).
    """
    return torch.ops.kunlun.moe_fc(x, weight, ids)


def moe_ffn_block(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """The gated feed-forward layers of the chosen experts, weighted and summed.

    Args:
        x: ``[tokens, hidden]``.
        w13: ``[experts, 2 * inner, hidden]``: the gate's rows, then the other factor's.
        w2: ``[experts, hidden, inner]``. Both of the dtype of ``x``.
        weights: ``[tokens, k]``, float32.
        ids: ``[tokens, k]``, int32 or int64; -1 for an expert that another device has, which adds nothing.

    Returns:
        ``[tokens, hidden]`` of the dtype of ``x``; only this result is rounded to it.

    Raises:
        IndexError: an expert is out of range (reported at the next synchronisation).
    """
    return torch.ops.kunlun.moe_ffn_block(x, w13, w2, weights, ids)
