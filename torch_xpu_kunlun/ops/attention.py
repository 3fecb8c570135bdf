"""Attention over packed sequences and over caches of blocks."""

import torch
from torch import Tensor


def prefill_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    scale: float | None = None,
    is_causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    sinks: Tensor | None = None,
    block_table: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softcap: float = 0.0,
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor] | Tensor:
    """Attention over sequences of different lengths that are packed one after the other.

    Args:
        query: ``[tokens, heads, head_size]``.
        key, value: ``[key tokens, kv_heads, head_size]``, or caches ``[blocks, kv_heads, block_size, head_size]`` with
            ``block_table``. ``heads`` is a multiple of ``kv_heads``; query head ``h`` reads key head
            ``h // (heads // kv_heads)``. The head size of ``value`` may differ.
        cu_seqlens_q, cu_seqlens_k: ``[sequences + 1]``, int32 or int64: where each sequence begins among the queries
            and the keys; from 0 to the number of tokens.
        scale: factor of the scores; ``head_size ** -0.5`` when None.
        is_causal: a query sees no key after its own position; the last query stands beside the last key.
        window_left: how many keys before its own position a query sees; -1 for all.
        window_right: how many after; -1 for all. Without meaning if ``is_causal``.
        sinks: ``[heads]``, float32: a score for each head that takes its share of the weights and has no value.
        block_table: ``[sequences, blocks]``, int32 or int64: the blocks of every sequence's keys, in order.
        alibi_slopes: ``[heads]``, float32: ``slope * distance`` is taken from each score, the distance being that
            between the positions of query and key.
        softcap: scores become ``softcap * tanh(score / softcap)``, before ``alibi_slopes`` and ``sinks``; 0 for none.
        out: where to write the result, contiguous in its last dimension.

    Returns:
        ``[tokens, heads, value head_size]`` of the dtype of ``query``, and ``[heads, tokens]`` in float32, the
        logarithms of the sums of the exponentials of the scores (-inf and a result of zeros where a query sees no
        key). Only ``out`` where it is given.

    Raises:
        IndexError: lengths or blocks do not fit the tensors (reported at the next synchronisation).
    """
    args = (query, key, value, cu_seqlens_q, cu_seqlens_k, scale, is_causal, window_left, window_right, sinks)
    args += (block_table, alibi_slopes, softcap)
    if out is None:
        return torch.ops.kunlun.prefill_attention(*args)
    torch.ops.kunlun.prefill_attention.out(*args, out=out)
    return out


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float | None = None,
    window_left: int = -1,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softcap: float = 0.0,
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor] | Tensor:
    """Attention of one new token for each sequence over a cache in blocks.

    Args:
        query: ``[sequences, heads, head_size]``.
        key_cache, value_cache: ``[blocks, kv_heads, block_size, head_size]``, contiguous in the last dimension; for
            ``[blocks, block_size, kv_heads, head_size]`` pass ``cache.transpose(1, 2)``.
        block_table: ``[sequences, blocks]``, int32 or int64.
        context_lens: ``[sequences]``, int32 or int64: keys of every sequence, the new token's included.
        scale, window_left, sinks, alibi_slopes, softcap: as for :func:`prefill_attention`.
        out: where to write the result, contiguous in its last dimension.

    Returns:
        ``[sequences, heads, value head_size]`` and ``[heads, sequences]``, as :func:`prefill_attention`.

    Raises:
        IndexError: lengths or blocks do not fit the cache (reported at the next synchronisation).
    """
    args = (query, key_cache, value_cache, block_table, context_lens, scale, window_left, sinks, alibi_slopes, softcap)
    if out is None:
        return torch.ops.kunlun.paged_attention(*args)
    torch.ops.kunlun.paged_attention.out(*args, out=out)
    return out


def attention_merge_stage(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Merges the attention of the same queries over two sets of keys into that over both.

    Args:
        prefix_out, suffix_out: ``[tokens, heads, head_size]``, of one dtype.
        prefix_lse, suffix_lse: ``[heads, tokens]``, float32, as the two attention functions return them.

    Returns:
        The merged ``out`` and ``lse``.
    """
    return torch.ops.kunlun.attention_merge_stage(prefix_out, prefix_lse, suffix_out, suffix_lse)


def fwd_kvcache_mla(
    query: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    head_size_v: int,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Multi-head latent attention of one new token for each sequence: all heads share the rows of the cache.

    Args:
        query: ``[sequences, heads, size]``, with the key's up-projection already multiplied in.
        kv_cache: ``[blocks, block_size, size]``: a row is a token's key; its first ``head_size_v`` elements the value.
        block_table, context_lens: as for :func:`paged_attention`.
        scale: factor of the scores; ``size ** -0.5`` when None (models give the one of their uncompressed heads).

    Returns:
        ``[sequences, heads, head_size_v]`` and ``[heads, sequences]``, as :func:`paged_attention`.
    """
    return torch.ops.kunlun.fwd_kvcache_mla(query, kv_cache, block_table, context_lens, head_size_v, scale)
