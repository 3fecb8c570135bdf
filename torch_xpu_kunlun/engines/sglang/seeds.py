"""Sampling with a seed for each request, by the numbers that SGLang uses on other devices."""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF


def _rotated(x: torch.Tensor, bits: int) -> torch.Tensor:
    return ((x << bits) | (x >> (32 - bits))) & _WORD


def _mixed(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """One block of MurmurHash3. Words of 32 bits lie in int64, whose products keep the low word when they overflow."""
    block = _rotated((block * 0xCC9E2D51) & _WORD, 15)
    state = _rotated(state ^ ((block * 0x1B873593) & _WORD), 13)
    return (state * 5 + 0xE6546B64) & _WORD


def murmur_hash(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (32 bits) of the seed's two words, the position and the column.

    Args:
        seeds, positions: ``[n]``, int64.
        columns: ``[m]``, int64.

    Returns:
        ``[n, m]``, int64, from 0 to 2**32 - 1.
    """
    state = torch.zeros_like(seeds)
    for block in (seeds & _WORD, (seeds >> 32) & _WORD, positions & _WORD):
        state = _mixed(state, block)
    h = _mixed(state.unsqueeze(1), columns.unsqueeze(0)) ^ 16  # bytes that were mixed in
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _WORD
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _WORD
    return h ^ (h >> 16)


def multinomial_with_seed(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Draws a column of each row by the Gumbel trick, with noise that hashes make.

    Args:
        logprobs: ``[n, m]``, logarithms of weights, which need not sum to one.
        seed: ``[n]``, int64; positions: ``[n]``, of the tokens to be drawn.

    Returns:
        ``[n, 1]``, int64.
    """
    columns = torch.arange(logprobs.size(1), device=logprobs.device)
    uniform = murmur_hash(seed.to(torch.int64), positions.to(torch.int64), columns).to(torch.float64) / _WORD
    # In double precision throughout: a hash of 0 or of all ones must stay a finite number.
    exponential = uniform.log_().clamp_(torch.finfo(torch.float64).min, -(2.0**-32)).neg_()
    return torch.argmax(logprobs.to(torch.float64) - exponential.log_(), dim=1, keepdim=True)
