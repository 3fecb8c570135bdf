"""First use of the device, and what a forked child may not do."""

from torch_xpu_kunlun import _C


def is_initialized() -> bool:
    """Whether this process has started using a device."""
    return _C._is_initialized()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used a device, so that it cannot use one itself."""
    return _C._is_in_bad_fork()


def init() -> None:
    """Starts the device, which otherwise happens at its first use.

    Raises RuntimeError when the chip's driver cannot be loaded, when there is no device, or in a child forked from a
    process that had used a device; ValueError when an environment variable is malformed.
    """
    _lazy_init()


def _lazy_init() -> None:
    # The native side knows the state and is cheap when there is nothing to do. In a forked child it raises.
    _C._init()
