"""torch's database of operators over lists of tensors: functional and in place, mixed, with gaps, empty, backward."""

from __future__ import annotations

import itertools

import torch
from common_op_checks import NothingToCheck, cases, check, map_tensors, tensors_of
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
)
from torch.testing._internal.opinfo.core import SampleInput

OPS = [
    *foreach_unary_op_db, *foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_reduce_op_db, *foreach_other_op_db
]  # fmt: skip
LENGTHS = {"num_input_tensors": [1, 5]}


def samples(op, dtype, gradient=False):
    options = {**LENGTHS, "requires_grad": gradient, "allow_higher_dtype_scalars": True}
    yield from op.sample_inputs("cpu", dtype, **options)
    yield from op.sample_inputs("cpu", dtype, noncontiguous=True, **options)
    yield from op.sample_inputs("cpu", dtype, same_size=True, **options)
    yield from op.sample_zero_size_inputs("cpu", dtype)
    if gradient:
        return
    # Lists whose tensors differ in dtype, which no fast path takes.
    other = torch.float64 if dtype is not torch.float64 else torch.float32
    for sample in op.sample_inputs("cpu", dtype, **LENGTHS):
        mixed = [tensor.to(other) if number % 2 else tensor for number, tensor in enumerate(sample.input)]
        yield SampleInput(mixed, args=sample.args, kwargs=sample.kwargs)


def both(op, side):
    """Results of the functional and of the in-place form, or their errors."""
    found = []
    for function in (op.method_variant, op.inplace_variant):
        if function is None:
            continue
        value, args, kwargs = side.inputs()
        got = side.attempt(function, value, *args, **kwargs)
        found.append((got, value))  # both forms: what became of the input
    return found


@cases("foreach", lambda op: op.dtypes, ops=OPS, quick=0.03)
def test_foreach(op, dtype, record_property):
    check("foreach", op, dtype, samples(op, dtype), both, record_property)


def backward(op, side):
    found = []
    for function in (op.method_variant, op.inplace_variant):
        value, args, kwargs = side.inputs()
        inputs = [t for t in tensors_of((value, args, kwargs)) if t.requires_grad]
        if function is None or not inputs:
            continue
        first = map_tensors(torch.clone, value)
        result = function(first, *args, **kwargs)
        outputs = [t for t in tensors_of(first if result is None else result) if t.requires_grad]
        if outputs:
            found.append(torch.autograd.grad(outputs, inputs, [side.draw(t) for t in outputs], allow_unused=True))
    if not found:
        raise NothingToCheck
    return found


GRADIENT_DTYPES = {torch.float32, torch.float64, torch.complex64, torch.complex128}


@cases("foreach: backward", lambda op: GRADIENT_DTYPES if op.supports_autograd else (), ops=OPS, quick=0.05)
def test_backward_of_foreach(op, dtype, record_property):
    found = itertools.islice(samples(op, dtype, gradient=True), 20)
    check("foreach: backward", op, dtype, found, backward, record_property)
