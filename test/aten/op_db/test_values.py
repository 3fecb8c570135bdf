"""Values, dtypes, shapes and strides of results: every sample that runs on the CPU gives the same on kunlun.

In every dtype that the CPU takes. The quick suite has all operators in float32, and some in each other dtype.
"""

from __future__ import annotations

import itertools

import common_op_checks
import pytest
import torch
from common_op_checks import cases, check, cpu_dtypes
from common_op_db import ALL_OPS

KIND = "values"
SAMPLES = 6  # of each operator, in a dtype other than float32, in the quick suite
QUICK = 0.08


def values(op, side):
    value, args, kwargs = side.inputs()
    return op(value, *args, **kwargs)


@cases(KIND, lambda op: cpu_dtypes(op) & {torch.float32}, quick=1)
def test_float32(op, dtype, record_property):
    check(KIND, op, dtype, op.sample_inputs("cpu", dtype), values, record_property)


@cases(KIND, lambda op: cpu_dtypes(op) - {torch.float32}, quick=QUICK)
def test_every_other_dtype(op, dtype, record_property):
    samples = itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES if common_op_checks.QUICK_ONLY else None)
    check(KIND, op, dtype, samples, values, record_property)


def test_the_comparison_can_fail(record_property):
    op = next(op for op in ALL_OPS if op.name == "add")
    samples = list(op.sample_inputs("cpu", torch.float32))

    def off_by_a_little(op, side):
        return values(op, side) + (1e-6 if side.device != "cpu" else 0)

    def of_another_stride(op, side):
        result = values(op, side)
        return result if side.device == "cpu" else torch.stack([result, result], -1)[..., 0]

    def refused_by_the_device(op, side):
        if side.device != "cpu":
            raise RuntimeError("not there")
        return values(op, side)

    check(KIND, op, torch.float32, samples, values, lambda *_: None)
    for action in (off_by_a_little, of_another_stride, refused_by_the_device):
        with pytest.raises(AssertionError, match="samples differ"):
            check(KIND, op, torch.float32, samples, action, lambda *_: None)
