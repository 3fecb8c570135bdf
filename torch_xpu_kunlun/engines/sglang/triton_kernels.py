"""What SGLang computes by Triton's kernels outside of its layers, in torch's operators."""

from __future__ import annotations

import torch


def get_last_loc(
    req_to_token: torch.Tensor, req_pool_indices_tensor: torch.Tensor, prefix_lens_tensor: torch.Tensor
) -> torch.Tensor:
    """Slot of the last token of each sequence's prefix, -1 without one."""
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)


def compute_position(
    attn_backend: str, extend_prefix_lens: torch.Tensor, extend_seq_lens: torch.Tensor, extend_seq_lens_sum: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the new tokens, ``[tokens]`` in int64, and where each sequence begins among them.

    SGLang's form without Triton makes a range for each sequence from lengths that it waits for.
    """
    ends = torch.cumsum(extend_seq_lens, 0)
    starts = ends - extend_seq_lens
    tokens = torch.arange(extend_seq_lens_sum, device=extend_seq_lens.device, dtype=torch.int64)
    # To which sequence a token belongs: so many have ended before it.
    sequence = (ends.unsqueeze(1) <= tokens).sum(0)
    positions = tokens + (extend_prefix_lens - starts)[sequence]
    return positions, starts


def gated_expert(hidden_states: torch.Tensor, gate_weight: torch.Tensor, shared_output: torch.Tensor) -> torch.Tensor:
    """``fused_gate_sigmoid_mul``: ``sigmoid(hidden_states @ gate_weight) * shared_output``."""
    return torch.sigmoid(hidden_states @ gate_weight).unsqueeze(-1) * shared_output


def add_gated_expert(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    shared_output: torch.Tensor,
    final_hidden_states: torch.Tensor,
) -> None:
    """``fused_gate_sigmoid_mul_add``, a kernel of Triton: adds the expert that all tokens share, times its gate."""
    final_hidden_states += gated_expert(hidden_states, gate_weight, shared_output)


def softcap_(full_logits: torch.Tensor, final_logit_softcapping: float) -> torch.Tensor:
    """``softcap_inplace_logits``: ``cap * tanh(logits / cap)`` in place."""
    return full_logits.div_(final_logit_softcapping).tanh_().mul_(final_logit_softcapping)


def apply_bitmask_(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Leaves the logits of the tokens that a grammar allows, and makes the others -inf.

    Args:
        logits: ``[sequences, vocabulary]``, written in place.
        bitmask: ``[sequences, words]``, int32: a bit for each token, 1 where it is allowed. Tokens behind the last word
            are none that a grammar knows.
    """
    bits = torch.arange(32, device=bitmask.device, dtype=torch.int32)
    refused = ((bitmask.unsqueeze(-1) >> bits) & 1).flatten(1)[:, : logits.size(-1)] == 0
    logits[:, : refused.size(1)].masked_fill_(refused, float("-inf"))
    logits[:, refused.size(1) :] = float("-inf")
