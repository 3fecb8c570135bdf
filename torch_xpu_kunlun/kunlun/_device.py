"""Devices: how many, which is current, what they are."""

from typing import Any

import torch

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._utils import _get_device_index


def is_available() -> bool:
    """Whether there is a device that this process may use. Starts nothing and never raises."""
    return device_count() > 0


def device_count() -> int:
    """Number of devices that this process sees. Starts nothing and never raises.

    If the chip's driver cannot be loaded, this is 0 and the reason comes as a warning, once.
    """
    return _C._get_device_count()


def current_device() -> int:
    """Number of the calling thread's current device."""
    return _C._get_device()


def set_device(device: Any) -> None:
    """Makes ``device`` the calling thread's current device; a negative number changes nothing.

    Raises RuntimeError for a device that does not exist.
    """
    index = _get_device_index(device)
    if index >= 0:
        _C._set_device(index)


def _exchange_device(device: int) -> int:
    return -1 if device < 0 else _C._exchange_device(device)


def _maybe_exchange_device(device: int) -> int:
    return _C._maybe_exchange_device(device)


class device:
    """Context manager: the current device inside is ``device``; None and negative numbers change nothing."""

    def __init__(self, device: Any):
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C._maybe_exchange_device(self.idx)

    def __exit__(self, *exception: object) -> None:
        self.idx = _C._maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the current device inside is that of a tensor or storage; others change nothing."""

    def __init__(self, obj: Any):
        super().__init__(obj.get_device() if obj.device.type == "kunlun" else -1)


def synchronize(device: Any = None) -> None:
    """Waits for all work on all streams of ``device`` (default: the current one).

    Raises the failure of work that has failed since the last time, with torch's own exception type.
    """
    from torch_xpu_kunlun.kunlun._lazy import _lazy_init

    _lazy_init()
    _C._synchronize(_get_device_index(device, optional=True))


def reset_device(device: Any = None) -> None:
    """Makes a faulty device usable again. Pending work is dropped and the contents of its memory are lost."""
    _C._reset_device(_get_device_index(device, optional=True))


def get_device_properties(device: Any = None):
    """Name, uuid, ``total_memory`` and ``l3_memory`` (bytes), ``major`` and ``minor`` (generation of the chip),
    ``multi_processor_count`` (clusters) and what the device is capable of. Starts nothing.
    """
    return _C._get_device_properties(_get_device_index(device, optional=True))


def get_device_name(device: Any = None) -> str:
    """Name of the device. Starts nothing."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Generation of the chip as (major, minor). Starts nothing."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether ``device`` reads and writes the memory of ``peer_device`` directly; False for a device and itself.

    Raises AssertionError for a device that does not exist.
    """
    index, peer = _get_device_index(device, optional=True), _get_device_index(peer_device)
    for name, number in (("device", index), ("peer device", peer)):
        if not 0 <= number < device_count():
            raise AssertionError(f"Invalid {name} id: {number}")
    if index == peer:
        return False
    return get_device_properties(index).has_peer_access and get_device_properties(peer).has_peer_access


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that ``torch.autocast("kunlun")`` accepts."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether tensors may be ``torch.bfloat16``."""
    return is_available()


def is_tf32_supported() -> bool:
    """Whether matrix products of float32 may be computed in TF32: no, they are computed in float32."""
    return False


def get_arch_list() -> list[str]:
    """Chip generations that this library holds compiled kernels for: none, the chip's driver brings the kernels."""
    return []


def get_gencode_flags() -> str:
    """Compiler flags of the kernels that this library holds: none, see :func:`get_arch_list`."""
    return ""


_SYNC_DEBUG_MODES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Sets what operations do that make the host wait for the device; for the whole process.

    Args:
        debug_mode: ``"default"`` or 0 (nothing), ``"warn"`` or 1 (a warning each time), ``"error"`` or 2 (RuntimeError
            before anything has been done).

    That are ``item()``, copies between host and device that are not asynchronous (``non_blocking=True`` with pinned
    memory is), operators whose caller waits (the tiers *boxed* and *fallback*) and ``Stream.synchronize``. As in
    ``torch.cuda``, calls that only wait, ``torch.kunlun.synchronize`` and ``Event.synchronize``, are left out.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _SYNC_DEBUG_MODES[debug_mode]
    if debug_mode not in _SYNC_DEBUG_MODES.values():
        raise RuntimeError("invalid value of debug_mode, expected one of 0, 1, 2")
    _C._set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """What :func:`set_sync_debug_mode` has set, as a number."""
    return _C._get_sync_debug_mode()


def ipc_collect() -> None:
    """Frees the memory of tensors that were sent to other processes and that none of them uses any more.

    Otherwise that happens when the next tensor is sent. Tensors that were sent and never received stay until this
    process ends.
    """
    if _C._is_initialized():
        _C._ipc_collect()
