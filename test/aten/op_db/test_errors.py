"""What an operator refuses: torch's own wrong inputs, and dtypes that the CPU has no kernel for."""

from __future__ import annotations

import re

import common_move
import torch
from common_op_checks import Refused, cases, check, comparable, record, some, synchronize
from common_op_db import ALL_OPS, NO_VALUES, describe
from torch.testing._internal.common_dtype import all_types_and_complex_and, float8_types

WITH_ERRORS = [op for op in ALL_OPS if op.error_inputs_func is not None]


def refused(op, side):
    value, args, kwargs = side.inputs()
    return side.attempt(op, value, *args, **kwargs)


@cases("error inputs", lambda op: [torch.float32], ops=WITH_ERRORS, quick=0.25)
def test_the_same_error_as_on_the_cpu(op, dtype, record_property):
    samples = [error.sample_input for error in op.error_inputs("cpu")]
    check("error inputs", op, dtype, samples, refused, record_property)


def as_expected(error, found) -> bool:
    return isinstance(found, error.error_type) and re.search(error.error_regex, str(found)) is not None


def error_of(op, sample) -> Exception | None:
    try:
        op(sample.input, *sample.args, **sample.kwargs)
        synchronize()
    except Exception as error:
        return error
    return None


@cases("error inputs made for a device", lambda op: [torch.float32], ops=WITH_ERRORS, quick=0.1)
def test_errors_of_a_device(op, dtype, record_property):
    """torch gives some wrong inputs to devices only, such as tensors on two of them, or expects another error there.

    What the device does not refuse as torch expects, it must treat as the CPU does.
    """
    record(record_property, "error inputs made for a device", op, dtype)
    errors = list(op.error_inputs(common_move.DEVICE))
    wrong = []
    for error in errors:
        sample = error.sample_input
        found = error_of(op, sample)
        if as_expected(error, found):
            continue
        on_cpu = error_of(op, sample.transform(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf))
        if type(found) is not type(on_cpu) or comparable(str(found)) != comparable(str(on_cpu)):
            wrong.append(f"{describe(sample)}: {found!r}; on the CPU {on_cpu!r}; expected: {error.error_regex}")
    record_property("compared", len(errors))
    assert not wrong, "\n".join(wrong)


DTYPES = all_types_and_complex_and(
    torch.bool, torch.half, torch.bfloat16, torch.complex32, torch.uint16, torch.uint32, torch.uint64, *float8_types()
)


# Random numbers are drawn by kernels of the device's own, some of which take more dtypes.
WITH_VALUES = [op for op in ALL_OPS if op.name not in NO_VALUES]


def supported(op, side):
    """The result or the type of the error: what it says depends on the step that meets the dtype first."""
    result = refused(op, side)
    return result.error if isinstance(result, Refused) else result


@cases("dtypes the CPU lacks", lambda op: set(DTYPES) - set(op.dtypes), ops=WITH_VALUES, quick=0.01)
def test_dtypes(op, dtype, record_property):
    def samples():
        try:
            yield from some(op.sample_inputs("cpu", dtype), dtype, 3, 3)
        except Exception:  # torch cannot even make a sample in this dtype
            return

    check("dtypes the CPU lacks", op, dtype, samples(), supported, record_property)
