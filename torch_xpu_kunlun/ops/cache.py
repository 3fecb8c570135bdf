"""Writing keys and values into caches of blocks."""

import torch
from torch import Tensor


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes each token's key and value into its slot of a cache, heads first.

    Args:
        key, value: ``[tokens, kv_heads, head_size]``, of any dtype; the two head sizes may differ.
        key_cache, value_cache: ``[blocks, kv_heads, block_size, head_size]`` of the same dtype, written in place.
            Strides are free but for the last dimension, so both may be parts of one tensor.
        slot_mapping: ``[n]``, int32 or int64, ``n <= tokens``: token ``i`` goes to row ``slot % block_size`` of block
            ``slot // block_size``. A negative slot is padding: nothing is written.

    Raises:
        IndexError: a slot is outside the cache (reported at the next synchronisation).
    """
    torch.ops.kunlun.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


def reshape_and_cache_flash(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """:func:`reshape_and_cache` for caches of ``[blocks, block_size, kv_heads, head_size]``."""
    torch.ops.kunlun.reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping)


def concat_and_cache_mla(kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes each token's compressed key and value, with the rotated part of the key behind it, into its slot.

    Args:
        kv_c: ``[tokens, rank]``; k_pe: ``[tokens, rope]``, of one dtype.
        kv_cache: ``[blocks, block_size, rank + rope]`` of the same dtype, written in place.
        slot_mapping: as for :func:`reshape_and_cache`.
    """
    torch.ops.kunlun.concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping)
