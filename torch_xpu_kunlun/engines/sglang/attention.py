"""Attention of SGLang on the fused operators: extension (prefill) and decoding over the pool of slots."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from torch_xpu_kunlun.engines.sglang import fused

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclasses.dataclass
class Metadata:
    """What all layers of one forward pass share. Sequences are the requests of the batch, in its order."""

    block_table: torch.Tensor  # [sequences, blocks], int32: pages of every sequence
    context_lens: torch.Tensor  # [sequences]: keys of every sequence
    cu_seqlens_q: torch.Tensor | None = None  # [sequences + 1]: where the queries of each begin; None when decoding
    cu_seqlens_k: torch.Tensor | None = None  # [sequences + 1]: the same of the keys


def _cumulative(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(torch.cumsum(lengths, 0), (1, 0))


class KunlunAttentionBackend(AttentionBackend):
    """Grouped heads, windows, soft caps and sinks; causal or not; pages of any size; no cross attention."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__()
        if runner.model_config.is_encoder_decoder:
            raise NotImplementedError(
                "the attention backend kunlun has no cross attention, which "
                f"{runner.model_config.hf_config.architectures} needs: use --attention-backend torch_native"
            )
        self.ops = fused.operators()
        self.page_size = runner.page_size
        # The names are SGLang's: some models look for the pools here.
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool

    def support_triton(self) -> bool:
        return False

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self.forward_metadata = None
            return
        if mode.is_target_verify() or mode.is_draft_extend_v2():
            raise NotImplementedError(
                "speculative decoding needs attention under a tree mask, which kunlun does not have; "
                "leave out --speculative-algorithm"
            )
        longest = int(forward_batch.seq_lens_cpu.max())
        # Each page is named by its first slot.
        slots = self.req_to_token_pool.req_to_token[:, : longest : self.page_size][forward_batch.req_pool_indices]
        metadata = Metadata(slots if self.page_size == 1 else slots // self.page_size, forward_batch.seq_lens)
        if not mode.is_decode():
            metadata.cu_seqlens_q = _cumulative(forward_batch.extend_seq_lens)
            metadata.cu_seqlens_k = _cumulative(forward_batch.seq_lens)
        self.forward_metadata = metadata

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
        self._store(k, v, layer, forward_batch, save_kv_cache)
        metadata = self.forward_metadata
        key_cache, value_cache = self._caches(layer)
        return self._run(
            self.ops.paged_attention,
            q,
            layer,
            (key_cache, value_cache, metadata.block_table, metadata.context_lens),
            kwargs,
        )

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        metadata = self.forward_metadata
        causal = layer.attn_type == AttentionType.DECODER
        if self._has_own_keys(layer):
            keys, values = self._heads(k, v, layer)
            cu_seqlens_k, table = metadata.cu_seqlens_q, None
        else:
            self._store(k, v, layer, forward_batch, save_kv_cache)
            keys, values = self._caches(layer)
            cu_seqlens_k, table = metadata.cu_seqlens_k, metadata.block_table
        return self._run(
            self.ops.prefill_attention,
            q,
            layer,
            (keys, values, metadata.cu_seqlens_q, cu_seqlens_k),
            kwargs,
            is_causal=causal,
            block_table=table,
        )

    def _has_own_keys(self, layer: RadixAttention) -> bool:
        """Whether the queries see the keys of this very call only, none of the cache's."""
        return layer.attn_type == AttentionType.ENCODER_ONLY

    def _refuse(self, kwargs: dict[str, Any]) -> None:
        unknown = [name for name, value in kwargs.items() if value is not None]
        if unknown:
            raise NotImplementedError(f"the attention backend kunlun does not know {', '.join(sorted(unknown))}")

    def _run(
        self, attention: Any, q: torch.Tensor, layer: RadixAttention, keys: tuple, kwargs: dict[str, Any], **more: Any
    ) -> torch.Tensor:
        sinks = kwargs.pop("sinks", None)
        self._refuse(kwargs)
        heads = layer.tp_q_head_num
        # Models bring [tokens, heads * head_size], or with dimensions of their own for heads and a batch of one.
        query = q.reshape(-1, heads, layer.qk_head_dim)
        window = layer.sliding_window_size
        out, _ = attention(
            query,
            *keys,
            scale=layer.scaling,
            window_left=-1 if window is None else window,
            sinks=sinks,
            softcap=layer.logit_cap,
            **more,
        )
        return out.flatten(1)

    def _heads(self, k: torch.Tensor, v: torch.Tensor, layer: RadixAttention) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            k.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.reshape(-1, layer.tp_v_head_num, layer.v_head_dim),
        )

    def _store(
        self,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
    ) -> None:
        if not save_kv_cache or k is None:
            return
        slots = forward_batch.out_cache_loc
        keys, values = self._heads(k, v, layer)
        if keys.size(0) != slots.size(0):
            raise ValueError(
                f"layer {layer.layer_id} brings keys of {keys.size(0)} tokens for {slots.size(0)}: the model has other "
                f"numbers of key heads than the {layer.tp_k_head_num} that its configuration tells"
            )
        self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(slots, None), keys, values)

    def _caches(self, layer: RadixAttention) -> tuple[torch.Tensor, torch.Tensor]:
        """``[pages, heads, page_size, head_size]``, views of the pool's slots."""
        return tuple(
            buffer.unflatten(0, (-1, self.page_size)).transpose(1, 2)
            for buffer in self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        )


def backend(runner: ModelRunner) -> AttentionBackend:
    """What SGLang's registry calls for ``--attention-backend kunlun``."""
    if runner.use_mla_backend:
        from torch_xpu_kunlun.engines.sglang.mla import KunlunMLABackend

        return KunlunMLABackend(runner)
    return KunlunAttentionBackend(runner)
