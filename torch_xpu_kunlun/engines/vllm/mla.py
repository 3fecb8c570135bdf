"""Multi-head latent attention (DeepSeek-V2 and V3): decodes on the compressed cache, prefills on whole heads."""

from __future__ import annotations

from typing import ClassVar

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from torch_xpu_kunlun import engines, ops
from torch_xpu_kunlun.ops import reference


def _kernels():
    return ops if engines.use_custom_ops() else reference


class KunlunMLABackend(MLACommonBackend):
    supported_dtypes: ClassVar = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # the name that vLLM's registry keeps for backends from outside

    @staticmethod
    def get_impl_cls() -> type[KunlunMLAImpl]:
        return KunlunMLAImpl

    @staticmethod
    def get_builder_cls() -> type[KunlunMLAMetadataBuilder]:
        return KunlunMLAMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # any


class KunlunMLAMetadata(MLACommonMetadata):
    def __post_init__(self) -> None:
        """Upstream's check of the head's size is about the kernels of CUDA."""


class KunlunMLAMetadataBuilder(MLACommonMetadataBuilder[KunlunMLAMetadata]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, KunlunMLAMetadata)


class KunlunMLAPrefillBackend(MLAPrefillBackend):
    """Attention of prefills on uncompressed keys ``[tokens, heads, size]`` and values of another size."""

    supported_dtypes: ClassVar = KunlunMLABackend.supported_dtypes

    @staticmethod
    def get_name() -> str:
        return "KUNLUN"

    def run_prefill_new_tokens(self, q, k, v, return_softmax_lse: bool, out=None, output_scale=None):
        """Among the new tokens. Returns ``[tokens, heads, value size]``, with the sums' logarithms where asked for."""
        starts = self._prefill_metadata.query_start_loc
        result = _kernels().prefill_attention(q, k, v, starts, starts, self.scale, True)
        return result if return_softmax_lse else result[0]

    def run_prefill_context_chunk(self, chunk, q, k, v, out=None):
        """From the new tokens to a part of what was computed before them."""
        return _kernels().prefill_attention(q, k, v, chunk.query_start_loc, chunk.cu_seq_lens, self.scale, False)


class KunlunMLAImpl(MLACommonImpl[KunlunMLAMetadata]):
    can_return_lse_for_decode = True

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
        """Decodes. ``q`` is ``[sequences, heads, rank + rope]``, or its two parts; returns output and logarithms."""
        decode = attn_metadata.decode
        q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        out, lse = _kernels().fwd_kvcache_mla(
            q, kv_c_and_k_pe_cache, decode.block_table, decode.seq_lens, self.kv_lora_rank, self.scale
        )
        return out, lse.t()

    def do_kv_cache_update(self, kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale) -> None:
        """Writes ``[tokens, rank]`` and ``[tokens, 1, rope]`` to ``[blocks, block_size, rank + rope]``."""
        if kv_cache.numel():
            parts = (kv_c_normed.to(kv_cache.dtype), k_pe.squeeze(1).to(kv_cache.dtype))
            _kernels().concat_and_cache_mla(*parts, kv_cache, slot_mapping.flatten())

    def forward_mha(self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output, output_scale=None):
        """Prefills: the new tokens among themselves, then merged with each part of the context before them."""
        if output_scale is not None:
            raise NotImplementedError("attention on kunlun does not quantise its output")
        prefill = attn_metadata.prefill
        backend, context = prefill.prefill_backend, prefill.chunked_context
        k, v = self._uncompress(kv_c_normed, k_pe)
        if context is None:
            out = backend.run_prefill_new_tokens(q, k, v, return_softmax_lse=False)
        else:
            out, lse = backend.run_prefill_new_tokens(q, k, v, return_softmax_lse=True)
            for chunk in context.chunks:
                rows = self._gather(kv_c_and_k_pe_cache, prefill.block_table[chunk.request_slice], chunk).to(q.dtype)
                k, v = self._uncompress(rows[:, : self.kv_lora_rank], rows[:, None, self.kv_lora_rank :])
                tokens = chunk.token_slice
                before = backend.run_prefill_context_chunk(chunk, q[tokens], k, v)
                merged = _kernels().attention_merge_stage(
                    *before, out[tokens].contiguous(), lse[:, tokens].contiguous()
                )
                out[tokens], lse[:, tokens] = merged
        output.view(-1, self.num_heads, self.v_head_dim).copy_(out)

    def _uncompress(self, kv_c: torch.Tensor, k_pe: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of every head from ``[tokens, rank]`` and the rotated part ``[tokens, 1, rope]``."""
        heads = self.kv_b_proj(kv_c)[0].view(-1, self.num_heads, self.qk_nope_head_dim + self.v_head_dim)
        k_nope, v = heads.split((self.qk_nope_head_dim, self.v_head_dim), dim=-1)
        return torch.cat((k_nope, k_pe.expand(-1, self.num_heads, -1)), dim=-1), v

    @staticmethod
    def _gather(cache: torch.Tensor, block_table: torch.Tensor, chunk) -> torch.Tensor:
        """Rows of the cache that a part of the context consists of, one request after the other."""
        n = chunk.num_context_tokens
        request = chunk.token_to_seq[:n].long()
        positions = torch.arange(n, device=cache.device) - chunk.cu_seq_lens[request] + chunk.starts[request]
        size = cache.shape[1]
        blocks = block_table[request, positions.div(size, rounding_mode="floor")]
        return cache[blocks.long(), positions % size]
