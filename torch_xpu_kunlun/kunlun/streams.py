"""Streams and events."""

import ctypes
from typing import Any

import torch

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._utils import _get_device_index, _integer
from torch_xpu_kunlun.kunlun.events import Event

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "is_current_stream_capturing",
    "set_stream",
    "stream",
]


def _require(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"expected {what} to be a torch.{kind.__name__}, but got {type(value).__name__}")


class Stream(torch.Stream):
    """A queue of work on a device, in order and independent of other streams. Can be used in a ``with`` statement.

    Args:
        device: where; default is the current device.
        priority: 0 is normal, -1 is high; a number outside of that range means the nearest in it.
        stream_ptr: the driver's stream, as a number, if another library has made it; see :class:`ExternalStream`.

    Streams come from a pool of 32 for each device and priority, in turn.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> "Stream":
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _get_device_index(device, optional=True)
        if "stream_ptr" in kwargs:
            stream_ptr = _integer(kwargs.pop("stream_ptr"), "stream_ptr")
            if not 0 <= stream_ptr < 1 << 64:
                raise ValueError(f"expected stream_ptr to be an address, but got {stream_ptr}")
            stream_id, index, device_type = _C._get_stream_from_external(stream_ptr, index)
            return super().__new__(cls, stream_id=stream_id, device_index=index, device_type=device_type, **kwargs)
        return super().__new__(cls, torch.device("kunlun", index), priority=priority, **kwargs)

    def record_event(self, event: "torch.Event | None" = None) -> torch.Event:
        """Records ``event``, or a new one, behind the work that the stream has been given so far; returns it."""
        if event is None:
            event = Event()
        _require(event, torch.Event, "event")
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Makes later work on this stream wait for the last record of ``event``. Returns at once."""
        _require(event, torch.Event, "event")
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Makes later work on this stream wait for what ``stream`` has been given so far. Returns at once."""
        _require(stream, torch.Stream, "stream")
        self.wait_event(stream.record_event())

    @property
    def kunlun_stream(self) -> int:
        """The driver's stream, as a number."""
        return self.native_handle

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.kunlun_stream)

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


class ExternalStream(Stream):
    """A stream that another library has made.

    Args:
        stream_ptr: the driver's stream, as a number.
        device: the device it belongs to; default is the current device.

    The stream stays the other library's: it must outlive this object and the work and memory that have used it.
    Raises ValueError for a number that is no stream of the driver, or one of another device, as far as the driver can
    tell.
    """

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> "ExternalStream":
        return super().__new__(cls, device, stream_ptr=stream_ptr, **kwargs)


def get_stream_from_external(data_ptr: int, device: Any = None) -> Stream:
    """The stream that another library has made and that has the number ``data_ptr``; see :class:`ExternalStream`."""
    return Stream(device, stream_ptr=data_ptr)


def _make_stream(data: tuple[int, int, int]) -> Stream:
    stream_id, device_index, device_type = data
    return Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def current_stream(device: Any = None) -> Stream:
    """The calling thread's current stream of ``device`` (default: the current device)."""
    return _make_stream(_C._get_current_stream(_get_device_index(device, optional=True)))


def default_stream(device: Any = None) -> Stream:
    """The default stream of ``device`` (default: the current device)."""
    return _make_stream(_C._get_default_stream(_get_device_index(device, optional=True)))


def is_current_stream_capturing() -> bool:
    """Whether a graph records the work of the current stream."""
    return current_stream().is_capturing()


def set_stream(stream: "torch.Stream | None") -> None:
    """Makes ``stream`` current, and its device too. None changes nothing. Prefer the context manager ``stream``."""
    if stream is not None:
        _require(stream, torch.Stream, "stream")
        _set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    _C._set_stream(stream_id, device_index, device_type)


class StreamContext:
    """Context manager: work inside goes to ``stream``, and its device is current; None changes nothing."""

    def __init__(self, stream: "torch.Stream | None"):
        if stream is not None:
            _require(stream, torch.Stream, "stream")
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
