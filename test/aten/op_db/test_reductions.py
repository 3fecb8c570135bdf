"""torch's database of reductions: every form of `dim`, empty tensors, extremal values, strides."""

from __future__ import annotations

import torch
from common_op_checks import cases, check, cpu_dtypes
from torch.testing import make_tensor
from torch.testing._internal.common_methods_invocations import reduction_ops
from torch.testing._internal.opinfo.core import SampleInput

DIMS = [None, 0, -1, 1, (), (0,), (0, -1), (-1, 0, 1), (0, 0), 7, -7, [0, 1]]


def tensors(dtype):
    for shape in [(), (1,), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4)]:
        yield make_tensor(shape, dtype=dtype, device="cpu")
    yield make_tensor((4, 3), dtype=dtype, device="cpu").T
    yield make_tensor((4, 6), dtype=dtype, device="cpu")[:, ::2]
    yield make_tensor((3, 1), dtype=dtype, device="cpu").expand(3, 5)
    yield make_tensor((1, 2, 3, 2, 2), dtype=dtype, device="cpu").permute(0, 2, 3, 4, 1)
    if dtype.is_floating_point or dtype.is_complex:
        for value in (float("nan"), float("inf"), -float("inf")):
            tensor = make_tensor((3, 4), dtype=dtype, device="cpu")
            tensor[1, 2] = value
            yield tensor
        yield torch.full((2, 3), float("nan"), dtype=dtype)


def options():
    yield {}
    for dim in DIMS:
        yield {"dim": dim}
        yield {"dim": dim, "keepdim": True}


def samples(op, dtype):
    for tensor in tensors(dtype):
        for option in options():
            try:
                args, kwargs = next(iter(op.generate_args_kwargs(tensor, **option)))
            except (IndexError, StopIteration, TypeError):  # it makes none for this form of dim
                args, kwargs = (), {}
            yield SampleInput(tensor, args=tuple(args), kwargs={**kwargs, **option})
            if option.get("dim") == 0:
                yield SampleInput(tensor, args=tuple(args), kwargs={**kwargs, **option, "dtype": torch.float64})


def reduced(op, side):
    """The result, or the error: an empty tensor has no maximum, and there is no dimension 7."""
    value, args, kwargs = side.inputs()
    return side.attempt(op, value, *args, **kwargs)


@cases("reductions", cpu_dtypes, ops=reduction_ops, quick=0.05)
def test_reductions(op, dtype, record_property):
    check("reductions", op, dtype, samples(op, dtype), reduced, record_property)
