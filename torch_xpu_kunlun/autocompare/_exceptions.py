"""Operators whose results say nothing about a kernel, each with the reason; and the CPU's names of renamed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_xpu_kunlun.tiers import is_view

aten = torch.ops.aten

# By name, so that every overload is meant.
UNINITIALISED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_",
    "resize_as_", "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "empty_quantized",
}  # fmt: skip
REASONS = {
    **dict.fromkeys(UNINITIALISED, "the result is uninitialised memory"),
    "set_": "changes which memory a tensor has, and computes nothing",
    "is_set_to": "asks about memory, which the CPU's copies do not share",
    "record_stream": "tells the allocator about a stream, and computes nothing",
    "_copy_from": "brings results to the host, which is what a comparison rests on",
    "_copy_from_and_resize": "brings results to the host, which is what a comparison rests on",
    "_fused_sdp_choice": "names the kernel that a device prefers, which differs by design",
    "_has_compatible_shallow_copy_type": "asks about the device's tensor class",
    "_efficientzerotensor": "has no memory",
    "is_pinned": "asks about host memory",
    "_pin_memory": "asks about host memory",
}
# How many results are compared, where the others are partly uninitialised.
COMPARED_RESULTS = {"_ctc_loss": 1}
# LAPACK's least squares rounds differently with the alignment of its workspace, on the CPU too.
NEVER_EXACT = {"linalg_lstsq"}
# Random where their probability is not zero; the tag of torch says so for every call.
DROPOUT = {"_scaled_dot_product_fused_attention_overrideable"}


def reason_not_to_compare(op: OpOverload) -> str | None:
    """Why calls of this operator are not compared; None where they are."""
    name = op._schema.name.partition("::")[2]
    if name in REASONS:
        return REASONS[name]
    if op.namespace == "symm_mem":
        return "it works with the memory of several processes"
    if torch.Tag.nondeterministic_seeded in op.tags and name not in DROPOUT:
        return "the result is random"
    if is_view(op):
        return "the result is a view: nothing is computed, and whoever reads it is compared"
    return None


def written_arguments(op: OpOverload, args: tuple, kwargs: dict) -> list[Any]:
    """The arguments that the operator changes."""
    named = {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)} | kwargs
    # The schemas of batch normalisation do not say that these are updated.
    return [
        named[argument.name]
        for argument in op._schema.arguments
        if argument.name in named
        and (
            argument.name in ("running_mean", "running_var")
            or (argument.alias_info is not None and argument.alias_info.is_write)
        )
    ]


def _attention(
    query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
):
    if dropout_p != 0:
        raise NotComparable("the result is random")
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )


def _attention_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, philox_seed, philox_offset, *, scale=None,
):  # fmt: skip
    if dropout_p != 0:
        raise NotComparable("the gradient depends on random numbers")
    if grad_input_mask[3]:
        raise NotComparable("the CPU's fused attention gives no gradient of the bias")
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )


def _convolution_backward(grad_output, input, weight, *rest):
    channels = weight.size(1) * rest[5] if rest[3] else weight.size(0)
    return aten.convolution_backward(grad_output, input, weight, [channels], *rest)


class NotComparable(Exception):
    """This call has no counterpart on the CPU. The text says why."""


# Operators that devices outside torch implement in place of one that the CPU has under another name. Results are
# compared as far as the CPU's counterpart has them.
COUNTERPARTS: dict[str, Callable] = {
    "aten::convolution_overrideable": aten.convolution.default,
    "aten::convolution_backward_overrideable": _convolution_backward,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
}
