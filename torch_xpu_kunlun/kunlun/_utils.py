"""Small helpers; torch looks some of them up by name."""

import operator
from typing import Any

import torch

from torch_xpu_kunlun import _C


def _integer(value: Any, what: str) -> int:
    """``value`` as an int; raises TypeError, saying what was expected, where it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected {what} to be an int, but got {type(value).__name__}") from None


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The number of a device that is given as int, string, ``torch.device`` or, if ``optional``, None.

    A device without a number is the current one. With ``allow_cpu`` the CPU is -1. Numbers are not checked here: the
    native side does, when they are used.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type == "cpu" and allow_cpu:
            return -1
        if device.type != "kunlun":
            raise ValueError(f"Expected a kunlun device, but got: {device}")
        return _C._get_device() if device.index is None else device.index
    if device is None:
        if optional:
            return _C._get_device()
        raise ValueError("Expected a kunlun device with a number, or an integer, but got None")
    try:
        return operator.index(device)
    except TypeError:
        raise TypeError(f"Expected a device as torch.device, str or int, but got {type(device).__name__}") from None
