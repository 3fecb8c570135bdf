"""Streams and events."""

from typing import Any

import torch

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._utils import _get_device_index


class Stream(torch.Stream):
    """A queue of work on a device, in order and independent of other streams. Can be used in a ``with`` statement.

    Args:
        device: where; default is the current device.
        priority: 0 is normal, -1 is high.

    Streams come from a pool of 32 for each device and priority, in turn.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> "Stream":
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("kunlun", index), priority=priority, **kwargs)

    @property
    def kunlun_stream(self) -> int:
        """The driver's stream, as a number."""
        return self.native_handle

    @property
    def priority(self) -> int:
        """0 for a normal stream, -1 for one of high priority."""
        return _C._get_stream_priority(self.stream_id, self.device_index)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority."""
        return _C._get_stream_priority_range()

    def __repr__(self) -> str:
        return f"<torch.kunlun.Stream device=kunlun:{self.device_index} stream_id={self.stream_id}>"


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
        interprocess: sharing an event between processes is not offered; raises NotImplementedError.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        if interprocess:
            raise NotImplementedError(
                "kunlun events cannot be shared between processes; synchronise the stream and tell the other process"
            )
        return torch.Event("kunlun", enable_timing=enable_timing, blocking=blocking)


def _make_stream(data: tuple[int, int, int]) -> Stream:
    stream_id, device_index, device_type = data
    return Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def current_stream(device: Any = None) -> Stream:
    """The calling thread's current stream of ``device`` (default: the current device)."""
    return _make_stream(_C._get_current_stream(_get_device_index(device, optional=True)))


def default_stream(device: Any = None) -> Stream:
    """The default stream of ``device`` (default: the current device)."""
    return _make_stream(_C._get_default_stream(_get_device_index(device, optional=True)))


def set_stream(stream: "torch.Stream | None") -> None:
    """Makes ``stream`` current, and its device too. None changes nothing. Prefer the context manager ``stream``."""
    if stream is not None:
        _set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    _C._set_stream(stream_id, device_index, device_type)


class StreamContext:
    """Context manager: work inside goes to ``stream``, and its device is current; None changes nothing."""

    def __init__(self, stream: "torch.Stream | None"):
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._device = _C._get_device()
        self._outer = _C._get_current_stream(self.stream.device_index)
        set_stream(self.stream)

    def __exit__(self, *exception: object) -> None:
        if self.stream is None:
            return
        _C._set_stream(*self._outer)
        _C._set_device(self._device)


def stream(stream: "torch.Stream | None") -> StreamContext:
    """Context manager: work inside goes to ``stream``, and its device is current; None changes nothing."""
    return StreamContext(stream)
