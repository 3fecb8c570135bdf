"""moe_softmax_topk, moe_softmax_topk_norm, moe_sigmoid_group_topk_norm, moe_fc and moe_ffn_block."""

import pytest
import torch
from common_fused import check, check_op, to_device

from torch_xpu_kunlun import ops

WEIGHTS = {"rtol": 1e-5, "atol": 1e-6}
# Long sums in another order than the reference's.
SUMS = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


@pytest.mark.parametrize("name", ["moe_softmax_topk", "moe_softmax_topk_norm"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 8, 2), (40, 60, 6), (3, 256, 8), (0, 8, 2), (9, 7, 7)], ids=str)
def test_softmax_routing(dtype, name, shape):
    tokens, experts, k = shape
    check(name, dtype, torch.randn(tokens, experts).to(dtype), k, tolerance=WEIGHTS)


@pytest.mark.parametrize("name", ["moe_softmax_topk", "moe_softmax_topk_norm"])
def test_of_equal_experts_the_first(name):
    check(
        name, torch.float32, torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0] * 5, [-torch.inf, 1, 1, -torch.inf, 3]]), 3
    )


@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (8, 3), (16, 16)], ids=str)
def test_group_routing(dtype, groups):
    logits = torch.randn(33, 64).to(dtype)
    name = "moe_sigmoid_group_topk_norm"
    check(name, dtype, logits, None, 6, *groups, tolerance=WEIGHTS)
    check(name, dtype, logits, torch.randn(64), 6, *groups, 2.5, tolerance=WEIGHTS)
    check(name, dtype, logits[:0], torch.randn(64), 6, *groups, tolerance=WEIGHTS)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (5, 4, 2, 33, 70), (40, 8, 3, 64, 100), (0, 4, 2, 8, 8)], ids=str)
def test_experts(dtype, sizes):
    tokens, experts, k, inner, hidden = sizes
    x = torch.randn(tokens, hidden).to(dtype)
    w13 = (torch.randn(experts, 2 * inner, hidden) / hidden**0.5).to(dtype)
    w2 = (torch.randn(experts, hidden, inner) / inner**0.5).to(dtype)
    ids = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)]) if tokens else torch.zeros(0, k).long()
    weights = torch.rand(tokens, k)
    check("moe_fc", dtype, x, w13, ids, tolerance=SUMS[dtype])
    check("moe_fc", dtype, torch.randn(tokens, k, inner).to(dtype), w2, ids.int(), tolerance=SUMS[dtype])
    check("moe_ffn_block", dtype, x, w13, w2, weights, ids.int(), tolerance=SUMS[dtype])
    if tokens:
        # Experts of other devices, and experts without tokens.
        check("moe_fc", dtype, x, w13, ids.masked_fill(ids == 0, -1), tolerance=SUMS[dtype])
        check("moe_ffn_block", dtype, x, w13, w2, weights, torch.full_like(ids, -1), tolerance=SUMS[dtype])
        check("moe_ffn_block", dtype, x, w13, w2, weights, torch.zeros_like(ids), tolerance=SUMS[dtype])


def test_parts_of_other_tensors(dtype):
    x = torch.randn(6, 80).to(dtype)
    w13 = torch.randn(3, 100, 90).to(dtype)[:, 10:34, :40] / 8
    w2 = torch.randn(3, 60, 20).to(dtype)[:, ::2][:, :30, 4:16] / 8
    ids = torch.randint(0, 3, (6, 2))
    check("moe_fc", dtype, x[:, ::2], w13, ids, tolerance=SUMS[dtype])
    check("moe_ffn_block", dtype, x[:, 20:50], w13[..., :30], w2, torch.rand(2, 6).t(), ids, tolerance=SUMS[dtype])


def test_operator_check(dtype):
    logits = torch.randn(5, 8).to(dtype)
    check_op(torch.ops.kunlun.moe_softmax_topk.default, logits, 2)
    check_op(torch.ops.kunlun.moe_softmax_topk_norm.default, logits, 2)
    check_op(torch.ops.kunlun.moe_sigmoid_group_topk_norm.default, logits, torch.randn(8), 2, 4, 2)
    x, w13, w2 = torch.randn(5, 12).to(dtype), torch.randn(8, 20, 12).to(dtype), torch.randn(8, 12, 10).to(dtype)
    ids = torch.randint(0, 8, (5, 2))
    check_op(torch.ops.kunlun.moe_fc.default, x, w13, ids)
    check_op(torch.ops.kunlun.moe_ffn_block.default, x, w13, w2, torch.rand(5, 2), ids)


def test_experts_out_of_range():
    x, weight = to_device((torch.randn(2, 4), torch.randn(3, 6, 4)))
    for ids in ([[0], [3]], [[0], [-2]]):
        ops.moe_fc(x, weight, torch.tensor(ids, device="kunlun"))
        with pytest.raises(IndexError, match=r"moe_fc: expert (3|-2) of token 1 is out of the range of 3 experts"):
            torch.kunlun.synchronize()


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    logits = torch.randn(4, 8, device=device)
    for k in (0, 9):
        with pytest.raises(RuntimeError, match=rf"k must be from 1 to the number of experts \(8\), got {k}"):
            ops.moe_softmax_topk(logits, k)
    with pytest.raises(RuntimeError, match=r"n_group \(3\) must divide the number of experts \(8\)"):
        ops.moe_sigmoid_group_topk_norm(logits, None, 2, 3, 1)
    with pytest.raises(RuntimeError, match=r"its groups must hold k \(4\) experts, got 1"):
        ops.moe_sigmoid_group_topk_norm(logits, None, 4, 4, 1)
    ids = torch.zeros(4, 2, dtype=torch.int, device=device)
    w13, w2 = torch.randn(3, 10, 8, device=device), torch.randn(3, 8, 5, device=device)
    with pytest.raises(RuntimeError, match="weight must have size 8 in dimension 2"):
        ops.moe_fc(logits, w2, ids)
    with pytest.raises(RuntimeError, match="w13 must have size 8 in dimension 1"):
        ops.moe_ffn_block(logits, w13, w2[..., :4], torch.rand(4, 2, device=device), ids)
    with pytest.raises(RuntimeError, match="weights must be Float, got Double"):
        ops.moe_ffn_block(logits, w13, w2, torch.rand(4, 2, device=device).double(), ids)
    with pytest.raises(RuntimeError, match="ids must be int32 or int64, got Float"):
        ops.moe_fc(logits, w13, ids.float())
