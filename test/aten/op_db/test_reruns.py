"""Under torch.use_deterministic_algorithms a second run gives the first one's bits, and both give the CPU's."""

from __future__ import annotations

import pytest
import torch
from common_op_checks import cases, check, cpu_dtypes, map_tensors, some
from common_op_db import same, tolerance_of, uses_randomness


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def twice(op, side):
    first, second = (side.attempt(call, op, side) for _ in range(2))
    if not uses_randomness(op, side.sample):
        difference = same(*map_tensors(torch.Tensor.cpu, (first, second)), values=True, tolerance=tolerance_of(op))
        if difference:
            raise RuntimeError(f"the second run differs: {difference}")
    return first


def call(op, side):
    value, args, kwargs = side.inputs()
    return op(value, *args, **kwargs)


@cases("reruns", cpu_dtypes, quick=0.02)
@pytest.mark.usefixtures("deterministic")
def test_reruns(op, dtype, record_property):
    check("reruns", op, dtype, some(op.sample_inputs("cpu", dtype), dtype, 2, 6), twice, record_property)
