"""prefill_attention, paged_attention and attention_merge_stage."""

import pytest
import torch
from common_fused import check, check_op, to_device
from torch.nn import functional

from torch_xpu_kunlun import ops
from torch_xpu_kunlun.ops import reference

# Sums over keys in another order than the reference's.
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float16: {"rtol": 2e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 4e-3},
}


def lengths(*values):
    return functional.pad(torch.tensor(values).cumsum(0), (1, 0)).int()


def packed(dtype, queries, keys, heads, kv_heads, size, value_size=None):
    q = torch.randn(sum(queries), heads, size).to(dtype)
    k = torch.randn(sum(keys), kv_heads, size).to(dtype)
    v = torch.randn(sum(keys), kv_heads, value_size or size).to(dtype)
    return q, k, v, lengths(*queries), lengths(*keys)


def paged(dtype, lens, heads, kv_heads, size, block_size=16, value_size=None):
    """A query for each sequence, and caches whose blocks lie in a random order with unused ones among them."""
    blocks = [-(-n // block_size) for n in lens]
    order = torch.randperm(sum(blocks) + 3).int()
    table = torch.full((len(lens), max([*blocks, 1]) + 1), -1, dtype=torch.int32)
    begin = 0
    for i, n in enumerate(blocks):
        table[i, :n] = order[begin : begin + n]
        begin += n
    query = torch.randn(len(lens), heads, size).to(dtype)
    key_cache = torch.randn(len(order), kv_heads, block_size, size).to(dtype)
    value_cache = torch.randn(len(order), kv_heads, block_size, value_size or size).to(dtype)
    return query, key_cache, value_cache, table, torch.tensor(lens, dtype=torch.int32)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (9, 3), (7, 1)], ids=str)
def test_prefill(dtype, is_causal, heads):
    args = packed(dtype, (5, 70, 1, 0, 33), (5, 70, 1, 0, 33), *heads, 32)
    check("prefill_attention", dtype, *args, is_causal=is_causal, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("sizes", [(1, 1), (7, 7), (80, 80), (40, 16), (192, 128), (256, 256)], ids=str)
def test_head_sizes(dtype, sizes):
    args = packed(dtype, (19, 130), (19, 130), 4, 2, *sizes)
    check("prefill_attention", dtype, *args, tolerance=TOLERANCE[dtype])
    decode = paged(dtype, (1, 75, 130), 4, 2, sizes[0], value_size=sizes[1])
    check("paged_attention", dtype, *decode, tolerance=TOLERANCE[dtype])


def test_the_last_query_stands_beside_the_last_key(dtype):
    args = packed(dtype, (3, 5, 100, 2), (10, 130, 140, 1), 4, 2, 16)
    check("prefill_attention", dtype, *args, tolerance=TOLERANCE[dtype])
    check("prefill_attention", dtype, *args, is_causal=False, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("window", [0, 1, 30, 63, 64, 200])
def test_sliding_windows(dtype, window):
    args = packed(dtype, (150, 20), (150, 90), 4, 2, 16)
    check("prefill_attention", dtype, *args, window_left=window, tolerance=TOLERANCE[dtype])
    check(
        "prefill_attention",
        dtype,
        *args,
        is_causal=False,
        window_left=window,
        window_right=window // 2,
        tolerance=TOLERANCE[dtype],
    )
    check("prefill_attention", dtype, *args, is_causal=False, window_right=window, tolerance=TOLERANCE[dtype])
    decode = paged(dtype, (1, 64, 65, 150), 4, 2, 16)
    check("paged_attention", dtype, *decode, window_left=window, tolerance=TOLERANCE[dtype])


def test_scale_and_sinks(dtype):
    sinks = torch.randn(6)
    prefill = packed(dtype, (9, 80), (9, 100), 6, 3, 24)
    check("prefill_attention", dtype, *prefill, scale=0.4, sinks=sinks, tolerance=TOLERANCE[dtype])
    decode = paged(dtype, (1, 0, 80), 6, 3, 24)
    check("paged_attention", dtype, *decode, scale=0.4, sinks=sinks, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize(("slopes", "softcap"), [(True, 0.0), (False, 1.5), (True, 30.0)])
def test_slopes_and_soft_caps(dtype, slopes, softcap):
    change = {"alibi_slopes": torch.rand(6) if slopes else None, "softcap": softcap, "scale": 0.5}
    prefill = packed(dtype, (9, 80, 3), (9, 100, 1), 6, 3, 24)
    check("prefill_attention", dtype, *prefill, **change, tolerance=TOLERANCE[dtype])
    check("prefill_attention", dtype, *prefill, **change, is_causal=False, tolerance=TOLERANCE[dtype])
    decode = paged(dtype, (1, 0, 80), 6, 3, 24)
    check("paged_attention", dtype, *decode, **change, tolerance=TOLERANCE[dtype])
    check("paged_attention", dtype, *decode, **change, window_left=70, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (9, 3), (7, 1)], ids=str)
@pytest.mark.parametrize("block_size", [1, 16, 50])
def test_paged(dtype, heads, block_size):
    args = paged(dtype, (1, 16, 17, 0, 130, 63), *heads, 32, block_size)
    check("paged_attention", dtype, *args, tolerance=TOLERANCE[dtype])


def test_prefill_over_a_cache(dtype):
    """A chunk of new tokens sees what an earlier one left in the cache."""
    _, key_cache, value_cache, table, lens = paged(dtype, (30, 5, 129), 4, 2, 32)
    query = torch.randn(4 + 5 + 100, 4, 32).to(dtype)
    check(
        "prefill_attention",
        dtype,
        query,
        key_cache,
        value_cache,
        lengths(4, 5, 100),
        lengths(*lens.tolist()),
        block_table=table,
        tolerance=TOLERANCE[dtype],
    )


def test_one_token_is_what_paged_attention_computes(dtype):
    query, key_cache, value_cache, table, lens = to_device(paged(dtype, (30, 5, 129), 4, 2, 32))
    out, lse = ops.paged_attention(query, key_cache, value_cache, table, lens)
    starts = torch.arange(4, device="kunlun")
    ends = functional.pad(lens.cumsum(0), (1, 0))
    same, same_lse = ops.prefill_attention(query, key_cache, value_cache, starts, ends, block_table=table)
    torch.testing.assert_close(same, out, **TOLERANCE[dtype])
    torch.testing.assert_close(same_lse, lse)


def test_caches_of_any_layout(dtype):
    query, key_cache, value_cache, table, lens = paged(dtype, (30, 5, 129), 4, 2, 32)
    expected, _ = reference.paged_attention(query, key_cache, value_cache, table, lens)
    both = torch.cat((key_cache, value_cache), -1).to("kunlun")
    tokens_first = [
        cache.transpose(1, 2).contiguous().to("kunlun").transpose(1, 2) for cache in (key_cache, value_cache)
    ]
    query, table, lens = to_device((query, table.long(), lens.long()))
    for keys, values in ((both[..., :32], both[..., 32:]), tokens_first):
        out = torch.zeros(3, 8, 32, dtype=dtype, device="kunlun")
        assert ops.paged_attention(query, keys, values, table, lens, out=out[:, 2:6]) is not None
        torch.testing.assert_close(out[:, 2:6].cpu(), expected, **TOLERANCE[dtype])
        assert not out[:, :2].any()
        assert not out[:, 6:].any()


def test_views_of_one_projection(dtype):
    qkv = torch.randn(50, (4 + 2 + 2) * 16).to(dtype)
    q, k, v = (part.unflatten(-1, (-1, 16)) for part in qkv.split([64, 32, 32], -1))
    check("prefill_attention", dtype, q, k, v, lengths(20, 30), lengths(20, 30), tolerance=TOLERANCE[dtype])
    q = torch.randn(50, 16, 4).to(dtype).transpose(1, 2)
    check("prefill_attention", dtype, q, k, v, lengths(20, 30), lengths(20, 30), tolerance=TOLERANCE[dtype])


def test_merging_equals_attention_over_both_parts(dtype):
    q, k, v, starts, _ = packed(dtype, (6, 9), (6, 9), 4, 2, 16)
    prefix_k, prefix_v = torch.randn(2, 40, 2, 16).to(dtype)
    args = to_device((q, k, v, starts, starts))
    suffix = ops.prefill_attention(*args)
    # The second sequence has no prefix, so its part has no keys at all.
    ends = torch.tensor([0, 40, 40], dtype=torch.int32)
    prefix = ops.prefill_attention(*to_device((q, prefix_k, prefix_v, starts, ends)), is_causal=False)
    assert (prefix[1][:, 6:] == -torch.inf).all()
    assert not prefix[0][6:].any()
    out, lse = ops.attention_merge_stage(*prefix, *suffix)
    whole_k, whole_v = torch.cat((prefix_k, k)), torch.cat((prefix_v, v))
    expected = reference.prefill_attention(q, whole_k, whole_v, starts, lengths(46, 9))
    tolerance = {"rtol": 2 * TOLERANCE[dtype]["rtol"], "atol": 2 * TOLERANCE[dtype]["atol"]}
    torch.testing.assert_close(out.cpu(), expected[0], **tolerance)
    torch.testing.assert_close(lse.cpu(), expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 80), (0, 2, 8), (33, 9, 64)], ids=str)
def test_merge(dtype, shape):
    outs = torch.randn(2, *shape).to(dtype)
    lses = 3 * torch.randn(2, shape[1], shape[0])
    lses.masked_fill_(torch.rand(lses.shape) < 0.2, -torch.inf)
    check("attention_merge_stage", dtype, outs[0], lses[0], outs[1], lses[1], tolerance=TOLERANCE[dtype])


def test_nan_is_not_hidden(dtype):
    query, key_cache, value_cache, table, lens = paged(dtype, (20, 20), 2, 1, 16)
    query[0, 0, 0] = torch.nan
    args = to_device((query, key_cache, value_cache, table, lens))
    out, _ = ops.paged_attention(*args)
    assert out[0, 0].isnan().all()
    assert not out[0, 1].isnan().any()
    q, k, v, starts, ends = packed(dtype, (8,), (8,), 2, 2, 16)
    k[3, 1] = torch.nan
    out, _ = ops.prefill_attention(*to_device((q, k, v, starts, ends)))
    assert out[3:, 1].isnan().all()
    assert not out[:, 0].isnan().any()
    assert not out[:3].isnan().any()


def test_operator_check(dtype):
    prefill = packed(dtype, (3, 5), (3, 5), 4, 2, 16)
    check_op(torch.ops.kunlun.prefill_attention.default, *prefill)
    check_op(torch.ops.kunlun.prefill_attention.out, *prefill, window_left=2, out=torch.empty(8, 4, 16, dtype=dtype))
    decode = paged(dtype, (3, 20), 4, 2, 16)
    check_op(torch.ops.kunlun.paged_attention.default, *decode)
    check_op(
        torch.ops.kunlun.paged_attention.out, *decode, sinks=torch.randn(4), out=torch.empty(2, 4, 16, dtype=dtype)
    )
    outs = torch.randn(2, 3, 4, 16).to(dtype)
    lses = torch.randn(2, 4, 3)
    check_op(torch.ops.kunlun.attention_merge_stage.default, outs[0], lses[0], outs[1], lses[1])


def test_lengths_and_blocks_that_do_not_fit():
    q, k, v, starts, ends = to_device(packed(torch.float32, (3, 5), (3, 5), 4, 2, 16))
    for wrong, message in (
        (starts - 1, "cu_seqlens_q must begin with 0"),
        (starts.flip(0), "cu_seqlens_q must begin with 0"),
        (torch.tensor([0, 9, 8], device="kunlun"), "cu_seqlens_q decreases after entry 1"),
        (torch.tensor([0, 3, 7], device="kunlun"), "cu_seqlens_q ends at 7, but there are 8 tokens"),
    ):
        ops.prefill_attention(q, k, v, wrong, ends)
        with pytest.raises(IndexError, match=message):
            torch.kunlun.synchronize()
    query, key_cache, value_cache, table, lens = to_device(paged(torch.float32, (3, 20), 4, 2, 16))
    ops.paged_attention(query, key_cache, value_cache, table, lens + 100)
    with pytest.raises(IndexError, match="sequence 0 has 103 tokens, but block_table has room for 48"):
        torch.kunlun.synchronize()
    ops.paged_attention(query, key_cache, value_cache, table + 100, lens)
    with pytest.raises(IndexError, match=r"block 10\d of sequence 0 is out of the range of a cache of 6 blocks"):
        torch.kunlun.synchronize()


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    q, k, v, starts, ends = (t.to(device) for t in packed(torch.float32, (3, 5), (3, 5), 4, 2, 16))
    with pytest.raises(RuntimeError, match=r"the heads of query \(3\) must be a multiple of those of key \(2\)"):
        ops.prefill_attention(q[:, :3], k, v, starts, ends)
    with pytest.raises(RuntimeError, match="key must be Float, got Half"):
        ops.prefill_attention(q, k.half(), v, starts, ends)
    with pytest.raises(RuntimeError, match="key must have size 16 in dimension -1"):
        ops.prefill_attention(q, k[..., :8], v, starts, ends)
    with pytest.raises(RuntimeError, match=r"cu_seqlens_k must have shape \[3\], got \[2\]"):
        ops.prefill_attention(q, k, v, starts, ends[:2])
    with pytest.raises(RuntimeError, match="window_left must be -1 for no limit, or a number of tokens, got -2"):
        ops.prefill_attention(q, k, v, starts, ends, window_left=-2)
    with pytest.raises(RuntimeError, match=r"alibi_slopes must have shape \[4\], got \[3\]"):
        ops.prefill_attention(q, k, v, starts, ends, alibi_slopes=torch.randn(3, device=device))
    with pytest.raises(ValueError, match="softcap must be 0 for none, or positive, got -1"):
        ops.prefill_attention(q, k, v, starts, ends, softcap=-1.0)
    with pytest.raises(RuntimeError, match="sinks must be Float, got Double"):
        ops.prefill_attention(q, k, v, starts, ends, sinks=torch.randn(4, device=device).double())
    query, key_cache, value_cache, table, lens = (t.to(device) for t in paged(torch.float32, (3, 20), 4, 2, 16))
    with pytest.raises(RuntimeError, match="block_table must have size 2 in dimension 0"):
        ops.paged_attention(query, key_cache, value_cache, table[:1], lens)
    with pytest.raises(RuntimeError, match="key_cache must be contiguous in its last dimension"):
        ops.paged_attention(query[..., :8], key_cache[..., ::2], value_cache, table, lens)
    with pytest.raises(RuntimeError, match=r"out must have shape \[2, 4, 16\], got \[2, 4, 8\]"):
        ops.paged_attention(query, key_cache, value_cache, table, lens, out=query[..., :8])


def test_gradients_are_refused():
    q, k, v, starts, ends = to_device(packed(torch.float32, (3, 5), (3, 5), 4, 2, 16))
    with pytest.raises(NotImplementedError, match="kunlun::prefill_attention is for inference and has no derivative"):
        ops.prefill_attention(q, k.requires_grad_(), v, starts, ends)
