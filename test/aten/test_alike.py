# Operators that take the short way (csrc/aten/Alike.h) must answer as torch's meta functions say.
import pytest
import torch

import torch_xpu_kunlun
from tools.codegen.alike import BOOL, SAME, UNSTRUCTURED_BOOL, UNSTRUCTURED_SAME
from torch_xpu_kunlun.tiers import overload_named

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def arguments(op, dtype, device):
    """One of everything that the schema asks for; tensors are alike."""
    values = {"Tensor": torch.full((3, 4), 0.5, dtype=dtype, device=device), "number": 2, "str": "none", "int": 1}
    values |= {"float": 0.5, "Optional[number]": 2, "Optional[float]": None, "Optional[Tensor]": None, "bool": False}
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


OPERANDS = {
    "alike": lambda device: torch.linspace(0.2, 0.9, 12, device=device).view(3, 4),
    "with gaps": lambda device: torch.linspace(0.2, 0.9, 24, device=device).view(3, 8)[:, ::2],
    "of doubles": lambda device: torch.linspace(0.2, 0.9, 12, device=device, dtype=torch.float64).view(3, 4),
    "empty": lambda device: torch.empty(3, 0, device=device),
}


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("name", sorted(UNSTRUCTURED_SAME | UNSTRUCTURED_BOOL))
def test_without_a_meta_function_the_rest_is_boxed(name, operands):
    op = overload_named(f"aten::{name}")

    def run_on(device):
        make = OPERANDS[operands]
        given, named = arguments(op, torch.float32, device)
        values = [make(device) if isinstance(value, torch.Tensor) else value for value in given]
        named = {key: make(device) if isinstance(value, torch.Tensor) else value for key, value in named.items()}
        result = op(*values, **named)
        # Outputs and arguments in place are the caller's own tensor.
        outputs = [named[argument.name] for argument in op._schema.arguments if argument.is_out]
        in_place = values[:1] if name.partition(".")[0].endswith("_") else []
        mine = outputs or in_place
        assert not mine or result is mine[0]
        assert not result.is_inference()
        return result, values

    want, got = run_on("cpu"), run_on("kunlun")
    leaves = [torch.utils._pytree.tree_leaves(value) for value in (want, got)]
    for expected, actual in zip(*leaves, strict=True):
        if isinstance(expected, torch.Tensor):
            assert (actual.dtype, actual.shape, actual.stride()) == (expected.dtype, expected.shape, expected.stride())
            torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_outputs_that_overlap_an_operand_are_refused():
    x = torch.rand(9, device="kunlun")
    with pytest.raises(RuntimeError, match="memory location"):
        torch.abs(x[:8], out=x[1:])
    with pytest.raises(RuntimeError, match="memory location"):
        x[:8].floor_divide_(x[1:])
    torch.abs(x, out=x)  # all of it is no partial overlap


def test_whole_optimizer_steps_are_launched():
    parameters = [torch.rand(5, device="kunlun", requires_grad=True) for _ in range(3)]
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        optimizer = kind(parameters, lr=0.1, fused=True)
        sum(parameter.square().sum() for parameter in parameters).backward()
        optimizer.step()
        torch_xpu_kunlun.reset_operator_statistics()
        optimizer.step()
        statistics = torch_xpu_kunlun.operator_statistics()
        assert statistics["launcher"] > 0
        assert not any("fused" in name for name in [*statistics["boxed_ops"], *statistics["fallback_ops"]])


def test_ranges_and_identities_check_their_sizes():
    for refused in (lambda: torch.linspace(0, 1, -1, device="kunlun"), lambda: torch.eye(-1, device="kunlun")):
        with pytest.raises(RuntimeError, match=r"non-negative|greater or equal to 0"):
            refused()
    out = torch.empty(2, 3, device="kunlun")
    assert torch.linspace(0, 5, 6, out=out).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.logspace(0, 2, 3, out=out.resize_(3)).tolist() == [1, 10, 100]
    assert torch.eye(2, 3, out=out).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert torch.eye(0, device="kunlun").shape == (0, 0)
