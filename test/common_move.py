"""Moves test inputs to the device as they are: whole storage, offset, strides, sharing, conjugate and negative bits."""

from __future__ import annotations

import os

import torch
from torch.utils._pytree import tree_map

import torch_xpu_kunlun  # noqa: F401 - registers the device

# Where the tests over torch's operator database have their tensors; the current device is always kunlun:0.
DEVICE = os.environ.get("KUNLUN_TEST_DEVICE", "kunlun")


class Mover:
    """Moves tensors; those that share a storage on the host share one on the device."""

    def __init__(self, device: str = DEVICE):
        self.device = torch.device(device)
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._keep: list[torch.Tensor] = []  # ids stay valid while these live

    def __call__(self, value):
        return tree_map(self._move, value)

    def _move(self, value):
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._keep.append(value)
                self._tensors[id(value)] = self._tensor(value)
            return self._tensors[id(value)]
        if isinstance(value, torch.device) and value.type == "cpu":
            return self.device
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor.detach().to(self.device, copy=True).requires_grad_(tensor.requires_grad)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages or storage.nbytes() == 0:
            self._storages[storage.data_ptr()] = (
                storage.clone() if self.device.type == "cpu" else storage.to(device=self.device)
            )
        moved = torch.empty(0, dtype=tensor.dtype, device=self.device)
        moved.set_(self._storages[storage.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride())
        if tensor.is_conj():
            moved = moved.conj()
        if tensor.is_neg():
            moved = torch._neg_view(moved)
        return moved.requires_grad_(tensor.requires_grad)


def move_kwargs(kwargs: dict, mover: Mover) -> dict:
    """Keyword arguments, where a device is named by a string."""
    moved = mover(kwargs)
    if "device" in moved:
        moved["device"] = mover.device
    return moved
