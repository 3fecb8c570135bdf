# Python's shift operators: launchers, with the answers and the errors of the CPU.
import operator

import pytest
import torch

import torch_xpu_kunlun

OPERATORS = (operator.lshift, operator.rshift, operator.ilshift, operator.irshift)
COUNTS = (3, -1, 70, torch.tensor(2), torch.tensor([[0], [5]]))


def outcome(shift, x, count):
    """The dtype and numbers of a result, or the error."""
    try:
        result = shift(x.clone(), count)
        torch.kunlun.synchronize()
    except RuntimeError as error:
        return type(error), str(error).splitlines()[0].removesuffix(".")
    return result.dtype, result.tolist()


@pytest.mark.parametrize("shift", OPERATORS, ids=lambda shift: shift.__name__)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool], ids=str)
def test_shifts_are_those_of_the_cpu_by_launchers(shift, dtype):
    x = torch.tensor([[0, 1, 77], [200, -9, -128]]).to(dtype)
    torch_xpu_kunlun.reset_operator_statistics()
    for count in COUNTS:
        on_device = count.to("kunlun") if isinstance(count, torch.Tensor) and count.dim() else count
        assert outcome(shift, x.to("kunlun"), on_device) == outcome(shift, x, count)
    statistics = torch_xpu_kunlun.operator_statistics()
    assert statistics["launcher"] > 0
    assert statistics["boxed_ops"] == {}


@pytest.mark.parametrize("count", [1, 1.5])
@pytest.mark.parametrize("shift", OPERATORS[:2], ids=lambda shift: shift.__name__)
def test_numbers_with_a_fraction_are_refused(shift, count):
    x = torch.ones(3, dtype=torch.float32 if count == 1 else torch.int64)
    with pytest.raises(NotImplementedError, match="shift_cpu\" not implemented for 'Float'"):
        shift(x, count)
    with pytest.raises(NotImplementedError, match="shift_cpu\" not implemented for 'Float'"):
        shift(x.to("kunlun"), count).cpu()
