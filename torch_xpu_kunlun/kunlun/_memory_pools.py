"""Memory pools and allocators of one's own."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._memory_history import memory_snapshot
from torch_xpu_kunlun.kunlun._utils import _get_device_index


class _KunlunAllocator:
    """An allocator as ``change_current_allocator`` and ``MemPool`` take it."""

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator

    def allocator(self) -> Any:
        """What ``MemPool`` takes. None for the caching allocator."""
        return self._allocator


class KunlunPluggableAllocator(_KunlunAllocator):
    """An allocator from a shared library.

    Args:
        path_to_so_file: the library.
        alloc_fn_name: a function ``void* alloc(ssize_t size, int device, void* stream)``; NULL means out of memory.
        free_fn_name: a function ``void free(void* ptr, ssize_t size, int device, void* stream)``.

    ``stream`` is the driver's stream. Raises OSError when the library cannot be loaded and AttributeError when it has
    no such function.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(path_to_so_file)
        functions = (getattr(library, name) for name in (alloc_fn_name, free_fn_name))
        addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
        super().__init__(_C._PluggableAllocator(*addresses))


def change_current_allocator(allocator: _KunlunAllocator) -> None:
    """Puts an allocator in the caching allocator's place, for the rest of the process.

    Raises RuntimeError once the caching allocator has been used. What only that can do, such as statistics and memory
    pools, raises NotImplementedError afterwards.
    """
    if allocator.allocator() is None:
        raise ValueError("the caching allocator is the current one unless another one has been put in its place")
    _C._change_current_allocator(allocator.allocator())


class MemPool(_C._MemPool):
    """A pool of memory that is kept apart from all other memory of the current device.

    Args:
        allocator: ``KunlunPluggableAllocator.allocator()``, from which the pool gets its segments; default: the driver.
        use_on_oom: whether free memory of the pool serves other requests before memory runs out.
        no_split: whether every allocation gets a segment of its own.

    Use it with ``use_mem_pool``. Tensors in the pool stay valid when the pool is gone.
    """

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None and not isinstance(allocator, _C._PluggableAllocator):
            raise TypeError(
                "expected allocator to be what KunlunPluggableAllocator.allocator() gives, "
                f"but got {type(allocator).__name__}"
            )
        super().__init__(allocator, True, use_on_oom, no_split)

    @property
    def id(self) -> tuple[int, int]:
        """Identifies the pool in snapshots and statistics."""
        return super().id

    def use_count(self) -> int:
        """1 for the pool itself, and 1 for each ``use_mem_pool`` that is active on the pool's device."""
        return super().use_count()

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The segments of the pool, as ``memory_snapshot`` shows them."""
        return memory_snapshot(self.id, include_traces=include_traces)


class SleepableMemPool(MemPool):
    """A pool whose memory can go back to the device for a while, though its tensors stay where they are.

    For programs that need a device now and then only: an engine that serves a model puts its weights and its cache to
    sleep, somebody else uses the memory, and after ``wake_up`` every tensor, view and address is valid again. The pool
    belongs to the device that is current when it is made, and is used with ``use_mem_pool``.

    While it sleeps, nothing can be allocated from it, and an operator, copy or collective on one of its tensors raises
    RuntimeError. Freeing them is allowed. ``memory_reserved`` and ``memory_snapshot`` are about the memory that is
    there; ``memory_allocated`` counts the tensors, asleep or awake. A pool cannot fall asleep while another process has
    one of its tensors. The tensors of a pool that is dropped asleep can be freed only.

    Raises NotImplementedError on a chip whose driver has no addresses apart from memory (``address_reserve`` and
    ``memory_map`` of the chip interface).
    """

    def __init__(self) -> None:
        _C._MemPool.__init__(self, None, can_sleep=True)

    def sleep(self, keep: bool = True) -> int:
        """Gives the pool's memory back to the device.

        Args:
            keep: whether ``wake_up`` is to bring the contents back. They are copied to pinned host memory, which is
                freed when the pool is awake. Otherwise the contents are undefined after ``wake_up``.

        Waits for all work of the pool's device; work of other devices on the pool's tensors must be over, and no other
        thread may begin any meanwhile: a call under way just then may not be refused, but touch memory that is gone.
        Returns how many bytes the device has got back. Raises RuntimeError when the pool sleeps already, when a thread
        is within ``use_mem_pool`` for it, or when another process has one of its tensors.
        """
        return self._sleep(keep)

    def wake_up(self) -> None:
        """Takes memory from the device for the whole pool, and brings back what ``sleep`` has kept.

        Raises ``torch.OutOfMemoryError`` when the device has not enough memory left: the pool sleeps on and can be
        tried again. Raises RuntimeError when the pool is awake.
        """
        self._wake_up()

    @property
    def is_asleep(self) -> bool:
        """Whether the pool has given its memory back."""
        return self._is_asleep


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Within it, what the calling thread allocates on ``device`` (default: the current device) comes from ``pool``.

    Other threads, such as those of autograd in a backward pass, are not concerned.
    """
    if not isinstance(pool, _C._MemPool):
        raise TypeError(f"expected pool to be a torch.kunlun.MemPool, but got {type(pool).__name__}")
    index = _get_device_index(device, optional=True)
    pool._begin(index)
    try:
        yield
    finally:
        pool._end(index)
