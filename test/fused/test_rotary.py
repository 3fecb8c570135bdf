"""rotary_embedding and split_norm_rope."""

import pytest
import torch
from common_fused import check, check_op

from torch_xpu_kunlun import ops


def cache(positions, size, dtype=torch.float32):
    """Cosines and sines of the usual frequencies."""
    frequencies = 10000.0 ** -(torch.arange(0, size, 2) / size)
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), 1).to(dtype)


@pytest.mark.parametrize("is_neox", [True, False], ids=["halves", "neighbours"])
@pytest.mark.parametrize("sizes", [(64, 64), (80, 80), (128, 32), (6, 2), (34, 34)], ids=str)
def test_rotary_embedding(dtype, is_neox, sizes):
    head_size, rotated = sizes
    positions = torch.randint(0, 50, (7,))
    for table in (cache(50, rotated), cache(50, rotated, dtype)):
        q = torch.randn(7, 3 * head_size).to(dtype)
        k = torch.randn(7, head_size).to(dtype)
        check("rotary_embedding", dtype, positions, q, k, head_size, table, is_neox)
        check("rotary_embedding", dtype, positions.int(), q.view(7, 3, head_size), None, head_size, table, is_neox)


def test_batches_and_views(dtype):
    positions = torch.randint(0, 50, (2, 5))
    qkv = torch.randn(2, 5, 6 * 16).to(dtype)
    q, k, _ = qkv.split([64, 16, 16], -1)
    check("rotary_embedding", dtype, positions, q, k, 16, cache(50, 16))
    heads = torch.randn(2, 4, 5, 16).to(dtype).transpose(1, 2)
    check("rotary_embedding", dtype, positions, heads, heads[:, :, :1].clone(), 16, cache(50, 16))
    check("rotary_embedding", dtype, positions.t(), torch.randn(5, 2, 16).to(dtype), None, 16, cache(50, 16))
    check("rotary_embedding", dtype, positions[:, :0], qkv[:, :0], None, 16, cache(50, 16))


@pytest.mark.parametrize("is_neox", [True, False], ids=["halves", "neighbours"])
@pytest.mark.parametrize("sizes", [(64, 64), (80, 40), (6, 4)], ids=str)
def test_split_norm_rope(dtype, is_neox, sizes):
    head_size, rotated = sizes
    positions = torch.randint(0, 50, (9,))
    qkv = torch.randn(9, 7 * head_size).to(dtype)
    weights = torch.rand(2, head_size).to(dtype)
    for q_weight, k_weight in (weights, (None, None), weights.float()):
        check(
            "split_norm_rope",
            dtype,
            qkv,
            q_weight,
            k_weight,
            cache(50, rotated),
            positions,
            3,
            2,
            head_size,
            1e-5,
            is_neox,
        )
    check("split_norm_rope", dtype, qkv[::2], None, None, cache(50, rotated), positions[::2], 3, 2, head_size)
    check("split_norm_rope", dtype, qkv[:0], None, None, cache(50, rotated), positions[:0], 3, 2, head_size)


def test_operator_check(dtype):
    positions = torch.arange(4)
    q, k = torch.randn(4, 32).to(dtype), torch.randn(4, 16).to(dtype)
    check_op(torch.ops.kunlun.rotary_embedding.default, positions, q, k, 16, cache(8, 16))
    check_op(torch.ops.kunlun.rotary_embedding.default, positions, q.view(4, 2, 16), None, 16, cache(8, 16), False)
    qkv = torch.randn(4, 5 * 16).to(dtype)
    weight = torch.rand(16).to(dtype)
    check_op(torch.ops.kunlun.split_norm_rope.default, qkv, weight, weight.clone(), cache(8, 16), positions, 3, 1, 16)


def test_positions_outside_the_cache():
    q = torch.randn(2, 16, device="kunlun")
    ops.rotary_embedding(torch.tensor([0, 8], device="kunlun"), q, None, 16, cache(8, 16).to("kunlun"))
    with pytest.raises(IndexError, match=r"position 8 is out of the range of a cos_sin_cache of 8 positions"):
        torch.kunlun.synchronize()


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    q = torch.randn(4, 32, device=device)
    positions = torch.zeros(4, dtype=torch.long, device=device)
    table = torch.randn(8, 16, device=device)
    with pytest.raises(RuntimeError, match=r"query must have shape \[3, 32\], got \[4, 32\]"):
        ops.rotary_embedding(positions[:3], q, None, 16, table)
    with pytest.raises(RuntimeError, match="positions must be int32 or int64, got Float"):
        ops.rotary_embedding(positions.float(), q, None, 16, table)
    with pytest.raises(RuntimeError, match="does not hold whole heads of head_size 24"):
        ops.rotary_embedding(positions, q, None, 24, table)
    with pytest.raises(RuntimeError, match=r"rows of an even size of at most head_size \(8\), got 16"):
        ops.rotary_embedding(positions, q, None, 8, table)
    with pytest.raises(RuntimeError, match="key must be Float, got Half"):
        ops.rotary_embedding(positions, q, q.half(), 16, table)
    with pytest.raises(RuntimeError, match="qkv must have size 64 in dimension 1"):
        ops.split_norm_rope(q, None, None, table, positions, 2, 1, 16)
    with pytest.raises(RuntimeError, match="q_weight and k_weight must both be given or both be absent"):
        ops.split_norm_rope(torch.randn(4, 64, device=device), table[0], None, table, positions, 2, 1, 16)
