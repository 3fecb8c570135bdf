"""Device memory: what the caching allocator holds, its limits and its statistics. All sizes are in bytes."""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import deprecated

from torch_xpu_kunlun import _C

# torch.cuda.memory has all of these in one module.
from torch_xpu_kunlun.kunlun._lazy import is_initialized
from torch_xpu_kunlun.kunlun._memory_history import (
    _allocation_traceback as _allocation_traceback,
)
from torch_xpu_kunlun.kunlun._memory_history import (
    _attach_out_of_memory_observer as _attach_out_of_memory_observer,
)
from torch_xpu_kunlun.kunlun._memory_history import (
    _dump_snapshot as _dump_snapshot,
)
from torch_xpu_kunlun.kunlun._memory_history import (
    _get_memory_metadata as _get_memory_metadata,
)
from torch_xpu_kunlun.kunlun._memory_history import (
    _record_memory_history as _record_memory_history,
)
from torch_xpu_kunlun.kunlun._memory_history import (
    _set_memory_metadata as _set_memory_metadata,
)
from torch_xpu_kunlun.kunlun._memory_history import (
    _snapshot as _snapshot,
)
from torch_xpu_kunlun.kunlun._memory_history import (
    memory_snapshot,
)
from torch_xpu_kunlun.kunlun._memory_pools import (
    KunlunPluggableAllocator,
    MemPool,
    SleepableMemPool,
    change_current_allocator,
    use_mem_pool,
)
from torch_xpu_kunlun.kunlun._utils import _get_device_index, _integer
from torch_xpu_kunlun.kunlun.streams import Stream, current_stream

__all__ = [
    "KunlunPluggableAllocator",
    "MemPool",
    "SleepableMemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "change_current_allocator",
    "device_memory_used",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def caching_allocator_alloc(size: int, device: Any = None, stream: Stream | int | None = None) -> int:
    """Allocates ``size`` bytes for another framework and returns their address.

    Args:
        device: default is the current device.
        stream: on which the memory will be used, as ``torch.kunlun.Stream`` or the driver's stream as a number;
            default is the current stream of ``device``.

    To be given back with ``caching_allocator_delete``. Raises ValueError for a negative size.
    """
    size = _integer(size, "size")
    if size < 0:
        raise ValueError(f"expected size to be a number of bytes, but got {size}")
    index = _get_device_index(device, optional=True)
    if stream is None:
        stream = current_stream(index)
    if isinstance(stream, torch.Stream):
        stream = stream.native_handle
    if not isinstance(stream, int):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.kunlun.Stream` or `int` representing a pointer to an "
            "existing stream"
        )
    return _C._caching_allocator_alloc(size, index, stream)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Gives memory of ``caching_allocator_alloc`` back."""
    _C._caching_allocator_delete(mem_ptr)


def caching_allocator_enable(value: bool = True) -> None:
    """Whether freed memory is kept for the next allocation (the default), or goes back to the device once unused."""
    _C._caching_allocator_enable(value)


@contextlib.contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Within it, the caching allocator is disabled as by ``caching_allocator_enable(False)``."""
    previous = _C._caching_allocator_is_enabled()
    _C._caching_allocator_enable(False)
    try:
        yield
    finally:
        _C._caching_allocator_enable(previous)


def get_allocator_backend() -> str:
    """``native`` for the caching allocator, ``pluggable`` after ``change_current_allocator``."""
    return _C._get_allocator_backend()


def _set_allocator_settings(env: str) -> None:
    """Changes what ``PYTORCH_ALLOC_CONF`` sets from now on, in the same words: ``"expandable_segments:True"``."""
    torch._C._accelerator_setAllocatorSettings(env)


def empty_cache() -> None:
    """Gives memory that is reserved but unused back to the device.

    Waits for the work that may still use it. Does nothing before the first use of a device.
    """
    _C._empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits what this process may reserve on ``device`` to a share of its total memory.

    Args:
        fraction: from 0, where nothing more may be reserved, to 1; anything else raises ValueError.
        device: default is the current device.

    Beyond the limit an allocation raises ``torch.OutOfMemoryError``.
    """
    if not isinstance(fraction, (int, float)) or isinstance(fraction, bool):
        raise TypeError(f"fraction must be a number, but got {type(fraction).__name__}")
    _C._set_memory_fraction(float(fraction), _get_device_index(device, optional=True))


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The share of the total memory of ``device`` that this process may reserve."""
    return _C._get_memory_fraction(_get_device_index(device, optional=True))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of ``device``, as its driver counts them."""
    return _C._get_memory_info(_get_device_index(device, optional=True))


def device_memory_used(device: Any = None) -> int:
    """Bytes of ``device`` that are in use, by this process and others, as its driver counts them."""
    free, total = mem_get_info(device)
    return total - free


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The result of ``memory_stats`` as nested dictionaries; empty before the first use of a device."""
    if not is_initialized():
        return {}
    return _C._memory_stats(_get_device_index(device, optional=True))


def memory_stats(device: Any = None) -> "OrderedDict[str, int]":
    """Statistics of the allocator, with the keys of ``torch.cuda.memory_stats``.

    ``"{what}.{all,small_pool,large_pool}.{current,peak,allocated,freed}"`` where ``what`` is

    - ``allocated_bytes``, ``allocation``: memory that tensors hold, and the number of its blocks
    - ``active_bytes``, ``active``: the same and what is freed but still used by other streams
    - ``reserved_bytes``, ``segment``: memory taken from the device, and the number of its pieces
    - ``inactive_split_bytes``, ``inactive_split``: free blocks that cannot be given back alone
    - ``requested_bytes``: what was asked for, before rounding

    and ``num_alloc_retries``, ``num_ooms``, ``num_sync_all_streams``, ``num_device_alloc``, ``num_device_free``,
    ``max_split_size``, ``oversize_allocations.*``, ``oversize_segments.*``, and for every memory pool
    ``reserved_bytes_by_private_pools.{id}.*``, where the id ``(0, 1)`` is written ``0_1``. Empty before the first use
    of a device.
    """
    return _flatten(memory_stats_as_nested_dict(device))


def _flatten(stats: dict[Any, Any]) -> "OrderedDict[str, int]":
    result: list[tuple[str, int]] = []

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                name = "_".join(map(str, key)) if isinstance(key, tuple) else str(key)
                add(f"{prefix}.{name}" if prefix else name, inner)
        else:
            result.append((prefix, value))

    add("", stats)
    return OrderedDict(sorted(result))


def _stat(key: str, device: Any) -> int:
    return memory_stats(device).get(key, 0)


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors hold now."""
    return _stat("allocated_bytes.all.current", device)


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors have held since the start or ``reset_peak_memory_stats``."""
    return _stat("allocated_bytes.all.peak", device)


def memory_reserved(device: Any = None) -> int:
    """Bytes that the allocator has taken from the device, used or cached."""
    return _stat("reserved_bytes.all.current", device)


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the allocator has had from the device since the start or ``reset_peak_memory_stats``."""
    return _stat("reserved_bytes.all.peak", device)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sets the counts of what was allocated and freed in total back to 0."""
    _C._reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Starts the peaks again from what is held now."""
    _C._reset_peak_memory_stats(_get_device_index(device, optional=True))


@deprecated(
    "`torch.kunlun.reset_max_memory_allocated` is the same as `torch.kunlun.reset_peak_memory_stats`, which resets all "
    "peaks",
    category=FutureWarning,
)
def reset_max_memory_allocated(device: Any = None) -> None:
    """Deprecated; see ``reset_peak_memory_stats``."""
    reset_peak_memory_stats(device)


@deprecated(
    "`torch.kunlun.reset_max_memory_cached` is the same as `torch.kunlun.reset_peak_memory_stats`, which resets all "
    "peaks",
    category=FutureWarning,
)
def reset_max_memory_cached(device: Any = None) -> None:
    """Deprecated; see ``reset_peak_memory_stats``."""
    reset_peak_memory_stats(device)


@deprecated(
    "`torch.kunlun.memory_cached` has been renamed to `torch.kunlun.memory_reserved`",
    category=FutureWarning,
)
def memory_cached(device: Any = None) -> int:
    """Deprecated; see ``memory_reserved``."""
    return memory_reserved(device)


@deprecated(
    "`torch.kunlun.max_memory_cached` has been renamed to `torch.kunlun.max_memory_reserved`",
    category=FutureWarning,
)
def max_memory_cached(device: Any = None) -> int:
    """Deprecated; see ``max_memory_reserved``."""
    return max_memory_reserved(device)


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The result of ``host_memory_stats`` as nested dictionaries; empty before the first use of a device."""
    return _C._host_memory_stats() if is_initialized() else {}


def host_memory_stats() -> "OrderedDict[str, int]":
    """Statistics of pinned host memory, with the keys of ``torch.cuda.host_memory_stats``.

    ``"{what}.{current,peak,allocated,freed}"`` where ``what`` is ``active_bytes``, ``active_requests`` (handed out),
    ``allocated_bytes`` or ``allocations`` (handed out or cached); ``num_host_alloc`` and ``num_host_free``; and
    ``"{host_alloc_time,host_free_time}.{total,max,min,count,avg}"`` in microseconds. Empty before the first use of a
    device.
    """
    return _flatten(host_memory_stats_as_nested_dict())


def reset_accumulated_host_memory_stats() -> None:
    """Sets the counts of pinned memory that was allocated and freed in total back to 0."""
    _C._reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Starts the peaks of pinned memory again from what is held now."""
    _C._reset_peak_host_memory_stats()


def _format(value: int, is_bytes: bool) -> str:
    if not is_bytes:
        return str(value)
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 10240 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}"


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the statistics to read. With ``abbreviated``, without the two pools apart."""
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    rows = [
        ("allocated memory", "allocated_bytes", True),
        ("active memory", "active_bytes", True),
        ("requested memory", "requested_bytes", True),
        ("reserved memory", "reserved_bytes", True),
        ("non-releasable memory", "inactive_split_bytes", True),
        ("allocations", "allocation", False),
        ("active allocations", "active", False),
        ("segments", "segment", False),
        ("non-releasable blocks", "inactive_split", False),
    ]
    pools = [("", "all")]
    if not abbreviated:
        pools += [("  from large pool", "large_pool"), ("  from small pool", "small_pool")]
    columns = ("current", "peak", "allocated", "freed")
    line = "-" * 82
    lines = [
        line,
        f"kunlun:{index} memory    out of memory: {stats.get('num_ooms', 0)}"
        f"    retries: {stats.get('num_alloc_retries', 0)}",
        line,
        f"{'':26}{'current':>14}{'peak':>14}{'allocated':>14}{'freed':>14}",
    ]

    def add(title: str, key: str, is_bytes: bool) -> None:
        values = (_format(stats.get(f"{key}.{column}", 0), is_bytes) for column in columns)
        lines.append(f"{title:26}" + "".join(f"{value:>14}" for value in values))

    for title, key, is_bytes in rows:
        for suffix, pool in pools:
            add(suffix or title, f"{key}.{pool}", is_bytes)
    add("oversize allocations", "oversize_allocations", False)
    add("oversize segments", "oversize_segments", False)
    return "\n".join([*lines, line])
