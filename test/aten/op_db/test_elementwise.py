"""torch's databases of unary and binary elementwise operators: extremal values, broadcasting, scalars, promotion."""

from __future__ import annotations

import torch
from common_op_checks import cases, check, cpu_dtypes, tensors_of
from torch.testing._internal.common_methods_invocations import binary_ufuncs, unary_ufuncs
from torch.testing._internal.opinfo import core

LARGEST = 1 << 17  # elements of a tensor; one size that all cores share is part of the float32 sweep

# Their kernel counts up from the value one by one, for minutes.
SLOW_WITH_LARGE_VALUES = {"polygamma", "special.polygamma", "special.zeta"}
LARGE_VALUES = {
    core.generate_elementwise_unary_large_value_tensors,
    core.generate_elementwise_binary_large_value_tensors,
}
UNARY = [
    core.generate_elementwise_unary_tensors,
    core.generate_elementwise_unary_small_value_tensors,
    core.generate_elementwise_unary_large_value_tensors,
    core.generate_elementwise_unary_extremal_value_tensors,
    core.generate_elementwise_unary_noncontiguous_tensors,
    core.generate_elementwise_unary_arbitrarily_strided_tensors,
]
BINARY = [
    core.generate_elementwise_binary_tensors,
    core.generate_elementwise_binary_small_value_tensors,
    core.generate_elementwise_binary_large_value_tensors,
    core.generate_elementwise_binary_extremal_value_tensors,
    core.generate_elementwise_binary_broadcasting_tensors,
    core.generate_elementwise_binary_with_scalar_samples,
    core.generate_elementwise_binary_with_scalar_and_type_promotion_samples,
    core.generate_elementwise_binary_noncontiguous_tensors,
    core.generate_elementwise_binary_arbitrarily_strided_tensors,
]


def samples(op, dtype, generators):
    """What the generators have for this dtype; some know no values of it and say so with ValueError."""
    for generator in generators:
        if generator in LARGE_VALUES and op.name in SLOW_WITH_LARGE_VALUES:
            continue
        try:
            for sample in generator(op, device="cpu", dtype=dtype, requires_grad=False):
                big = max((t.numel() for t in tensors_of((sample.input, sample.args))), default=0)
                if dtype is torch.float32 or big <= LARGEST:
                    yield sample
        except ValueError as error:
            if "Unsupported dtype" not in str(error):
                raise


def overlaps(value) -> bool:
    return isinstance(value, torch.Tensor) and torch._debug_has_internal_overlap(value) != 0


def forms(op, side):
    """The functional form and the in-place form, or the errors of those that the operator refuses.

    In place only where no two elements share memory: otherwise the order in which they are done shows.
    """
    found = []
    for function in (op, op.get_inplace()):
        value, args, kwargs = side.inputs()
        if function is None or (function is not op and overlaps(value)):
            continue
        found.append(side.attempt(function, value, *args, **kwargs))
    return found


@cases("unary", cpu_dtypes, ops=unary_ufuncs, quick=0.03)
def test_unary(op, dtype, record_property):
    check("unary", op, dtype, samples(op, dtype, UNARY), forms, record_property)


@cases("binary", cpu_dtypes, ops=binary_ufuncs, quick=0.03)
def test_binary(op, dtype, record_property):
    check("binary", op, dtype, samples(op, dtype, BINARY), forms, record_property)
