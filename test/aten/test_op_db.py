"""torch's operator test-bed, float32: every sample that runs on the CPU gives the same on kunlun."""

from __future__ import annotations

import pytest
import torch
from common_op_db import CLOSE, OPS, describe, move, name_of, same, uses_randomness


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_equals_cpu(op):
    compared = 0
    problems = []
    for sample in op.sample_inputs("cpu", torch.float32):
        moved = move(op, sample)
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:  # whatever the CPU refuses is not compared
            cpu_error = error
            continue
        finally:
            text = describe(sample)
        try:
            actual = op(moved[0], *moved[1], **moved[2])
            torch.kunlun.synchronize()  # a non-blocking copy to the host may still be under way
            difference = same(expected, actual, not uses_randomness(op, sample), op.name not in CLOSE)
        except Exception as error:  # reported below, with all other samples
            difference = f"{type(error).__name__}: {error}"
        compared += 1
        if difference:
            problems.append(f"{text}\n    {difference}")
    assert compared > 0, f"no sample runs on the CPU: {cpu_error}"
    assert not problems, f"{len(problems)} of {compared} samples differ, the first:\n  " + "\n  ".join(problems[:3])
