"""concat_and_cache_mla and fwd_kvcache_mla."""

import pytest
import torch
from common_fused import check, check_op, to_device

from torch_xpu_kunlun import ops

# Sums over keys in another order than the reference's.
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float16: {"rtol": 2e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 4e-3},
}


def cached(dtype, lens, heads, rank, rope, block_size=16):
    blocks = [-(-n // block_size) for n in lens]
    order = torch.randperm(sum(blocks) + 2).int()
    table = torch.zeros(len(lens), max(blocks) + 1, dtype=torch.int32)
    begin = 0
    for i, n in enumerate(blocks):
        table[i, :n] = order[begin : begin + n]
        begin += n
    query = torch.randn(len(lens), heads, rank + rope).to(dtype)
    cache = torch.randn(len(order), block_size, rank + rope).to(dtype)
    return query, cache, table, torch.tensor(lens, dtype=torch.int32), rank


@pytest.mark.parametrize("heads", [1, 8, 9, 40])
@pytest.mark.parametrize("sizes", [(5, 2), (64, 16), (512, 64)], ids=str)
def test_decode(dtype, heads, sizes):
    args = cached(dtype, (1, 64, 130), heads, *sizes)
    check("fwd_kvcache_mla", dtype, *args, tolerance=TOLERANCE[dtype])
    check("fwd_kvcache_mla", dtype, *args, 0.05, tolerance=TOLERANCE[dtype])


def test_writing_and_reading_back(dtype):
    kv_c, k_pe = torch.randn(9, 20).to(dtype), torch.randn(9, 6).to(dtype)
    cache = torch.randn(3, 4, 26).to(dtype)
    slots = torch.tensor([11, 3, -1, 0, 5, 6, -1, 1])
    check("concat_and_cache_mla", dtype, kv_c, k_pe, cache, slots, tolerance={"rtol": 0, "atol": 0})
    wide = torch.randn(9, 60).to(dtype)
    check("concat_and_cache_mla", dtype, wide[:, ::3], wide[:, 4:10], cache.clone(), slots.int())
    check("concat_and_cache_mla", dtype, kv_c[:0], k_pe[:0], cache.clone(), slots[:0])


def test_operator_check(dtype):
    check_op(torch.ops.kunlun.fwd_kvcache_mla.default, *cached(dtype, (3, 20), 4, 16, 4))
    kv_c, k_pe = torch.randn(4, 20).to(dtype), torch.randn(4, 6).to(dtype)
    cache = torch.randn(3, 4, 26).to(dtype)
    check_op(torch.ops.kunlun.concat_and_cache_mla.default, kv_c, k_pe, cache, torch.tensor([3, -1, 0, 11]))


def test_slots_and_blocks_out_of_range():
    query, cache, table, lens, rank = to_device(cached(torch.float32, (3, 20), 4, 16, 4))
    ops.fwd_kvcache_mla(query, cache, table + 100, lens, rank)
    with pytest.raises(
        IndexError, match=r"fwd_kvcache_mla: block 10\d of sequence 0 is out of the range of a cache of 5"
    ):
        torch.kunlun.synchronize()
    x = torch.randn(1, 10, device="kunlun")
    ops.concat_and_cache_mla(x, x, cache, torch.tensor([80], device="kunlun"))
    with pytest.raises(IndexError, match="concat_and_cache_mla: slot 80 of token 0 is out of the range"):
        torch.kunlun.synchronize()


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    query, cache, table, lens, _ = cached(torch.float32, (3, 20), 4, 16, 4)
    query, cache, table, lens = (t.to(device) for t in (query, cache, table, lens))
    with pytest.raises(
        RuntimeError, match=r"head_size_v must be from 1 to the size of a row of kv_cache \(20\), got 21"
    ):
        ops.fwd_kvcache_mla(query, cache, table, lens, 21)
    with pytest.raises(RuntimeError, match="kv_cache must have size 20 in dimension 2"):
        ops.fwd_kvcache_mla(query, cache[..., :16], table, lens, 16)
    x = torch.randn(2, 10, device=device)
    with pytest.raises(RuntimeError, match="kv_cache must have size 15 in dimension 2"):
        ops.concat_and_cache_mla(x, x[:, :5], cache, torch.zeros(2, dtype=torch.long, device=device))
