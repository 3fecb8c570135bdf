"""torch's operator test-bed, backward: gradients on kunlun are the CPU's."""

from __future__ import annotations

import pytest
import torch
from common_move import Mover
from common_op_db import CLOSE, OPS, move, name_of, uses_randomness
from torch.utils._pytree import tree_flatten

OPS = [op for op in OPS if op.supports_autograd]
# One in six in the quick run, all in the whole sweep.
QUICK = OPS[::6]
SAMPLES = 8


def tensors_of(value) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def differentiable(result) -> list[torch.Tensor]:
    return [t for t in tensors_of(result) if t.requires_grad and t.layout is torch.strided]


def gradients(op, value, args, kwargs, grads) -> list | None:
    """Gradients of all inputs that need one; None where nothing can be differentiated."""
    inputs = [t for t in tensors_of((value, args, kwargs)) if t.requires_grad and t.is_leaf]
    outputs = differentiable(op.gradcheck_wrapper(op, value, *args, **kwargs))
    if not outputs or not inputs:
        return None
    return torch.autograd.grad(outputs, inputs, [grads(output) for output in outputs], allow_unused=True)


class Gradients:
    """The same incoming gradients for the CPU and the device."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.made: list[torch.Tensor] = []

    def draw(self, output):
        made = torch.randn(output.shape, generator=self.generator, dtype=torch.float32).to(output.dtype)
        self.made.append(made)
        return made

    def replay(self):
        again = iter(self.made)
        return lambda output: next(again).to(output.device)


def difference(op, want, got) -> str | None:
    if (want is None) != (got is None):
        return f"{want} against {got}"
    if want is None:
        return None
    if got.device.type != "kunlun" or want.layout != got.layout:
        return f"{want.layout} on {want.device} against {got.layout} on {got.device}"
    tolerance = {} if op.name in CLOSE else {"rtol": 0, "atol": 0}
    try:
        torch.testing.assert_close(got.cpu(), want, equal_nan=True, **tolerance)
    except AssertionError as error:
        return str(error)
    return None


def check_gradients(op):
    compared = 0
    problems = []
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=True)):
        if number == SAMPLES:
            break
        if uses_randomness(op, sample):
            continue
        value, args, kwargs = move(op, sample)
        grads = Gradients()
        try:
            expected = gradients(op, sample.input, sample.args, sample.kwargs, grads.draw)
        except Exception:  # whatever the CPU refuses is not compared
            continue
        if expected is None:
            continue
        try:
            actual = gradients(op, value, args, kwargs, grads.replay())
            found = [difference(op, want, got) for want, got in zip(expected, actual, strict=True)]
        except Exception as error:  # reported below, with all other samples
            found = [f"{type(error).__name__}: {error}"]
        compared += 1
        problems += [f"sample {number}: {text}" for text in found if text]
    assert not problems, f"{len(problems)} differences in {compared} samples, the first:\n  " + "\n  ".join(
        problems[:3]
    )


@pytest.mark.parametrize("op", QUICK, ids=name_of)
def test_gradients_equal_the_cpus(op):
    check_gradients(op)


@pytest.mark.full
@pytest.mark.parametrize("op", [op for op in OPS if op not in QUICK], ids=name_of)
def test_gradients_equal_the_cpus_in_the_whole_sweep(op):
    check_gradients(op)


def test_the_comparison_can_fail():
    want = torch.ones(3)
    moved = Mover()(want.clone())
    assert difference(OPS[0], want, moved) is None
    moved[1] += 1e-6
    assert "not equal" in difference(OPS[0], want, moved)
    assert difference(OPS[0], want, None) is not None
