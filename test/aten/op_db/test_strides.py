"""Inputs that are not contiguous, or have the conjugate or negative bit: results and gradients are the CPU's."""

from __future__ import annotations

import torch
from common_op_checks import cases, check, cpu_dtypes, map_tensors, some, tensors_of
from torch.testing._internal.opinfo.core import SampleInput


def values(op, side):
    value, args, kwargs = side.inputs()
    return op(value, *args, **kwargs)


def changed(function, sample) -> SampleInput:
    args, kwargs = map_tensors(function, (sample.args, sample.kwargs))
    return SampleInput(map_tensors(function, sample.input), args=tuple(args), kwargs=kwargs)


def reversed_strides(tensor):
    """Dense, with the first dimension as the innermost."""
    if tensor.layout is not torch.strided or tensor.dim() < 2:
        return tensor
    order = list(range(tensor.dim()))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def shifted(tensor):
    """Contiguous, but it begins in the middle of its storage."""
    if tensor.layout is not torch.strided:
        return tensor
    storage = torch.empty(tensor.numel() + 3, dtype=tensor.dtype)
    return storage[3:].view(tensor.shape).copy_(tensor.detach())


def noncontiguous(samples):
    for sample in samples:
        if any(tensor.layout is not torch.strided for tensor in tensors_of((sample.input, sample.args))):
            continue
        yield sample.noncontiguous()
        yield changed(reversed_strides, sample)
        yield changed(shifted, sample)


@cases("non-contiguous", cpu_dtypes, quick=0.02)
def test_noncontiguous(op, dtype, record_property):
    samples = noncontiguous(some(op.sample_inputs("cpu", dtype), dtype, 3, 12))
    check("non-contiguous", op, dtype, samples, values, record_property)


def conjugated(tensor):
    """The same values with the conjugate bit set."""
    if tensor.layout is not torch.strided or not tensor.dtype.is_complex:
        return tensor
    return torch.conj_physical(tensor.detach()).conj()


def negated(tensor):
    """The same values with the negative bit set."""
    if tensor.layout is not torch.strided or not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return tensor
    return torch._neg_view(torch.neg(tensor.detach()))


def with_bits(samples, dtype):
    for sample in samples:
        if dtype.is_complex:
            yield changed(conjugated, sample)
        if dtype == torch.complex32:
            continue  # with both bits, which an operator may add, torch has no CPU kernel that resolves it
        yield changed(negated, sample)
        if dtype.is_complex:
            yield changed(lambda tensor: negated(conjugated(tensor)), sample)


def dtypes_with_bits(op):
    return {d for d in cpu_dtypes(op) if d.is_complex or d in (torch.float32, torch.float64)}


@cases("conj and neg views", dtypes_with_bits, quick=0.04)
def test_conjugate_and_negative_views(op, dtype, record_property):
    samples = with_bits(some(op.sample_inputs("cpu", dtype), dtype, 4, 8), dtype)
    check("conj and neg views", op, dtype, samples, values, record_property)
