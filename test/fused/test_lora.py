"""bgmv_shrink and bgmv_expand."""

import pytest
import torch
from common_fused import check, check_op, to_device

from torch_xpu_kunlun import ops

# Long sums in another order than the reference's.
SUMS = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (9, 3, 8, 100), (70, 2, 16, 576), (0, 2, 8, 16)], ids=str)
def test_shrink_and_expand(dtype, sizes):
    tokens, adapters, rank, width = sizes
    x = torch.randn(tokens, width).to(dtype)
    a, b = torch.randn(2, adapters, rank, width).to(dtype) / width**0.5
    y = torch.randn(tokens, rank)
    out = torch.randn(tokens, width + 5).to(dtype)
    for indices in (
        torch.randint(-1, adapters, (tokens,)),
        torch.zeros(tokens, dtype=torch.int),
        torch.full((tokens,), -1),
    ):
        check("bgmv_shrink", dtype, x, a, indices, 0.5, tolerance=SUMS[dtype])
        weights = b.transpose(1, 2).contiguous()
        check("bgmv_expand", dtype, y, weights, out.clone(), indices, 3, tolerance=SUMS[dtype])
        check("bgmv_expand", dtype, y, weights, out.clone(), indices, 0, False, tolerance=SUMS[dtype])


def test_parts_of_other_tensors(dtype):
    indices = torch.tensor([1, 1, 0, -1, 2, 2, 2])
    a = torch.randn(3, 20, 90).to(dtype)[:, ::2, 10:50]
    check("bgmv_shrink", dtype, torch.randn(7, 80).to(dtype)[:, ::2], a, indices, tolerance=SUMS[dtype])
    b = torch.randn(3, 60, 20).to(dtype)[:, ::2, :10]
    out = torch.randn(7, 100).to(dtype)[:, 20:60]
    check("bgmv_expand", dtype, torch.randn(10, 7).t(), b, out, indices, 10, tolerance=SUMS[dtype])


def test_operator_check(dtype):
    x, a, b = torch.randn(5, 12).to(dtype), torch.randn(2, 4, 12).to(dtype), torch.randn(2, 12, 4).to(dtype)
    indices = torch.tensor([0, 1, -1, 1, 0])
    check_op(torch.ops.kunlun.bgmv_shrink.default, x, a, indices)
    check_op(torch.ops.kunlun.bgmv_expand.default, torch.randn(5, 4), b, torch.randn(5, 14).to(dtype), indices, 2)


def test_adapters_out_of_range():
    x, a = to_device((torch.randn(2, 4), torch.randn(3, 6, 4)))
    ops.bgmv_shrink(x, a, torch.tensor([0, 3], device="kunlun"))
    with pytest.raises(IndexError, match=r"bgmv_shrink: adapter 3 of token 1 is out of the range of 3 adapters"):
        torch.kunlun.synchronize()


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    x, a = torch.randn(4, 8, device=device), torch.randn(3, 2, 8, device=device)
    indices = torch.zeros(4, dtype=torch.long, device=device)
    with pytest.raises(RuntimeError, match="weights must have size 8 in dimension 2"):
        ops.bgmv_shrink(x, a[..., :4], indices)
    with pytest.raises(RuntimeError, match=r"indices must have shape \[4\], got \[3\]"):
        ops.bgmv_shrink(x, a, indices[:3])
    b = torch.randn(3, 8, 2, device=device)
    with pytest.raises(RuntimeError, match="8 columns from offset 1 on do not fit into out, which has 8"):
        ops.bgmv_expand(x[:, :2], b, x.clone(), indices, 1)
    with pytest.raises(RuntimeError, match="y must be Float, got Half"):
        ops.bgmv_expand(x[:, :2].half(), b, x.clone(), indices)
