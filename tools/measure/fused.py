# The cases of the benchmark of fused operators: each as one fused call and as the composition that engines write
# without it. This module must not import torch_xpu_kunlun: the CPU side runs it too.
import functools
from collections.abc import Callable
from dataclasses import dataclass

# The sizes of Llama 3.2 1B.
HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY = 2048, 8192, 32, 8, 64, 128256
CONTEXT, BLOCK = 1024, 16
EXPERTS, TOP_K = 16, 2
TOKENS = {"decode": 8, "prefill": 512}


@dataclass(frozen=True)
class Case:
    """`make(tokens, dtype, device)` gives the arguments of `fused` and `composed`; `wanted` is the issue's bar."""

    make: Callable
    fused: Callable
    composed: Callable
    phases: tuple[str, ...] = ("decode", "prefill")
    wanted: float | None = None


def randn(*shape, dtype, device):
    import torch

    return torch.randn(shape, dtype=dtype).to(device)


def ops():
    import torch

    return torch.ops.kunlun


# ---- normalisation and activation ----


def make_norm(tokens, dtype, device):
    make = functools.partial(randn, dtype=dtype, device=device)
    return make(tokens, HIDDEN), make(tokens, HIDDEN), make(HIDDEN)


def rmsnorm(x, _residual, weight):
    import torch

    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def add_rmsnorm(x, residual, weight):
    total = x + residual
    return rmsnorm(total, None, weight), total


def make_gate(tokens, dtype, device):
    return (randn(tokens, 2 * INNER, dtype=dtype, device=device),)


def silu_and_mul(x):
    import torch

    return torch.nn.functional.silu(x[..., :INNER]) * x[..., INNER:]


def quick_gelu(x):
    import torch

    return x * torch.sigmoid(1.702 * x)


# ---- rotary position embedding ----


def make_rope(tokens, dtype, device):
    import torch

    make = functools.partial(randn, dtype=dtype, device=device)
    positions = torch.arange(tokens).to(device)
    return positions, make(tokens, HEADS, HEAD), make(tokens, KV_HEADS, HEAD), make(2048, HEAD)


def turned(x, cos, sin):
    import torch

    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def rope(positions, query, key, table):
    cos, sin = table.index_select(0, positions)[:, None].chunk(2, -1)
    return turned(query, cos, sin), turned(key, cos, sin)


def make_split(tokens, dtype, device):
    import torch

    make = functools.partial(randn, dtype=dtype, device=device)
    positions = torch.arange(tokens).to(device)
    return make(tokens, (HEADS + 2 * KV_HEADS) * HEAD), make(HEAD), make(HEAD), make(2048, HEAD), positions


def split_norm_rope(qkv, q_weight, k_weight, table, positions):
    q, k, v = qkv.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], -1)
    q = rmsnorm(q.view(-1, HEADS, HEAD), None, q_weight)
    k = rmsnorm(k.view(-1, KV_HEADS, HEAD), None, k_weight)
    return *rope(positions, q, k, table), v.contiguous()


# ---- attention ----


def make_paged(tokens, dtype, device):
    import torch

    make = functools.partial(randn, dtype=dtype, device=device)
    blocks = CONTEXT // BLOCK
    table = torch.randperm(tokens * blocks).view(tokens, blocks).int().to(device)
    lens = (CONTEXT - torch.arange(tokens) * 7).int().to(device)
    cache = tokens * blocks, KV_HEADS, BLOCK, HEAD
    return make(tokens, HEADS, HEAD), make(*cache), make(*cache), table, lens


def paged_attention(query, key_cache, value_cache, table, lens):
    import torch

    k, v = (cache[table.long()].transpose(1, 2).flatten(2, 3) for cache in (key_cache, value_cache))
    mask = (torch.arange(CONTEXT, device=query.device) < lens[:, None])[:, None, None]
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(query[:, :, None], k, v, attn_mask=mask, enable_gqa=True)[:, :, 0]


def make_prefill(tokens, dtype, device):
    import torch

    make = functools.partial(randn, dtype=dtype, device=device)
    starts = torch.tensor([0, tokens], dtype=torch.int32).to(device)
    return make(tokens, HEADS, HEAD), make(tokens, KV_HEADS, HEAD), make(tokens, KV_HEADS, HEAD), starts, starts


def prefill_attention(query, key, value, _queries, _keys):
    import torch

    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


# ---- sampling ----


def make_probs(tokens, _dtype, device):
    import torch

    probs = (3 * torch.randn(tokens, VOCABULARY)).softmax(-1)
    return probs.to(device), torch.full((tokens,), 50).to(device), torch.full((tokens,), 0.9).to(device)


def sample(probs, top_k, top_p):
    import torch

    ordered, ids = probs.sort(-1, descending=True)
    rank = torch.arange(probs.shape[1], device=probs.device)
    ordered = ordered.masked_fill(rank >= top_k[:, None], 0)
    ordered /= ordered.sum(-1, keepdim=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered > top_p[:, None], 0)
    return ids.gather(-1, torch.multinomial(ordered, 1))


# ---- experts and few bits ----


def make_moe(tokens, dtype, device):
    import torch

    make = functools.partial(randn, dtype=dtype, device=device)
    inner = INNER // 8
    ids = torch.rand(tokens, EXPERTS).topk(TOP_K).indices.int().to(device)
    weights = torch.rand(tokens, TOP_K).to(device)
    return make(tokens, HIDDEN), make(EXPERTS, 2 * inner, HIDDEN), make(EXPERTS, HIDDEN, inner), weights, ids


def moe(x, w13, w2, weights, ids):
    import torch

    out = torch.zeros_like(x)
    for expert in range(EXPERTS):
        token, choice = (ids == expert).nonzero(as_tuple=True)
        gate, up = torch.nn.functional.linear(x[token], w13[expert]).chunk(2, -1)
        part = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, w2[expert])
        out.index_add_(0, token, part * weights[token, choice, None].to(x.dtype))
    return out


def make_awq(tokens, dtype, device):
    import torch

    def words(*shape):
        return torch.randint(-(2**31), 2**31, shape).int().to(device)

    groups = HIDDEN // 128
    scales = (torch.rand(groups, HIDDEN) / 100).to(dtype).to(device)
    return (
        randn(tokens, HIDDEN, dtype=dtype, device=device),
        words(HIDDEN, HIDDEN // 8),
        scales,
        words(groups, HIDDEN // 8),
    )


def awq(x, qweight, scales, qzeros):
    import torch

    shifts = torch.tensor([0, 16, 4, 20, 8, 24, 12, 28], dtype=torch.int32, device=x.device)
    values, zeros = ((t[..., None] >> shifts & 15).flatten(-2) for t in (qweight, qzeros))
    values, zeros = values.view(scales.shape[0], -1, HIDDEN), zeros[:, None]
    weights = (values - zeros).to(x.dtype) * scales[:, None]
    return x @ weights.view(HIDDEN, HIDDEN)


def make_int8(tokens, dtype, device):
    import torch

    weight = torch.randint(-127, 128, (HIDDEN, HIDDEN), dtype=torch.int8).to(device)
    return randn(tokens, HIDDEN, dtype=dtype, device=device), weight, torch.rand(HIDDEN).to(device)


def fused_int8(x, weight, scale):
    quantized, x_scale = ops().dynamic_scaled_int8_quant(x)
    return ops().cutlass_scaled_mm(quantized, weight.t(), x_scale, scale, x.dtype)


def int8(x, weight, scale):
    """What runs without integer products: the same numbers as products of floats."""
    import torch

    x_scale = x.float().abs().amax(-1, keepdim=True) / 127
    quantized = (x.float() / x_scale).round().to(torch.int8)
    return ((quantized.float() @ weight.float().t()) * x_scale * scale).to(x.dtype)


CASES = {
    "rmsnorm": Case(make_norm, lambda x, _, w: ops().rmsnorm(x, w), rmsnorm, wanted=1.5),
    "add_rmsnorm": Case(make_norm, lambda *args: ops().add_rmsnorm(*args), add_rmsnorm, wanted=1.5),
    "silu_and_mul": Case(make_gate, lambda x: ops().silu_and_mul(x), silu_and_mul, wanted=1.5),
    "quick_gelu": Case(make_gate, lambda x: ops().quick_gelu(x), quick_gelu),
    "rotary_embedding": Case(make_rope, lambda p, q, k, t: ops().rotary_embedding(p, q, k, HEAD, t), rope, wanted=1.5),
    "split_norm_rope": Case(
        make_split,
        lambda qkv, q, k, t, p: ops().split_norm_rope(qkv, q, k, t, p, HEADS, KV_HEADS, HEAD),
        split_norm_rope,
    ),
    "paged_attention": Case(
        make_paged, lambda *args: ops().paged_attention(*args), paged_attention, ("decode",), wanted=1.5
    ),
    "prefill_attention": Case(
        make_prefill, lambda *args: ops().prefill_attention(*args), prefill_attention, ("prefill",)
    ),
    "top_k_top_p_sampling_from_probs": Case(
        make_probs, lambda *args: ops().top_k_top_p_sampling_from_probs(*args), sample, ("decode",), wanted=1.5
    ),
    "moe_ffn_block": Case(make_moe, lambda *args: ops().moe_ffn_block(*args), moe),
    "awq_gemm": Case(make_awq, lambda *args: ops().awq_gemm(*args), awq),
    "dynamic_scaled_int8_quant, cutlass_scaled_mm": Case(make_int8, fused_int8, int8),
}


@functools.lru_cache(maxsize=1)
def arguments(name: str, phase: str, dtype: str, device: str):
    import torch

    torch.manual_seed(0)
    return CASES[name].make(TOKENS[phase], getattr(torch, dtype), device)
