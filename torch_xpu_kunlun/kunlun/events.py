"""Events: marks in a stream, in this process or shared with others."""

import ctypes
from typing import Any

import torch

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._utils import _get_device_index

__all__ = ["Event"]


class _EventType(type):
    # torch 2.13 takes instances of torch.Event itself where a stream records an event or two are compared, and refuses
    # subclasses. So an event of this class is a torch.Event, and isinstance says what belongs here.
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "kunlun"


class Event(metaclass=_EventType):
    """A mark in a stream: to wait for, to ask whether it has been passed, or to take the time. Makes a ``torch.Event``.

    Args:
        enable_timing: whether ``elapsed_time`` (in milliseconds) can be used.
        blocking: accepted as in ``torch.cuda``; a wait never keeps a core busy for long.
        interprocess: whether other processes may use it: ``ipc_handle()`` then gives the bytes from which
            ``from_ipc_handle`` makes the same event elsewhere, and it can be sent through ``torch.multiprocessing``.
            Cannot be combined with ``enable_timing``. Without it, ``ipc_handle()`` is that of ``torch.Event``, which
            raises NotImplementedError.
        external: for events that a graph does not capture; there are no graphs yet, so True raises
            NotImplementedError.
    """

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> torch.Event:
        if external:
            raise NotImplementedError("external events belong to graph capture, which kunlun does not have yet")
        if not interprocess:
            return torch.Event("kunlun", enable_timing=enable_timing, blocking=blocking)
        if enable_timing:
            raise ValueError("an event that is shared between processes cannot take the time: choose one of the two")
        return InterprocessEvent()

    @staticmethod
    def from_ipc_handle(device: Any, handle: bytes) -> "InterprocessEvent":
        """The event of another process of the same user, from what ``ipc_handle()`` gave there.

        Args:
            device: the device that it belongs to.
            handle: the bytes.

        Raises RuntimeError if that process has ended, or is another user's.
        """
        event = InterprocessEvent()
        _C._init()
        _C._event_open_ipc(event, _get_device_index(device), handle)
        return event


class InterprocessEvent(torch.Event):
    """An event that other processes may wait for and record. Made by ``torch.kunlun.Event(interprocess=True)``.

    A generic ``torch.Stream`` of torch 2.13 refuses to record it; ``event.record(stream)`` and ``torch.kunlun.Stream``
    do not.
    """

    def __new__(cls) -> "InterprocessEvent":
        return super().__new__(cls, "kunlun")

    def record(self, stream: "torch.Stream | None" = None) -> None:
        """Records the event in ``stream`` (default: the current one), which must be of the event's device."""
        if stream is None:
            stream = torch.accelerator.current_stream()
        if self.event_id == 0:
            _C._event_create_ipc(self, stream.device_index)
        super().record(stream)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Raises ValueError: events that are shared between processes take no time."""
        raise ValueError("Both events must be created with argument 'enable_timing=True'.")

    def ipc_handle(self) -> bytes:
        """What another process needs for :meth:`Event.from_ipc_handle`.

        An event that has not been recorded yet belongs to the current device from now on.
        """
        if self.event_id == 0:
            _C._init()
            _C._event_create_ipc(self, _C._get_device())
        return _C._event_ipc_handle(self)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.event_id)

    def __repr__(self) -> str:
        return f"<torch.kunlun.Event {self.event_id:#x}>" if self.event_id else "<torch.kunlun.Event uninitialized>"
