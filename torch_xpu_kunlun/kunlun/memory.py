"""Device memory: what the caching allocator holds, its limits and its statistics. All sizes are in bytes."""

from collections import OrderedDict
from typing import Any

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._lazy import is_initialized
from torch_xpu_kunlun.kunlun._utils import _get_device_index

__all__ = [
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def empty_cache() -> None:
    """Gives memory that is reserved but unused back to the device.

    Waits for the work that may still use it. Does nothing before the first use of a device.
    """
    _C._empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits what this process may reserve on ``device`` to a share of its total memory.

    Args:
        fraction: greater than 0 and at most 1; anything else raises ValueError.
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
    ``max_split_size``, ``oversize_allocations.*``, ``oversize_segments.*``. Empty before the first use of a device.
    """
    result: list[tuple[str, int]] = []

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            result.append((prefix, value))

    flatten("", memory_stats_as_nested_dict(device))
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
    for title, key, is_bytes in rows:
        for suffix, pool in pools:
            values = (_format(stats.get(f"{key}.{pool}.{column}", 0), is_bytes) for column in columns)
            lines.append(f"{suffix or title:26}" + "".join(f"{value:>14}" for value in values))
    return "\n".join([*lines, line])
