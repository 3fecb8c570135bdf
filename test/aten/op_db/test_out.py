"""out=: tensors of the right size, of a wrong size, with gaps, of another dtype, that require gradients."""

from __future__ import annotations

import warnings

import torch
from common_op_checks import NothingToCheck, Refused, cases, check, cpu_dtypes, map_tensors, some, tensors_of

KIND = "out="


def right(like):
    return torch.empty_like(like).fill_(1)


def wrong_size(like):
    return torch.ones((*like.shape, 2), dtype=like.dtype, device=like.device)


def empty(like):
    return torch.empty(0, dtype=like.dtype, device=like.device)


def with_gaps(like):
    return torch.ones((*like.shape, 2), dtype=like.dtype, device=like.device)[..., 0]


def reversed_strides(like):
    order = list(range(like.dim()))[::-1]
    return torch.ones(like.shape[::-1], dtype=like.dtype, device=like.device).permute(order)


def other_float(like):
    return torch.ones(like.shape, dtype=torch.float64 if like.dtype != torch.float64 else torch.float32).to(like.device)


def integer(like):
    return torch.ones(like.shape, dtype=torch.int64 if like.dtype != torch.int64 else torch.uint8, device=like.device)


def with_gradient(like):
    return right(like).requires_grad_(like.dtype.is_floating_point or like.dtype.is_complex)


FORMS = [right, wrong_size, empty, with_gaps, reversed_strides, other_float, integer, with_gradient]


def out(op, side):
    """For each form of out=: it, whether it was returned, how many warnings of a new size there were.

    Or the type of the error: what it says may come from another step on the way to the same result.
    """
    value, args, kwargs = side.inputs()
    plain = op(value, *args, **kwargs)
    leaves = tensors_of(plain)
    if not leaves or not isinstance(plain, (torch.Tensor, tuple, list)) or "out" in kwargs:
        raise NothingToCheck
    if isinstance(plain, (tuple, list)) and len(leaves) != len(plain):
        raise NothingToCheck
    results = []
    for form in FORMS:
        value, args, kwargs = side.inputs()
        given = map_tensors(form, plain)
        if isinstance(given, tuple):  # a named tuple's own type is not taken
            given = tuple(given)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            returned = side.attempt(op, value, *args, **kwargs, out=given)
        if isinstance(returned, Refused):
            results.append(returned.error)
            continue
        identical = [a is b for a, b in zip(tensors_of(returned), tensors_of(given), strict=True)]
        resized = sum("was resized" in str(warning.message) for warning in caught)
        results.append((given, identical, resized))
    return results


@cases(KIND, lambda op: cpu_dtypes(op) if op.supports_out else (), quick=0.03)
def test_out(op, dtype, record_property):
    check(KIND, op, dtype, some(op.sample_inputs("cpu", dtype), dtype, 2, 6), out, record_property)
