"""Attention over vLLM's paged cache: one kernel call for the requests that decode, one for those that prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.utils import split_decodes_and_prefills
from vllm.v1.kv_cache_interface import KVCacheLayout

from torch_xpu_kunlun import engines, ops
from torch_xpu_kunlun.ops import reference

_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class KunlunAttentionBackend(AttentionBackend):
    supported_dtypes: ClassVar = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # the name that vLLM's registry keeps for backends from outside

    @staticmethod
    def get_impl_cls() -> type[KunlunAttentionImpl]:
        return KunlunAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[KunlunAttentionMetadataBuilder]:
        return KunlunAttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        # A head's rows of a block lie together, which is how the kernels read them.
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True  # each query's keys are summed in one order, whatever else is in the batch

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False


@dataclass
class KunlunAttentionMetadata(AttentionMetadata):
    """A batch: first the requests with one new token, then those with more.

    Tensors are on the device: ``slot_mapping`` has one entry for each token, ``seq_lens`` and ``block_table`` one row
    for each request, ``cu_seqlens_q`` and ``cu_seqlens_k`` belong to the prefills and begin at 0. ``num_tokens``
    leaves out padding.
    """

    num_tokens: int
    num_decodes: int
    num_prefills: int
    slot_mapping: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_k: torch.Tensor | None
    causal: bool


class KunlunAttentionMetadataBuilder(AttentionMetadataBuilder[KunlunAttentionMetadata]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> KunlunAttentionMetadata:
        common = common_attn_metadata
        if isinstance(common.causal, torch.Tensor):
            raise NotImplementedError("attention on kunlun is causal for a whole batch or not at all")
        decodes, prefills, _, _ = split_decodes_and_prefills(common)
        starts = ends = None
        if prefills:
            starts = common.query_start_loc[decodes:] - decodes if decodes else common.query_start_loc
            ends = functional.pad(common.seq_lens[decodes:].cumsum(0, dtype=torch.int32), (1, 0))
        return KunlunAttentionMetadata(
            num_tokens=int(common.query_start_loc_cpu[common.num_reqs]),
            num_decodes=decodes,
            num_prefills=prefills,
            slot_mapping=common.slot_mapping,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            cu_seqlens_q=starts,
            cu_seqlens_k=ends,
            causal=common.causal,
        )


class KunlunAttentionImpl(AttentionImpl[KunlunAttentionMetadata]):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        # vLLM counts the query's own position to the window, the kernels do not.
        self.window_left = -1 if sliding_window is None else sliding_window - 1
        self.sinks = sinks
        self.options: dict[str, object] = {}
        if logits_soft_cap:
            self.options["softcap"] = float(logits_soft_cap)
        if alibi_slopes is not None:
            self.options["alibi_slopes"] = torch.tensor(alibi_slopes, dtype=torch.float32, device="kunlun")
        self.kernels = ops if engines.use_custom_ops() else reference

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        if self.sinks is not None:
            self.sinks = self.sinks.to(torch.float32)

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: KunlunAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes the attention of ``query`` to ``output`` and, for layers with a cache, new keys and values to it.

        Args:
            query, output: ``[tokens, heads, head_size]``, maybe with padding at the end, which stays as it is.
            key, value: ``[tokens, kv_heads, head_size]``; None where another layer has written them.
            kv_cache: ``[blocks, kv_heads, block_size, 2 * head_size]``, keys in the first half of a row.
            attn_metadata: None in the runs that measure memory, for which ``output`` is left as it is.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attention on kunlun does not quantise its output")
        if attn_metadata is None:
            return output
        if self.attn_type in _ENCODERS:
            return self._encode(query, key, value, attn_metadata, output)

        key_cache, value_cache = kv_cache.split((self.head_size, kv_cache.shape[-1] - self.head_size), dim=-1)
        if key is not None and value is not None and self.kv_sharing_target_layer_name is None:
            if key.dtype != kv_cache.dtype:
                key, value = key.to(kv_cache.dtype), value.to(kv_cache.dtype)
            self.kernels.reshape_and_cache(key, value, key_cache, value_cache, attn_metadata.slot_mapping)
        tokens, decodes = attn_metadata.num_tokens, attn_metadata.num_decodes
        if decodes:
            self._decode(query[:decodes], key_cache, value_cache, attn_metadata, output[:decodes])
        if attn_metadata.num_prefills:
            self._prefill(query[decodes:tokens], key_cache, value_cache, attn_metadata, output[decodes:tokens])
        return output

    def _run(self, kernel: str, out: torch.Tensor, query: torch.Tensor, *args, **options) -> None:
        function = getattr(self.kernels, kernel)
        if self.kernels is ops and query.dtype == out.dtype:
            function(query, *args, **options, **self.options, out=out)
        else:
            out.copy_(function(query, *args, **options, **self.options)[0])

    def _decode(self, query, key_cache, value_cache, meta: KunlunAttentionMetadata, out) -> None:
        n = meta.num_decodes
        self._run(
            "paged_attention",
            out,
            query.to(key_cache.dtype),
            key_cache,
            value_cache,
            meta.block_table[:n],
            meta.seq_lens[:n],
            scale=self.scale,
            window_left=self.window_left,
            sinks=self.sinks,
        )

    def _prefill(self, query, key_cache, value_cache, meta: KunlunAttentionMetadata, out) -> None:
        self._run(
            "prefill_attention",
            out,
            query.to(key_cache.dtype),
            key_cache,
            value_cache,
            meta.cu_seqlens_q,
            meta.cu_seqlens_k,
            scale=self.scale,
            is_causal=meta.causal,
            window_left=self.window_left,
            sinks=self.sinks,
            block_table=meta.block_table[meta.num_decodes :],
        )

    def _encode(self, query, key, value, meta: KunlunAttentionMetadata, output) -> torch.Tensor:
        """Attention among the tokens of each sequence, in both directions, without a cache."""
        n, decodes = meta.num_tokens, meta.num_decodes
        if meta.cu_seqlens_q is None:
            starts = torch.arange(n + 1, dtype=torch.int32, device=query.device)
        elif decodes:
            ones = torch.arange(decodes, dtype=meta.cu_seqlens_q.dtype, device=query.device)
            starts = torch.cat((ones, meta.cu_seqlens_q + decodes))
        else:
            starts = meta.cu_seqlens_q
        self._run(
            "prefill_attention",
            output[:n],
            query[:n],
            key[:n],
            value[:n],
            starts,
            starts,
            scale=self.scale,
            is_causal=False,
            window_left=self.window_left,
            window_right=self.window_left,
            sinks=self.sinks,
        )
        return output
