"""Pools of keys and values, and the allocator of their slots."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator, alloc_extend_naive
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, unwrap_write_loc
from sglang.srt.utils import get_num_new_pages

from torch_xpu_kunlun.engines.sglang import fused


class KunlunMHATokenToKVPool(MHATokenToKVPool):
    """SGLang's pool, ``[slots, kv_heads, head_size]`` for each layer, written by one fused operator."""

    def _store_kv_layer(self, layer_idx: int, loc: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor) -> None:
        # Every slot is a block of its own, whatever the size of a page: slots are numbered through.
        fused.operators().reshape_and_cache_flash(
            cache_k, cache_v, self.k_buffer[layer_idx].unsqueeze(1), self.v_buffer[layer_idx].unsqueeze(1), loc
        )


class KunlunMLATokenToKVPool(MLATokenToKVPool):
    """SGLang's pool, ``[slots, 1, rank + rope]`` for each layer, written by one fused operator."""

    def __init__(self, *args: Any, index_head_dim: int | None = None, **kwargs: Any) -> None:
        # SGLang 0.5.21 gives out-of-tree pools a size that only sparse attention has.
        if index_head_dim is not None:
            raise NotImplementedError(
                "SGLang on kunlun has no cache for sparse attention over an index of keys: that needs kernels which "
                "the device does not have. Models with plain or latent attention work."
            )
        super().__init__(*args, **kwargs)

    def set_kv_buffer(
        self,
        layer: Any,
        loc_info: Any,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor | None,
        layer_id_override: int | None = None,
    ) -> None:
        slots, _, _ = unwrap_write_loc(loc_info)
        layer_id = layer.layer_id if layer_id_override is None else layer_id_override
        rows = cache_k.squeeze(1).to(self.dtype)
        fused.operators().concat_and_cache_mla(
            rows[:, : self.kv_lora_rank],
            rows[:, self.kv_lora_rank :],
            self.kv_buffer[layer_id - self.start_layer],
            slots,
        )


#: By the kind of attention: ``mha``, or ``mla`` for one compressed row for each token.
POOLS = {"mha": KunlunMHATokenToKVPool, "mla": KunlunMLATokenToKVPool}


class KunlunPagedAllocator(PagedTokenToKVPoolAllocator):
    """SGLang's allocator of pages with its Triton kernels replaced by torch's operators."""

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        if num_new_pages is None:
            num_new_pages = get_num_new_pages(
                seq_lens=seq_lens_cpu, page_size=self.page_size, prefix_lens=prefix_lens_cpu
            )
        if num_new_pages > len(self.free_pages):
            self.merge_and_sort_free()
        if num_new_pages > len(self.free_pages):
            return None
        slots = torch.empty((extend_num_tokens,), dtype=torch.int64, device=self.device)
        alloc_extend_naive(prefix_lens, seq_lens, last_loc, self.free_pages, slots, self.page_size, self.device)
        self.free_pages = self.free_pages[num_new_pages:]
        return slots

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        # A sequence begins a page where its new token, the last of `seq_lens`, is the first of it.
        num_new_pages = get_num_new_pages(seq_lens=seq_lens_cpu, page_size=self.page_size, decode=True)
        if num_new_pages > len(self.free_pages):
            self.merge_and_sort_free()
        if num_new_pages > len(self.free_pages):
            return None
        if num_new_pages == 0:
            return last_loc + 1
        begins = (seq_lens - 1) % self.page_size == 0
        page = (torch.cumsum(begins, 0) - 1).clamp_(min=0)
        slots = torch.where(begins, self.free_pages[page] * self.page_size, last_loc + 1)
        self.free_pages = self.free_pages[num_new_pages:]
        return slots


def allocator(
    size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
) -> TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator:
    """What SGLang 0.5.21 calls in place of a class, for pages of any size."""
    if page_size == 1:
        return TokenToKVPoolAllocator(size, dtype, device, kvcache, need_sort)
    return KunlunPagedAllocator(size, page_size, dtype, device, kvcache, need_sort)
