"""torch's operator test-bed with sparse inputs: what runs on the CPU gives the same on kunlun, in every layout."""

from __future__ import annotations

import itertools
import unittest

import pytest
import torch
from common_op_checks import cases, check
from common_op_db import ALL_OPS
from torch.testing._internal.opinfo.core import SampleInput

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
RANDOM = {"rand_like", "randn_like", "randint_like", "empty_like", "normal"}
DTYPES = {torch.float32, torch.float64, torch.complex64, torch.int64}
OPS = [
    op
    for op in ALL_OPS
    if op.name not in RANDOM and any(op.supports_sparse_layout(layout) for layout in LAYOUTS)
]  # fmt: skip
SAMPLES = 25  # of each layout


def samples_in(op, layout, dtype):
    """torch's own sparse samples, or one of ours for the operators of one tensor, for which it has none."""
    try:
        yield from op.sample_inputs_sparse(layout, "cpu", dtype)
    except (NotImplementedError, unittest.SkipTest):
        values = torch.tensor([[0, 0.25, 0, 0.75, 0, 0], [-0.5, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, -1.0], [0] * 6])
        values = values.mul(4).to(dtype) if not dtype.is_floating_point else values.to(dtype)
        block = {"blocksize": (2, 3)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
        yield SampleInput(values.to_sparse(layout=layout, **block))
        if layout is torch.sparse_coo:
            twice = torch.tensor([[0, 0, 2], [1, 1, 3]])
            yield SampleInput(torch.sparse_coo_tensor(twice, torch.tensor([2, 1, -2]).to(dtype), (3, 4)))


def samples(op, dtype):
    for layout in LAYOUTS:
        if op.supports_sparse_layout(layout):
            yield from itertools.islice(samples_in(op, layout, dtype), SAMPLES)


def values(op, side):
    value, args, kwargs = side.inputs()
    return op(value, *args, **kwargs)


@pytest.mark.filterwarnings("ignore")
@cases("sparse layouts", lambda op: DTYPES & set(op.dtypes), ops=OPS, quick=0.15)
def test_sparse_layouts(op, dtype, record_property):
    check("sparse layouts", op, dtype, samples(op, dtype), values, record_property)
