"""silu_and_mul, swiglu, swigluoai_and_mul and quick_gelu."""

import pytest
import torch
from common_fused import TOLERANCE, check, check_op

from torch_xpu_kunlun import ops
from torch_xpu_kunlun.ops import reference

SHAPES = [(2,), (14,), (3, 66), (8, 3072), (2, 3, 100), (0, 16), (5, 0), (40, 2048)]
NAMES = ["silu_and_mul", "swiglu", "swigluoai_and_mul", "quick_gelu"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(name, dtype, shape):
    check(name, dtype, (4 * torch.randn(shape)).to(dtype))


def test_swiglu_of_two_tensors(dtype):
    for shape in SHAPES:
        x, y = torch.randn(2, *shape).to(dtype)
        check("swiglu", dtype, x, y)
    both = torch.randn(4, 70).to(dtype)
    check("swiglu", dtype, both[:, :35], both[:, 35:])


def test_limits_of_the_clamped_gate(dtype):
    check("swigluoai_and_mul", dtype, (20 * torch.randn(9, 38)).to(dtype))
    check("swigluoai_and_mul", dtype, torch.randn(9, 38).to(dtype), alpha=0.5, limit=0.25)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_values(name):
    x = torch.tensor([-torch.inf, torch.inf, torch.nan, -100.0, 100.0, -1e30, 1e30, 0.0] * 4)
    expected = getattr(reference, name)(x)
    torch.testing.assert_close(getattr(ops, name)(x.to("kunlun")).cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_any_strides(name, dtype):
    wide = torch.randn(6, 5, 48).to(dtype)
    for x in (wide[..., :24], wide[..., ::2], wide[::2, 1:3, :24], wide.transpose(0, 1), wide.transpose(0, 2)[..., :4]):
        check(name, dtype, x)


@pytest.mark.parametrize("name", ["silu_and_mul", "quick_gelu"])
def test_results_go_where_out_says(name, dtype):
    x = torch.randn(4, 20).to(dtype)
    expected = getattr(reference, name)(x)
    target = torch.zeros(4, 50, dtype=dtype, device="kunlun")
    out = target[:, : expected.shape[1]]
    assert getattr(ops, name)(x.to("kunlun"), out=out) is out
    torch.testing.assert_close(out.cpu(), expected, **TOLERANCE[dtype])
    assert not target[:, expected.shape[1] :].any()


def test_operator_check(dtype):
    x = torch.randn(6, 20).to(dtype)
    for name in NAMES:
        check_op(getattr(torch.ops.kunlun, name).default, x)
    check_op(torch.ops.kunlun.swiglu.default, x, x.flip(0))
    check_op(torch.ops.kunlun.silu_and_mul.out, x, out=torch.empty(6, 10, dtype=dtype))
    check_op(torch.ops.kunlun.quick_gelu.out, x, out=torch.empty_like(x))


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    x = torch.randn(3, 8, device=device)
    with pytest.raises(RuntimeError, match=r"the last dimension of x must be even, got shape \[3, 7\]"):
        ops.silu_and_mul(x[:, :7])
    with pytest.raises(RuntimeError, match="x must have at least one dimension"):
        ops.quick_gelu(x[0, 0])
    with pytest.raises(RuntimeError, match="x must be float32, float16 or bfloat16, got Int"):
        ops.swiglu(x.int())
    with pytest.raises(RuntimeError, match=r"y must have shape \[3, 8\], got \[3, 4\]"):
        ops.swiglu(x, x[:, :4])
    with pytest.raises(RuntimeError, match=r"out must have shape \[3, 4\], got \[3, 8\]"):
        ops.silu_and_mul(x, out=x)


def test_gradients_are_refused():
    x = torch.randn(3, 8, device="kunlun", requires_grad=True)
    for name in NAMES:
        with pytest.raises(NotImplementedError, match=f"kunlun::{name} is for inference and has no derivative"):
            getattr(ops, name)(x)
