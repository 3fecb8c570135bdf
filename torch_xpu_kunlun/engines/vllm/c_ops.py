"""The operators of vLLM's compiled extensions that its layers call by name, computed by the project's.

vLLM's layers call ``torch.ops._C.*`` and ``torch.ops._moe_C.*`` directly. For a device from outside these do not
exist until ``Platform.import_kernels`` brings them; it imports this module. Schemas are vLLM's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_xpu_kunlun import engines, ops
from torch_xpu_kunlun.ops import reference

_c = torch.library.Library("_C", "FRAGMENT")
_moe = torch.library.Library("_moe_C", "FRAGMENT")


def _kernels():
    return ops if engines.use_custom_ops() else reference


def _hide(topk_ids: Tensor, is_padding: Tensor | None) -> None:
    """Sends padding to no expert."""
    if is_padding is not None:
        topk_ids.masked_fill_(is_padding[: topk_ids.shape[0], None], -1)


def topk_softmax(
    topk_weights: Tensor,
    topk_ids: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    bias: Tensor | None,
    is_padding: Tensor | None = None,
) -> None:
    """Weights and ids of the best experts; ``token_expert_indices`` is for a kernel that the device does without."""
    if bias is not None:
        scores = gating_output.float().softmax(-1)
        ids = (scores + bias).topk(topk_ids.shape[1], dim=-1).indices
        weights = scores.gather(1, ids)
        weights = weights / weights.sum(-1, keepdim=True) if renormalize else weights
    elif renormalize:
        weights, ids = _kernels().moe_softmax_topk_norm(gating_output, topk_ids.shape[1])
    else:
        weights, ids = _kernels().moe_softmax_topk(gating_output, topk_ids.shape[1])
    topk_weights.copy_(weights)
    topk_ids.copy_(ids)
    _hide(topk_ids, is_padding)


def topk_sigmoid(
    topk_weights: Tensor,
    topk_ids: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    bias: Tensor | None,
    scale: float,
    is_padding: Tensor | None = None,
) -> None:
    """As :func:`topk_softmax`, with the sigmoid of each logit as its score."""
    scores = gating_output.float().sigmoid()
    ids = (scores if bias is None else scores + bias).topk(topk_ids.shape[1], dim=-1).indices
    weights = scores.gather(1, ids)
    weights = weights / weights.sum(-1, keepdim=True) if renormalize else weights
    topk_weights.copy_(weights * scale)
    topk_ids.copy_(ids)
    _hide(topk_ids, is_padding)


_moe.define(
    "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, "
    "bool renormalize, Tensor? bias, Tensor? is_padding=None) -> ()"
)
_moe.impl("topk_softmax", topk_softmax, "PrivateUse1")
_moe.define(
    "topk_sigmoid(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, "
    "bool renormalize, Tensor? bias, float routed_scaling_factor=1.0, Tensor? is_padding=None) -> ()"
)
_moe.impl("topk_sigmoid", topk_sigmoid, "PrivateUse1")


def awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor, split_k: int, thx: int, thy: int) -> Tensor:
    """Whole weights; the last three arguments are about threads of CUDA."""
    return _kernels().awq_dequantize(qweight, scales, qzeros)


def awq_gemm(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, split_k: int) -> Tensor:
    return _kernels().awq_gemm(x, qweight, scales, qzeros)


_c.define(
    "awq_dequantize(Tensor kernel, Tensor scaling_factors, Tensor zeros, SymInt split_k_iters, int thx, int thy) "
    "-> Tensor"
)
_c.impl("awq_dequantize", awq_dequantize, "PrivateUse1")
_c.define("awq_gemm(Tensor input, Tensor kernel, Tensor scaling_factors, Tensor zeros, SymInt split_k_iters) -> Tensor")
_c.impl("awq_gemm", awq_gemm, "PrivateUse1")
