"""Host copies of an operator's arguments: offsets, strides, shared memory and pending bits stay what they are."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xpu_kunlun import _C

_ALIGNMENT = 16  # bytes; a multiple of the size of every dtype


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """What the tensor covers of its storage."""
    if tensor.numel() == 0:
        return 0, 0
    size = tensor.element_size()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.storage_offset() * size
    return begin // _ALIGNMENT * _ALIGNMENT, begin + (last + 1) * size


class _Storage:
    """The part of one storage that the arguments cover, and its copy."""

    def __init__(self):
        self.begin, self.end = 0, 0
        self.copy: torch.UntypedStorage | None = None

    def include(self, tensor: torch.Tensor) -> None:
        begin, end = _byte_range(tensor)
        if end > begin:
            self.begin = begin if self.end == 0 else min(self.begin, begin)
            self.end = max(self.end, end)

    def fetch(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        if self.copy is None:
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            raw.set_(tensor.untyped_storage(), self.begin, (self.end - self.begin,), (1,))
            self.copy = raw.clone().cpu().untyped_storage()
        return self.copy


def host_copies(values: Any) -> Any:
    """The same arguments on the host, in memory of their own; devices become the CPU. Waits for the device."""
    leaves, structure = tree_flatten(values)
    storages: dict[tuple, _Storage] = {}

    def storage_of(tensor: torch.Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        return storages.setdefault((tensor.device, storage.data_ptr(), storage.nbytes()), _Storage())

    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            storage_of(leaf).include(leaf)
    copies: dict[int, torch.Tensor] = {}

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            if leaf.layout is torch.strided:
                copies[id(leaf)] = _strided(leaf, storage_of(leaf))
            else:
                copies[id(leaf)] = leaf.detach().cpu() if leaf.device.type != "cpu" else leaf.detach().clone()
        return copies[id(leaf)]

    return tree_unflatten([copy(leaf) for leaf in leaves], structure)


def number(value: bool | int | float | complex) -> torch.Tensor:
    """A Python number as kernels see it, where an operator wants a tensor: it does not decide the result's dtype."""
    return _C._wrapped_number(value)


def is_number_for_tensor(argument: torch.Argument, value: Any) -> bool:
    """Whether a kernel written in Python was handed a number where the schema wants a tensor."""
    return str(argument.type) in ("Tensor", "Optional[Tensor]") and isinstance(value, bool | int | float | complex)


def map_arguments(op: OpOverload, args: tuple, kwargs: dict, convert) -> tuple[tuple, dict]:
    """The arguments, each by way of `convert(its declaration, value)`."""
    named = {argument.name: argument for argument in op._schema.arguments}
    return (
        tuple(convert(argument, value) for argument, value in zip(op._schema.arguments, args, strict=False)),
        {name: convert(named[name], value) for name, value in kwargs.items()},
    )


def with_numbers_wrapped(op: OpOverload, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments as the kernels below one written in Python want them."""
    return map_arguments(op, args, kwargs, lambda a, value: number(value) if is_number_for_tensor(a, value) else value)


def _strided(tensor: torch.Tensor, storage: _Storage) -> torch.Tensor:
    result = torch.empty(0, dtype=tensor.dtype)
    if tensor.numel() == 0:
        result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    else:
        offset = tensor.storage_offset() - storage.begin // tensor.element_size()
        result.set_(storage.fetch(tensor), offset, tensor.shape, tensor.stride())
    if tensor.is_conj():
        result = result.conj()
    if tensor.is_neg():
        result = torch._neg_view(result)
    return result
