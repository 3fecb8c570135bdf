"""torch's operator test-bed in every other dtype that the CPU takes: samples that run there give the same on kunlun.

float32 is test_op_db.py. The quick suite takes some operators of each dtype, the whole sweep all of them. What does not
pass is in op_db_skips.txt, a line for each case with reason and link; a line whose case passes fails the suite.
"""

from __future__ import annotations

import collections
import itertools

import pytest
import torch
from common_op_db import ALL_OPS, compare_with_cpu, known_failures, name_of, record

SAMPLES = 6  # of each operator in the quick suite


def dtypes_of(op) -> list[torch.dtype]:
    return sorted((dtype for dtype in op.dtypes if dtype is not torch.float32), key=str)


CASES = [(op, dtype) for op in ALL_OPS for dtype in dtypes_of(op)]


def stratified(cases, share: int = 40) -> list:
    """About `share` cases of each dtype, spread over the operators; all where there are fewer."""
    by_dtype = collections.defaultdict(list)
    for case in cases:
        by_dtype[case[1]].append(case)
    # Each dtype begins at another operator, so that together they meet more of them.
    return [
        case
        for number, chosen in enumerate(by_dtype.values())
        for case in chosen[number % max(1, len(chosen) // share) :: max(1, len(chosen) // share)]
    ]


QUICK = stratified(CASES)
SKIPS = known_failures("op_db_skips.txt")


def parameters(cases):
    for op, dtype in cases:
        name = f"{name_of(op)}-{str(dtype).removeprefix('torch.')}"
        marks = [pytest.mark.xfail(strict=True, reason=SKIPS[name])] if name in SKIPS else []
        yield pytest.param(op, dtype, id=name, marks=marks)


@pytest.mark.parametrize(("op", "dtype"), parameters(QUICK))
def test_equals_cpu(op, dtype, record_property):
    record(record_property, op, dtype)
    compare_with_cpu(op, itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES))


@pytest.mark.full
@pytest.mark.parametrize(("op", "dtype"), parameters(CASES))
def test_every_sample_equals_cpu(op, dtype, record_property):
    record(record_property, op, dtype)
    compare_with_cpu(op, op.sample_inputs("cpu", dtype))


def test_every_dtype_has_its_share_of_the_quick_suite():
    assert {dtype for _, dtype in QUICK} == {dtype for _, dtype in CASES}
    assert len({name_of(op) for op, _ in QUICK}) > len(ALL_OPS) // 2


def test_every_skipped_case_exists():
    names = {f"{name_of(op)}-{str(dtype).removeprefix('torch.')}" for op, dtype in CASES}
    assert SKIPS.keys() <= names
