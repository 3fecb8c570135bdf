"""The fused operators composed of torch's own, for any device: what they must compute, and what they save.

Same names and arguments as in ``torch_xpu_kunlun.ops``. Computed in float32 and rounded once, as the fused kernels do.
"""

import torch
from torch import Tensor
from torch.nn import functional

# ---- normalisation ----


def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rmsnorm(total, weight, eps), total


def add_rmsnorm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    residual.add_(x)
    x.copy_(rmsnorm(residual, weight, eps))


# ---- activations ----


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(x.dtype)


def swiglu(x: Tensor, y: Tensor | None = None) -> Tensor:
    if y is None:
        return silu_and_mul(x)
    return (functional.silu(x.float()) * y.float()).to(x.dtype)


def swigluoai_and_mul(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    gate = x[..., ::2].float().clamp(max=limit)
    up = x[..., 1::2].float().clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(x.dtype)


def quick_gelu(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)


# ---- rotary position embedding ----


def rotated(x: Tensor, positions: Tensor, cos_sin_cache: Tensor, is_neox: bool) -> Tensor:
    """``x`` is ``[..., heads, head_size]`` with the leading dimensions of ``positions``; float32 comes back."""
    angles = cos_sin_cache.float()[positions.long()].unsqueeze(-2)
    cos, sin = angles.chunk(2, -1)
    size = angles.shape[-1]
    turning, rest = x.float().split([size, x.shape[-1] - size], -1)
    if is_neox:
        first, second = turning.chunk(2, -1)
    else:
        first, second = turning[..., ::2], turning[..., 1::2]
    pair = first * cos - second * sin, second * cos + first * sin
    turned = torch.cat(pair, -1) if is_neox else torch.stack(pair, -1).flatten(-2)
    return torch.cat((turned, rest), -1)


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    for tensor in (query, key):
        if tensor is not None:
            split = tensor.dim() == positions.dim() + 2
            heads = tensor if split else tensor.unflatten(-1, (-1, head_size))
            tensor.copy_(rotated(heads, positions, cos_sin_cache, is_neox).reshape(tensor.shape))


def split_norm_rope(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos_sin_cache: Tensor,
    positions: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    eps: float = 1e-6,
    is_neox: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = qkv.split([num_heads * head_size, num_kv_heads * head_size, num_kv_heads * head_size], -1)
    results = []
    for part, weight in ((q, q_weight), (k, k_weight)):
        heads = part.unflatten(-1, (-1, head_size)).float()
        if weight is not None:
            heads = rmsnorm(heads, weight, eps)
        results.append(rotated(heads, positions, cos_sin_cache, is_neox).reshape(part.shape).to(qkv.dtype))
    return results[0], results[1], v.clone(memory_format=torch.contiguous_format)


# ---- caches of blocks ----


def reshape_and_cache_flash(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    token = (slot_mapping >= 0).nonzero()[:, 0]
    slot = slot_mapping.long()[token]
    size = key_cache.shape[1]
    for source, cache in ((key, key_cache), (value, value_cache)):
        cache[slot // size, slot % size] = source[token]


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    reshape_and_cache_flash(key, value, key_cache.transpose(1, 2), value_cache.transpose(1, 2), slot_mapping)


def gathered(cache: Tensor, blocks: Tensor, length: int) -> Tensor:
    """The first ``length`` rows of the listed blocks, ``[length, kv_heads, size]``."""
    return cache[blocks.long()].transpose(1, 2).flatten(0, 1)[:length]


# ---- attention ----


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    left: int,
    right: int,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """One sequence: ``[tokens, heads, size]`` each; ``left`` and ``right`` limit what a query sees, -1 for no limit."""
    group = query.shape[1] // key.shape[1]
    key = key.float().repeat_interleave(group, 1)
    value = value.float().repeat_interleave(group, 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("qhd,khd->hqk", query.float() * scale, key)
    there = torch.arange(key.shape[0], device=query.device)
    here = torch.arange(query.shape[0], device=query.device)[:, None] + key.shape[0] - query.shape[0]
    if softcap != 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * (here - there).abs()
    hidden = torch.zeros_like(scores[0], dtype=torch.bool)
    if left >= 0:
        hidden |= there < here - left
    if right >= 0:
        hidden |= there > here + right
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, query.shape[0], 1)), -1)
        value = torch.cat(
            (value, torch.zeros_like(value[:1])) if value.shape[0] else (value.new_zeros(1, *value.shape[1:]),)
        )
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().masked_fill(lse[..., None] == -torch.inf, 0)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype), lse


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
) -> tuple[Tensor, Tensor]:
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    outs = [query.new_empty(0, query.shape[1], value.shape[-1])]
    lses = [query.new_empty(query.shape[1], 0, dtype=torch.float)]
    for i in range(len(queries) - 1):
        if block_table is None:
            k, v = key[keys[i] : keys[i + 1]], value[keys[i] : keys[i + 1]]
        else:
            k, v = (gathered(cache, block_table[i], keys[i + 1] - keys[i]) for cache in (key, value))
        right = 0 if is_causal else window_right
        q = query[queries[i] : queries[i + 1]]
        out, lse = attention(q, k, v, scale, window_left, right, sinks, alibi_slopes, softcap)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses, 1)


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
) -> tuple[Tensor, Tensor]:
    ends = functional.pad(context_lens.cumsum(0), (1, 0))
    starts = torch.arange(query.shape[0] + 1, device=query.device)
    args = (query, key_cache, value_cache, starts, ends, scale, True, window_left, -1, sinks, block_table)
    return prefill_attention(*args, alibi_slopes, softcap)


def attention_merge_stage(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor
) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(prefix_lse, suffix_lse)
    total = torch.zeros_like(prefix_out, dtype=torch.float)
    for out, part in ((prefix_out, prefix_lse), (suffix_out, suffix_lse)):
        weight = (part - lse).exp().t()[..., None]
        total += torch.where((part == -torch.inf).t()[..., None], 0, out.float() * weight)
    return total.to(prefix_out.dtype), lse


# ---- mixtures of experts ----


def best(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest of each row; of equal ones the first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def moe_softmax_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    ids = best(logits.float(), k)
    return logits.float().softmax(-1).gather(-1, ids), ids.int()


def moe_softmax_topk_norm(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    ids = best(logits.float(), k)
    return logits.float().gather(-1, ids).softmax(-1), ids.int()


def moe_sigmoid_group_topk_norm(
    logits: Tensor, bias: Tensor | None, k: int, n_group: int, topk_group: int, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    scores = logits.float().sigmoid()
    biased = scores if bias is None else scores + bias
    groups = biased.unflatten(-1, (n_group, -1))
    group_scores = groups.sort(-1, descending=True).values[..., :2].sum(-1)
    kept = torch.zeros_like(group_scores).scatter_(-1, best(group_scores, topk_group), 1)
    masked = groups.masked_fill(kept[..., None] == 0, -torch.inf).flatten(-2)
    ids = best(masked, k)
    weights = scores.gather(-1, ids)
    return weights / weights.sum(-1, keepdim=True) * scale, ids.int()


def moe_fc(x: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    chosen = ids.long()
    rows = x[:, None] if x.dim() == 2 else x
    out = torch.einsum("tkoi,tki->tko", weight.float()[chosen.clamp(min=0)], rows.float().expand(*ids.shape, -1))
    return out.masked_fill((chosen < 0)[..., None], 0).to(x.dtype)


def moe_ffn_block(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    middle = silu_and_mul(moe_fc(x.float(), w13.float(), ids))
    return (moe_fc(middle, w2.float(), ids) * weights[..., None]).sum(1).to(x.dtype)


# ---- few bits ----


def quant2d(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True)
    # A true division: a number over a tensor multiplies with the reciprocal.
    factor = torch.where(largest == 0, 0, torch.full_like(largest, 127) / largest)
    return (wide * factor).round().clamp(-127, 127).to(torch.int8), largest


def dynamic_scaled_int8_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    quantized, largest = quant2d(x)
    return quantized, largest * torch.tensor(1 / 127)


def cutlass_scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    exact = a.double() @ b.double()
    out = exact.float() * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    return (out if bias is None else out + bias.float()).to(out_dtype)


def gemm_I8_I8_bf16_nt(x: Tensor, x_max: Tensor, weight: Tensor, weight_max: Tensor) -> Tensor:
    return cutlass_scaled_mm(x, weight.t(), x_max / 127, weight_max / 127, torch.bfloat16)


def nibbles(packed: Tensor, order: list[int]) -> Tensor:
    """The eight values of every word as a new last dimension, value ``i`` from bits ``4 * order[i]`` on."""
    shifts = 4 * torch.tensor(order, device=packed.device)
    return packed.long()[..., None] >> shifts & 15


def awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    values, zeros = (nibbles(t, [0, 4, 1, 5, 2, 6, 3, 7]).flatten(-2) for t in (qweight, qzeros))
    size = qweight.shape[0] // scales.shape[0]
    zeros, wide = (t.repeat_interleave(size, 0) for t in (zeros, scales.float()))
    return ((values - zeros) * wide).to(dtype or scales.dtype)


def awq_gemm(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    return (x.float() @ awq_dequantize(qweight, scales, qzeros, torch.float)).to(x.dtype)


def gptq_gemm(x: Tensor, qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None) -> Tensor:
    values = nibbles(qweight, list(range(8))).transpose(-1, -2).flatten(0, 1)
    zeros = nibbles(qzeros, list(range(8))).flatten(-2) + 1
    if g_idx is None:
        g_idx = torch.arange(values.shape[0], device=x.device) // (values.shape[0] // scales.shape[0])
    group = g_idx.long()
    return (x.float() @ ((values - zeros[group]) * scales.float()[group])).to(x.dtype)


# ---- multi-head latent attention ----


def concat_and_cache_mla(kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    rows = torch.cat((kv_c, k_pe), -1)[:, None]
    cache = kv_cache[:, :, None]
    reshape_and_cache_flash(rows, rows, cache, cache, slot_mapping)


def fwd_kvcache_mla(
    query: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    head_size_v: int,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    keys = kv_cache[:, None]
    return paged_attention(query, keys, keys[..., :head_size_v], block_table, context_lens, scale)


# ---- sampling ----


def kept(probs: Tensor, top_k: Tensor | int | None, top_p: Tensor | float | None) -> Tensor:
    """``probs`` with zeros in place of what the limits exclude. Equal probabilities are kept or excluded together."""
    if top_k is not None:
        k = torch.as_tensor(top_k, device=probs.device).long().expand(probs.shape[:1]).clamp(max=probs.shape[1])
        last = probs.sort(-1, descending=True).values.gather(-1, k[:, None] - 1)
        probs = probs.masked_fill(probs < last, 0)
    if top_p is not None:
        p = torch.as_tensor(top_p, device=probs.device, dtype=torch.float).expand(probs.shape[:1])
        ordered = probs.sort(-1, descending=True).values
        wanted = p * probs.sum(-1)
        number = (ordered.cumsum(-1) < wanted[:, None]).sum(-1, keepdim=True).clamp(max=probs.shape[1] - 1)
        limited = probs.masked_fill(probs < ordered.gather(-1, number), 0)
        probs = torch.where((p < 1)[:, None], limited, probs)
    return probs


def top_k_sampling_from_probs(
    probs: Tensor, top_k: Tensor | int, *, generator: torch.Generator | None = None
) -> Tensor:
    return torch.multinomial(kept(probs, top_k, None), 1, generator=generator)[:, 0].int()


def top_p_sampling_from_probs(
    probs: Tensor, top_p: Tensor | float, *, generator: torch.Generator | None = None
) -> Tensor:
    return torch.multinomial(kept(probs, None, top_p), 1, generator=generator)[:, 0].int()


def top_k_top_p_sampling_from_probs(
    probs: Tensor, top_k: Tensor | int, top_p: Tensor | float, *, generator: torch.Generator | None = None
) -> Tensor:
    return torch.multinomial(kept(probs, top_k, top_p), 1, generator=generator)[:, 0].int()


# ---- low-rank adapters ----


def bgmv_shrink(x: Tensor, weights: Tensor, indices: Tensor, scale: float = 1.0) -> Tensor:
    return scale * moe_fc(x.float(), weights.float(), indices[:, None])[:, 0]


def bgmv_expand(y: Tensor, weights: Tensor, out: Tensor, indices: Tensor, offset: int = 0, add: bool = True) -> None:
    part = out[:, offset : offset + weights.shape[1]]
    result = moe_fc(y, weights.float(), indices[:, None])[:, 0]
    part.copy_(part.float() + result if add else result)
