"""What an operator refuses: torch's own wrong inputs, and dtypes that the CPU has no kernel for."""

from __future__ import annotations

import re

import common_move
import pytest
import torch
from common_op_checks import cases, check, record, some, synchronize
from common_op_db import ALL_OPS, NO_VALUES
from torch.testing._internal.common_dtype import all_types_and_complex_and, float8_types

WITH_ERRORS = [op for op in ALL_OPS if op.error_inputs_func is not None]


def refused(op, side):
    value, args, kwargs = side.inputs()
    return side.attempt(op, value, *args, **kwargs)


@cases("error inputs", lambda op: [torch.float32], ops=WITH_ERRORS, quick=0.25)
def test_the_same_error_as_on_the_cpu(op, dtype, record_property):
    samples = [error.sample_input for error in op.error_inputs("cpu")]
    check("error inputs", op, dtype, samples, refused, record_property)


@cases("error inputs made for a device", lambda op: [torch.float32], ops=WITH_ERRORS, quick=0.1)
def test_errors_of_a_device(op, dtype, record_property):
    """torch gives some wrong inputs to devices only, such as tensors on two of them."""
    record(record_property, "error inputs made for a device", op, dtype)
    errors = list(op.error_inputs(torch.device(common_move.DEVICE)))
    wrong = 0
    for error in errors:
        sample = error.sample_input
        with pytest.raises(error.error_type) as caught:
            op(sample.input, *sample.args, **sample.kwargs)
            synchronize()
        wrong += re.search(error.error_regex, str(caught.value)) is None
    record_property("compared", len(errors))
    assert not wrong


DTYPES = all_types_and_complex_and(
    torch.bool, torch.half, torch.bfloat16, torch.complex32, torch.uint16, torch.uint32, torch.uint64, *float8_types()
)


# Random numbers are drawn by kernels of the device's own, some of which take more dtypes.
WITH_VALUES = [op for op in ALL_OPS if op.name not in NO_VALUES]


def supported(op, side):
    """The result or the error."""
    value, args, kwargs = side.inputs()
    return side.attempt(op, value, *args, **kwargs)


@cases("dtypes the CPU lacks", lambda op: set(DTYPES) - set(op.dtypes), ops=WITH_VALUES, quick=0.01)
def test_dtypes(op, dtype, record_property):
    def samples():
        try:
            yield from some(op.sample_inputs("cpu", dtype), dtype, 3, 3)
        except Exception:  # torch cannot even make a sample in this dtype
            return

    check("dtypes the CPU lacks", op, dtype, samples(), supported, record_property)
