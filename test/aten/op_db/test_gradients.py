"""Gradients: backward, forward mode, and second derivatives both ways, from the same incoming gradients and tangents.

The derivative formulas are torch's, on the CPU as on kunlun; what is tested is that each of their steps runs on the
device and gives the CPU's bits. Formulas that exist only for devices are compared with numeric ones in
test_autograd.py.
"""

from __future__ import annotations

import torch
from common_op_checks import NothingToCheck, cases, check, gradient_dtypes, some, tensors_of
from common_op_db import uses_randomness
from torch.autograd import forward_ad


def leaves(value) -> list[torch.Tensor]:
    return [t for t in tensors_of(value) if t.requires_grad and t.is_leaf]


def call(op, side, function=None):
    """Inputs that need a gradient, and the results that have one."""
    if uses_randomness(op, side.sample):
        raise NothingToCheck
    value, args, kwargs = side.inputs()
    inputs = leaves((value, args, kwargs))
    result = op.gradcheck_wrapper(function or op.get_op(), value, *args, **kwargs)
    outputs = [t for t in tensors_of(result) if t.requires_grad and t.layout is torch.strided]
    if not inputs or not outputs:
        raise NothingToCheck
    return inputs, outputs


def grad(side, outputs, inputs, **options):
    return torch.autograd.grad(outputs, inputs, [side.draw(t) for t in outputs], allow_unused=True, **options)


def backward(op, side):
    inputs, outputs = call(op, side)
    return grad(side, outputs, inputs)


def backward_in_place(op, side):
    def in_place(value, *args, **kwargs):
        value = [t.clone() for t in value] if isinstance(value, (list, tuple)) else value.clone()
        return op.inplace_variant(value, *args, **kwargs)

    inputs, outputs = call(op, side, in_place)
    return grad(side, outputs, inputs)


def second_derivative(op, side):
    """Backward of backward, in one thread.

    Autograd adds gradients up in the order in which their operators were called, as far as it knows: it counts them in
    each thread apart. Those of the first backward pass belong to the thread of a device otherwise, and sums are rounded
    differently than on the CPU.
    """
    inputs, outputs = call(op, side)
    with torch.autograd.set_multithreading_enabled(False):
        first = grad(side, outputs, inputs, create_graph=True)
        again = [t for t in first if t is not None and t.requires_grad]
        if not again:
            raise NothingToCheck
        return first, grad(side, again, inputs)


def forward_mode(op, side):
    """Results and their tangents."""
    if uses_randomness(op, side.sample):
        raise NothingToCheck
    value, args, kwargs = side.inputs()
    found = leaves((value, args, kwargs))
    if not found:
        raise NothingToCheck
    with forward_ad.dual_level():
        duals = {id(t): forward_ad.make_dual(t.detach(), side.draw(t)) for t in found}

        def dual(tree):
            return torch.utils._pytree.tree_map(lambda leaf: duals.get(id(leaf), leaf), tree)

        result = op.gradcheck_wrapper(op.get_op(), dual(value), *dual(args), **dual(kwargs))
        return [tuple(forward_ad.unpack_dual(t)) for t in tensors_of(result)]


def forward_over_reverse(op, side):
    """Tangents of gradients: a Hessian times a vector."""
    if uses_randomness(op, side.sample):
        raise NothingToCheck
    value, args, kwargs = side.inputs()
    found = leaves((value, args, kwargs))
    with forward_ad.dual_level():
        duals = {id(t): forward_ad.make_dual(t, side.draw(t)) for t in found}

        def dual(tree):
            return torch.utils._pytree.tree_map(lambda leaf: duals.get(id(leaf), leaf), tree)

        result = op.gradcheck_wrapper(op.get_op(), dual(value), *dual(args), **dual(kwargs))
        outputs = [t for t in tensors_of(result) if t.requires_grad and t.layout is torch.strided]
        if not found or not outputs:
            raise NothingToCheck
        gradients = grad(side, outputs, list(duals.values()))
        return [tuple(forward_ad.unpack_dual(t)) for t in gradients if t is not None]


def samples_of(op, dtype, few, many):
    return some(op.sample_inputs("cpu", dtype, requires_grad=True), dtype, few, many)


@cases("backward", gradient_dtypes, quick=0.06)
def test_backward(op, dtype, record_property):
    check("backward", op, dtype, samples_of(op, dtype, 4, 12), backward, record_property)


def in_place_dtypes(op):
    return gradient_dtypes(op) if op.supports_inplace_autograd and op.inplace_variant else ()


@cases("backward, in place", in_place_dtypes, quick=0.03)
def test_backward_in_place(op, dtype, record_property):
    check("backward, in place", op, dtype, samples_of(op, dtype, 2, 6), backward_in_place, record_property)


@cases("forward mode", lambda op: gradient_dtypes(op) if op.supports_forward_ad else (), quick=0.03)
def test_forward_mode(op, dtype, record_property):
    check("forward mode", op, dtype, samples_of(op, dtype, 3, 8), forward_mode, record_property)


@cases("second derivative", lambda op: gradient_dtypes(op) if op.supports_gradgrad else (), quick=0.02)
def test_second_derivative(op, dtype, record_property):
    check("second derivative", op, dtype, samples_of(op, dtype, 2, 6), second_derivative, record_property)


@cases("forward over reverse", lambda op: gradient_dtypes(op) if op.supports_fwgrad_bwgrad else (), quick=0.02)
def test_forward_over_reverse(op, dtype, record_property):
    check("forward over reverse", op, dtype, samples_of(op, dtype, 2, 6), forward_over_reverse, record_property)
