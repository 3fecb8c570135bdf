# Operators that take the short way (csrc/aten/Alike.h) must answer as torch's meta functions say.
import pytest
import torch

from tools.codegen.alike import BOOL, SAME
from torch_xpu_kunlun.tiers import overload_named

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def arguments(op, dtype, device):
    """One of everything that the schema asks for; tensors are alike."""
    values = {"Tensor": torch.full((3, 4), 0.5, dtype=dtype, device=device), "number": 2, "str": "none", "int": 1}
    values |= {"float": 0.5, "Optional[number]": 2, "Optional[float]": None, "bool": False}
    given = [values[str(argument.type)] for argument in op._schema.arguments if not argument.kwarg_only]
    named = {argument.name: values[str(argument.type)] for argument in op._schema.arguments if argument.kwarg_only}
    return given, named


def run(op, dtype, device):
    given, named = arguments(op, dtype, device)
    return op(*given, **named)


@pytest.mark.parametrize("name", sorted(SAME | BOOL))
def test_the_result_is_what_the_meta_function_says(name):
    op = overload_named(f"aten::{name}")
    for dtype in DTYPES:
        expected, actual = run(op, dtype, "meta"), run(op, dtype, "kunlun")
        assert (actual.dtype, actual.shape, actual.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert actual.dtype == (torch.bool if name in BOOL else dtype)
        try:
            host = run(op, dtype, "cpu")
        except NotImplementedError as error:  # the CPU has no kernel for this dtype, so neither has the chip
            with pytest.raises(type(error), match="not implemented for"):
                torch.kunlun.synchronize()
        else:
            torch.testing.assert_close(actual.cpu(), host, rtol=0, atol=0, equal_nan=True)


def test_numbers_of_another_kind_take_the_long_way():
    x = torch.rand(8, device="kunlun")
    assert torch.pow(x, 2j).dtype == torch.complex64
    with pytest.raises(RuntimeError, match="Boolean alpha only supported for Boolean results"):
        torch.add(x, x, alpha=True)
    assert torch.add(x, torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float32
    assert torch.equal(torch.eq(x, True).cpu(), torch.eq(x.cpu(), True))
    assert torch.add(x, x[:1]).shape == (8,)
    assert torch.hypot(x, x.double()).dtype == torch.float64
