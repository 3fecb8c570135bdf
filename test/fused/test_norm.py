"""rmsnorm and add_rmsnorm."""

import pytest
import torch
from common_fused import TOLERANCE, check, check_op

from torch_xpu_kunlun import ops
from torch_xpu_kunlun.ops import reference

SHAPES = [(1,), (7,), (3, 33), (8, 576), (2, 3, 100), (0, 16), (5, 0), (130, 512)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rmsnorm(dtype, shape):
    check("rmsnorm", dtype, torch.randn(shape).to(dtype), torch.randn(shape[-1:]).to(dtype), 1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rmsnorm(dtype, shape):
    x, residual = torch.randn(2, *shape).to(dtype)
    weight = torch.randn(shape[-1:]).to(dtype)
    check("add_rmsnorm", dtype, x, residual, weight)
    check("add_rmsnorm_", dtype, x.clone(), residual.clone(), weight, 1e-3)


def test_weights_may_be_float32(dtype):
    check("rmsnorm", dtype, torch.randn(4, 40).to(dtype), torch.randn(40))
    check("add_rmsnorm", dtype, torch.randn(4, 40).to(dtype), torch.randn(4, 40).to(dtype), torch.randn(40))


def test_inputs_of_any_strides(dtype):
    weight = torch.randn(24).to(dtype)
    wide = torch.randn(6, 5, 48).to(dtype)
    for x in (wide[..., :24], wide[..., ::2], wide[::2, 1:3, :24], wide.transpose(0, 1)[..., 24:], wide[:1, :, :24]):
        check("rmsnorm", dtype, x, weight)
        check("add_rmsnorm", dtype, x, x.flip(0), weight)
    row = torch.randn(3, 24).to(dtype)
    for x in (row.expand(2, 3, 24), row.expand(2, 3, 24).transpose(0, 1), row[:1].expand(4, 24)):
        check("rmsnorm", dtype, x, weight)
    check("rmsnorm", dtype, torch.randn(24, 9).to(dtype).t(), weight)
    check("rmsnorm", dtype, torch.randn(4, 24).to(dtype), torch.randn(48).to(dtype)[::2])


def test_results_go_where_out_says(dtype):
    x = torch.randn(4, 20).to(dtype)
    weight = torch.randn(20).to(dtype)
    target = torch.zeros(4, 40, dtype=dtype, device="kunlun")
    out = target[:, :20]
    assert ops.rmsnorm(x.to("kunlun"), weight.to("kunlun"), out=out) is out
    torch.testing.assert_close(out.cpu(), reference.rmsnorm(x, weight), **TOLERANCE[dtype])
    assert not target[:, 20:].any()
    same = x.to("kunlun")
    ops.rmsnorm(same, weight.to("kunlun"), out=same)
    torch.testing.assert_close(same.cpu(), reference.rmsnorm(x, weight), **TOLERANCE[dtype])


def test_half_types_sum_in_float():
    x = torch.full((1, 4096), 300.0, dtype=torch.float16)  # the squares are beyond float16
    check("rmsnorm", torch.float16, x, torch.ones(4096, dtype=torch.float16))


def test_operator_check(dtype):
    x, residual = torch.randn(2, 6, 20).to(dtype)
    weight = torch.randn(20).to(dtype)
    check_op(torch.ops.kunlun.rmsnorm.default, x, weight, 1e-5)
    check_op(torch.ops.kunlun.rmsnorm.out, x, weight, 1e-5, out=torch.empty_like(x))
    check_op(torch.ops.kunlun.add_rmsnorm.default, x, residual, weight)
    check_op(torch.ops.kunlun.add_rmsnorm_.default, x, residual, weight)


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    x = torch.randn(3, 8, device=device)
    weight = torch.randn(8, device=device)
    with pytest.raises(RuntimeError, match=r"weight must have size 8 in dimension 0, got a tensor of shape \[7\]"):
        ops.rmsnorm(x, weight[:7])
    with pytest.raises(RuntimeError, match="x must be float32, float16 or bfloat16, got Double"):
        ops.rmsnorm(x.double(), weight.double())
    with pytest.raises(RuntimeError, match=r"weight must be float32 or of the same dtype as the input \(Float\)"):
        ops.rmsnorm(x, weight.half())
    with pytest.raises(RuntimeError, match=r"residual must have shape \[3, 8\], got \[2, 8\]"):
        ops.add_rmsnorm(x, x[:2], weight)
    with pytest.raises(RuntimeError, match="residual is written to and must be contiguous in its last dimension"):
        ops.add_rmsnorm_(x, torch.randn(8, 3, device=device).t(), weight)
    with pytest.raises(RuntimeError, match="out must be Float, got Half"):
        ops.rmsnorm(x, weight, out=torch.empty(3, 8, dtype=torch.half, device=device))


def test_tensors_of_two_devices():
    x = torch.randn(3, 8, device="kunlun:0")
    with pytest.raises(RuntimeError, match="found at least two devices, kunlun:0 and kunlun:1"):
        ops.rmsnorm(x, torch.randn(8, device="kunlun:1"))
    with pytest.raises(RuntimeError, match="found at least two devices, kunlun:0 and cpu"):
        ops.rmsnorm(x, torch.randn(8))
    with pytest.raises(NotImplementedError, match=r"'kunlun::rmsnorm' with arguments from the 'CPU' backend"):
        ops.rmsnorm(x.cpu(), torch.randn(8))
    y = ops.rmsnorm(torch.ones(3, 8, device="kunlun:1"), torch.ones(8, device="kunlun:1"))
    assert y.device == torch.device("kunlun:1")
    assert torch.kunlun.current_device() == 0
    torch.testing.assert_close(y.cpu(), torch.ones(3, 8))


def test_one_tensor_cannot_hold_both_results():
    x = torch.randn(3, 8, device="kunlun")
    with pytest.raises(RuntimeError, match="x and residual are one tensor"):
        ops.add_rmsnorm_(x, x, torch.ones(8, device="kunlun"))


def test_gradients_are_refused():
    x = torch.randn(3, 8, device="kunlun", requires_grad=True)
    weight = torch.ones(8, device="kunlun")
    with pytest.raises(NotImplementedError, match=r"kunlun::rmsnorm is for inference and has no derivative"):
        ops.rmsnorm(x, weight)
    with torch.no_grad():
        assert not ops.rmsnorm(x, weight).requires_grad
    with torch.inference_mode():
        ops.rmsnorm(x, weight)
    ops.rmsnorm(x.detach(), weight)


def test_saved_tensors_notice_the_write():
    x = torch.randn(3, 8, device="kunlun")
    factor = torch.randn(3, 8, device="kunlun", requires_grad=True)
    y = (factor * x).sum()
    ops.add_rmsnorm_(x, torch.ones_like(x), torch.ones(8, device="kunlun"))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
