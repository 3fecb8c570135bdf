"""Switches of the simulated chip: faults, and how fast its links are. For tests of what runs on a device.

The functions exist on the simulated chip only; with any other driver they raise ``RuntimeError``. They work for the
process that calls them and start the device. Faults and speeds can also be set from the beginning, by
``KUNLUN_SIM_FAULT``, ``KUNLUN_SIM_COPY_SPEED`` and ``KUNLUN_SIM_LINK_SPEED``. What a chip is made of, such as its
memory, operators and dtypes, can only be chosen that way.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._utils import _integer

__all__ = [
    "clear_faults",
    "hanging_streams",
    "inject_fault",
    "pending_faults",
    "release_hangs",
    "set_copy_speed",
    "set_link_speed",
]


def inject_fault(kind: str, after: int = 0, device: Any = None, seconds: float | None = None) -> None:
    """Makes the chip show a fault, once.

    Args:
        kind: what happens. ``"launch"``: the launch of an operator raises RuntimeError, and nothing is enqueued.
            ``"kernel"``: an operator fails on its stream; RuntimeError is raised by the next call that reports errors.
            ``"poison"``: an operator breaks the device; every call raises torch.AcceleratorError until
            ``torch.kunlun.reset_device()``, and the contents of its memory are lost. ``"hang"``: the stream stops
            before an operator, until :func:`release_hangs`, a reset of the device, or the end of the process.
        after: how many operators are launched unharmed before that, counted from now.
        device: where; a number or anything that names a kunlun device. Default: wherever the turn comes.
        seconds: for a hang, when it gives up: the operator then fails with RuntimeError, like ``"kernel"``.

    Only operators count that the chip has kernels for, that is, the tier ``launcher`` of ``operator_statistics()``;
    copies and memory fills do not. Raises TypeError and ValueError for arguments that make no sense.
    """
    if not isinstance(kind, str):
        raise TypeError(f"expected kind to be a str, but got {type(kind).__name__}")
    after = _integer(after, "after")
    if seconds is not None and not isinstance(seconds, (int, float)):
        raise TypeError(f"expected seconds to be a number, but got {type(seconds).__name__}")
    if after < 0:
        raise ValueError(f"after is a number of operators, not {after}")
    index = None if device is None else _index(device)
    _C._sim_inject_fault(kind, after, index, seconds)


def pending_faults() -> list[str]:
    """The faults that have not shown yet, as ``KUNLUN_SIM_FAULT`` would name them, such as ``"hang:2:1.5@0"``."""
    _C._sim_require()
    return _C._sim_pending_faults()


def clear_faults() -> None:
    """Forgets the faults that have not shown yet."""
    _C._sim_require()
    _C._sim_clear_faults()


def release_hangs() -> None:
    """Lets all streams go on that hang; their operators then run as usual."""
    _C._sim_require()
    _C._sim_release_hangs()


def hanging_streams() -> int:
    """How many streams hang at this moment."""
    _C._sim_require()
    return _C._sim_hanging_streams()


def set_copy_speed(bytes_per_second: int | None) -> None:
    """Limits copies between the host and each device, both ways together; ``None`` lifts the limit."""
    _C._sim_require()
    _C._sim_set_copy_speed(_speed(bytes_per_second))


def set_link_speed(bytes_per_second: int | None) -> None:
    """Limits what each device sends to other devices; ``None`` lifts the limit."""
    _C._sim_require()
    _C._sim_set_link_speed(_speed(bytes_per_second))


def _speed(bytes_per_second: int | None) -> int | None:
    if bytes_per_second is None:
        return None
    bytes_per_second = _integer(bytes_per_second, "a speed in bytes a second")
    if bytes_per_second < 1:
        raise ValueError(f"a speed is at least one byte a second, not {bytes_per_second}; None lifts the limit")
    return bytes_per_second


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "kunlun":
        raise ValueError(f"expected a kunlun device, got {device}")
    return torch.kunlun.current_device() if device.index is None else device.index
