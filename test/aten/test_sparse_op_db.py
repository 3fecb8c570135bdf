"""torch's operator test-bed with sparse inputs: what runs on the CPU gives the same on kunlun, in every layout."""

from __future__ import annotations

import unittest

import pytest
import torch
from common_op_db import name_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_map

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
RANDOM = {"rand_like", "randn_like", "randint_like", "empty_like", "normal"}
OPS = [
    op
    for op in op_db
    if op.supports_dtype(torch.float32, "cpu")
    and op.name not in RANDOM
    and any(op.supports_sparse_layout(layout) for layout in LAYOUTS)
]
SAMPLES = 25


def move(value):
    def one(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("kunlun")
        return "kunlun" if isinstance(leaf, torch.device) or leaf == "cpu" else leaf

    return tree_map(one, value)


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a sparse one is made of."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def samples(op, layout):
    """torch's own sparse samples, or one of ours for the operators of one tensor, for which it has none."""
    try:
        yield from op.sample_inputs_sparse(layout, "cpu", torch.float32)
    except (NotImplementedError, unittest.SkipTest):
        values = torch.tensor([[0, 0.25, 0, 0.75, 0, 0], [-0.5, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, -1.0], [0] * 6])
        block = {"blocksize": (2, 3)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
        yield SampleInput(values.to_sparse(layout=layout, **block))
        if layout is torch.sparse_coo:
            twice = torch.tensor([[0, 0, 2], [1, 1, 3]])
            yield SampleInput(torch.sparse_coo_tensor(twice, torch.tensor([0.5, 0.25, -0.5]), (3, 4)))


def check(op, layout) -> int:
    compared = 0
    for number, sample in enumerate(samples(op, layout)):
        if number == SAMPLES:
            break
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # whatever the CPU refuses is not compared
            continue
        actual = op(move(sample.input), *move(sample.args), **move(sample.kwargs))
        compared += 1
        if not isinstance(expected, torch.Tensor):
            assert expected == actual
            continue
        assert actual.device.type == "kunlun"
        assert (actual.layout, actual.shape, actual.dtype) == (expected.layout, expected.shape, expected.dtype)
        for want, got in zip(parts(expected), parts(actual), strict=True):
            assert got.device.type == "kunlun"
            torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)
        if expected.layout is torch.sparse_coo:
            assert actual.is_coalesced() == expected.is_coalesced()
    return compared


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_equals_cpu(op):
    assert sum(check(op, layout) for layout in LAYOUTS if op.supports_sparse_layout(layout)) > 0
