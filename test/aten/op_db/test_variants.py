"""Other ways to call an operator: method, in place, Python operator, alias; and what results share with inputs."""

from __future__ import annotations

import torch
from common_op_checks import NothingToCheck, Refused, cases, check, cpu_dtypes, some, tensors_of


def variants(op, side):
    """Name -> result or error of each variant that the operator has."""
    functions = {
        "method": op.get_method(),
        "in place": op.get_inplace(),
        "operator": op.get_operator(),
        "operator, in place": op.get_inplace_operator(),
        **{f"alias {alias.name}": alias for alias in op.aliases},
        **{f"alias {alias.name}, method": alias.method_variant for alias in op.aliases},
        **{f"alias {alias.name}, in place": alias.inplace_variant for alias in op.aliases},
    }
    results = {}
    for name, function in functions.items():
        if function is None:
            continue
        value, args, kwargs = side.inputs()
        got = side.attempt(function, value, *args, **kwargs)
        changed = None if isinstance(got, Refused) else value  # an in-place variant's first argument
        results[name] = got, got is value, changed
    if not results:
        raise NothingToCheck
    return results


@cases("variants", cpu_dtypes, quick=0.02)
def test_variants(op, dtype, record_property):
    check("variants", op, dtype, some(op.sample_inputs("cpu", dtype), dtype, 2, 6), variants, record_property)


def sharing(op, side):
    """Of each result: which input it is, whose storage it has and how it reads it, whether it is a view."""
    value, args, kwargs = side.inputs()
    given = tensors_of((value, args, kwargs))

    def storage(tensor):
        return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.numel() else 0

    found = []
    results = tensors_of(op(value, *args, **kwargs))
    for result in results:
        identical = [number for number, tensor in enumerate(given) if tensor is result]
        shared = [n for n, tensor in enumerate(given) if storage(tensor) and storage(tensor) == storage(result)]
        with_results = [n for n, other in enumerate(results) if storage(other) and storage(other) == storage(result)]
        # Of a new tensor it says nothing whether it is the view of one that nobody has, and the kernels of a few
        # operators leave its conjugation pending, which the chip does not.
        is_view = (result._is_view(), result.storage_offset(), result.is_conj(), result.is_neg()) if shared else None
        found.append((identical, shared, with_results, is_view, result.requires_grad, result.is_leaf))
    if not found:
        raise NothingToCheck
    return found


@cases("sharing and views", cpu_dtypes, quick=0.02)
def test_sharing(op, dtype, record_property):
    check("sharing and views", op, dtype, some(op.sample_inputs("cpu", dtype), dtype, 2, 12), sharing, record_property)
