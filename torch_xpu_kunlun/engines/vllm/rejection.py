"""The kernels by which vLLM accepts or rejects drafted tokens, in plain torch; named and called as its Triton ones.

Drafts of all requests lie one after the other; ``cu_num_draft_tokens`` holds where each request's end. A request's row
of ``output_token_ids``, ``[requests, max_spec_len + 1]``, gets its tokens up to the first rejected draft, and behind
the last of accepted drafts one more.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def _requests(ends: torch.Tensor, tokens: int) -> torch.Tensor:
    """The request of each drafted token."""
    return (torch.arange(tokens, device=ends.device)[:, None] >= ends[None, :]).sum(1)


def _positions(ends: torch.Tensor, tokens: int) -> torch.Tensor:
    """The position of each drafted token among those of its request."""
    starts = functional.pad(ends[:-1], (1, 0))
    return torch.arange(tokens, device=ends.device) - starts[_requests(ends, tokens)]


def _write(out, ends, accepted, tokens, bonus, chosen) -> None:
    """Fills the rows of ``out`` for the chosen requests (None: all) from what was decided for each drafted token."""
    starts = functional.pad(ends[:-1], (1, 0))
    columns = torch.arange(out.shape[1], device=out.device)[None, :]
    drafts = (ends - starts)[:, None]
    there = columns < drafts
    index = torch.where(there, starts[:, None] + columns, 0).long()
    rejected = there & ~functional.pad(accepted, (0, 1), value=True)[index]
    rejected_before = rejected.cumsum(1) - rejected.long()
    filled = torch.where(there, functional.pad(tokens, (0, 1))[index], bonus.reshape(-1, 1)).to(out.dtype)
    keep = (rejected_before == 0) & (columns <= drafts) & ~((columns == drafts) & rejected.any(1, keepdim=True))
    if chosen is not None:
        keep &= chosen[:, None]
    out.copy_(torch.where(keep, filled, out))


def rejection_greedy_sample_kernel(
    output_token_ids_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    target_argmax_ptr,
    bonus_token_ids_ptr,
    is_greedy_ptr,
    max_spec_len,
    uniform_probs_ptr,
    synthetic_conditional_rates_ptr,
    SYNTHETIC_MODE,
) -> None:
    """A draft is accepted where it is the target's most likely token."""
    drafts, best, ends = draft_token_ids_ptr, target_argmax_ptr.to(draft_token_ids_ptr.dtype), cu_num_draft_tokens_ptr
    accepted, tokens = drafts == best, best
    if SYNTHETIC_MODE:
        rates = synthetic_conditional_rates_ptr[_positions(ends, drafts.shape[0])]
        accepted = (uniform_probs_ptr < rates) & (drafts >= 0)
        tokens = torch.where(accepted, drafts, best)
    _write(output_token_ids_ptr, ends, accepted, tokens, bonus_token_ids_ptr, is_greedy_ptr)


def rejection_random_sample_kernel(
    output_token_ids_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    bonus_token_ids_ptr,
    recovered_token_ids_ptr,
    uniform_probs_ptr,
    is_greedy_ptr,
    max_spec_len,
    vocab_size,
    synthetic_conditional_rates_ptr,
    NO_DRAFT_PROBS,
    SYNTHETIC_MODE,
) -> None:
    """A draft is accepted with the probability that target and draft give it, else the recovered token is taken."""
    drafts, ends = draft_token_ids_ptr, cu_num_draft_tokens_ptr
    if SYNTHETIC_MODE:
        accepted = uniform_probs_ptr < synthetic_conditional_rates_ptr[_positions(ends, drafts.shape[0])]
    else:
        index = drafts.clamp(min=0).long()[:, None]
        target = target_probs_ptr.gather(1, index)[:, 0]
        draft = torch.ones_like(target) if NO_DRAFT_PROBS else draft_probs_ptr.gather(1, index)[:, 0]
        accepted = (draft > 0) & (target / draft >= uniform_probs_ptr)
    accepted = accepted & (drafts >= 0)
    tokens = torch.where(accepted, drafts, recovered_token_ids_ptr)
    _write(output_token_ids_ptr, ends, accepted, tokens, bonus_token_ids_ptr, ~is_greedy_ptr)


def expand_kernel(output_ptr, input_ptr, cu_num_tokens_ptr, replace_from, replace_to, MAX_NUM_TOKENS) -> None:
    """Repeats each request's value for each of its tokens, with one value replaced by another."""
    values = torch.where(input_ptr == replace_from, replace_to, input_ptr)
    output_ptr.copy_(values[_requests(cu_num_tokens_ptr, output_ptr.shape[0])])


def sample_recovered_tokens_kernel(
    output_token_ids_ptr,
    cu_num_draft_tokens_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    inv_q_ptr,
    vocab_size,
    BLOCK_SIZE,
    NO_DRAFT_PROBS,
    USE_FP64_GUMBEL,
) -> None:
    """Draws from what the target's distribution has over the draft's, by exponential noise of each request."""
    if NO_DRAFT_PROBS:
        drafts = draft_token_ids_ptr.clamp(min=0).long()[:, None]
        probs = target_probs_ptr.scatter(1, drafts, 0.0)
    else:
        probs = (target_probs_ptr - draft_probs_ptr).clamp(min=0)
    noise = inv_q_ptr[_requests(cu_num_draft_tokens_ptr, probs.shape[0])]
    output_token_ids_ptr.copy_((probs * noise).argmax(-1))


KERNELS = {
    f"vllm.v1.sample.rejection_sampler.{kernel.__name__}": kernel
    for kernel in (
        rejection_greedy_sample_kernel,
        rejection_random_sample_kernel,
        expand_kernel,
        sample_recovered_tokens_kernel,
    )
}
