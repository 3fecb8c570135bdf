"""What the tests of fused operators share: samples, comparison with the reference, torch's operator check."""

import torch
from torch.library import opcheck
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_xpu_kunlun import ops
from torch_xpu_kunlun.ops import reference

# One rounding to the element type, and float sums in another order.
TOLERANCE = {
    torch.float32: {"rtol": 2e-6, "atol": 2e-6},
    torch.float16: {"rtol": 1e-3, "atol": 1e-4},
    torch.bfloat16: {"rtol": 8e-3, "atol": 1e-4},
}


def to_device(value):
    """The same on the device, with strides and overlaps of dimension sizes kept."""

    def move(tensor):
        storage = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype)
        storage.untyped_storage().copy_(tensor.untyped_storage())
        moved = storage.to("kunlun")
        return moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    return tree_map_only(torch.Tensor, move, value)


def check(name, dtype, *args, tolerance=None, **kwargs):
    """Calls the operator and its reference with the same arguments; compares results and every argument afterwards."""
    given = to_device((args, kwargs))
    result = getattr(ops, name)(*given[0], **given[1])
    expected = getattr(reference, name)(*args, **kwargs)
    tolerance = tolerance or TOLERANCE[dtype]
    actual = tree_leaves(result) + [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    wanted = tree_leaves(expected) + [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    assert len(actual) == len(wanted)
    for a, b in zip(actual, wanted, strict=True):
        if a is None:
            assert b is None
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.device.type == "kunlun"
        torch.testing.assert_close(a.cpu(), b, **tolerance)


def check_op(overload, *args, **kwargs):
    """torch's own check of schema, shape function and tracing, on device tensors."""
    opcheck(overload, to_device(args), to_device(kwargs))
