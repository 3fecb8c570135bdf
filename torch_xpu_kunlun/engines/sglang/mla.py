"""Latent attention of SGLang: all heads of a layer read one compressed row for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torch_xpu_kunlun.engines.sglang.attention import KunlunAttentionBackend

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class KunlunMLABackend(KunlunAttentionBackend):
    """The model brings queries with the key's up-projection multiplied in, or, for a prompt of which nothing is in the
    cache, whole keys and values of every head."""

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        self._refuse(kwargs)
        self._store(k, v, layer, forward_batch, save_kv_cache)
        metadata = self.forward_metadata
        cache = self.token_to_kv_pool.get_key_buffer(layer.layer_id).squeeze(1).unflatten(0, (-1, self.page_size))
        out, _ = self.ops.fwd_kvcache_mla(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            cache,
            metadata.block_table,
            metadata.context_lens,
            layer.v_head_dim,
            layer.scaling,
        )
        return out.flatten(1)

    def _has_own_keys(self, layer: RadixAttention) -> bool:
        return layer.qk_head_dim != self.token_to_kv_pool.kv_cache_dim
