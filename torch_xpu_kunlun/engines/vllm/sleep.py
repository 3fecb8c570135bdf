"""vLLM's sleep mode: weights and cache in memory pools that give their memory back to the device for a while."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import torch
from vllm.device_allocator import DEFERRABLE_TAGS
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory
from vllm.logger import init_logger

logger = init_logger("vllm.plugins.kunlun")  # below vLLM's logger, which shows it

NAME = "kunlun"


@functools.cache
def register() -> None:
    """Makes the backend known to vLLM under its name, in this process."""
    SleepModeBackendFactory.register_backend(NAME, __name__, KunlunSleepModeBackend.__name__)


class KunlunSleepModeBackend(SleepModeBackend):
    """One memory pool for each of vLLM's tags, on the device that is current at the tag's first use.

    ``weights`` are kept in pinned host memory at level 1 and dropped at level 2; ``runtime``, the state that was made
    beside the cache, is kept at every level; ``kv_cache`` and ``workspace`` are dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pools: dict[str, torch.kunlun.SleepableMemPool] = {}

    def pool(self, tag: str) -> AbstractContextManager:
        """Within it, what the calling thread allocates goes to sleep with ``tag``."""
        if tag not in self._pools:
            self._pools[tag] = torch.kunlun.SleepableMemPool()
        return torch.kunlun.use_mem_pool(self._pools[tag])

    def suspend(self, level: int = 1) -> None:
        keep = ("weights", "runtime") if level == 1 else ("runtime",)
        self._put_to_sleep(list(self._pools), keep)

    def discard(self, tags: tuple[str, ...]) -> None:
        self._put_to_sleep(tags, keep=())

    def _put_to_sleep(self, tags: list[str] | tuple[str, ...], keep: tuple[str, ...]) -> None:
        for tag in tags:
            pool = self._pools.get(tag)
            if pool is not None and not pool.is_asleep:
                given_back = pool.sleep(keep=tag in keep)
                logger.info(
                    "%s: %.2f MiB given back, contents %s",
                    tag,
                    given_back / 2**20,
                    "kept" if tag in keep else "dropped",
                )
        self._state = "SUSPENDED"
        torch.kunlun.empty_cache()

    def resume(self, tags: list[str] | None = None) -> None:
        """Wakes up these tags, or all, and whatever vLLM does not let sleep longer than its first tag.

        Raises ``torch.OutOfMemoryError`` where the device has not enough memory; what sleeps then can be woken later.
        """
        self._state = "RESUMING"
        for tag, pool in self._pools.items():
            if pool.is_asleep and (tags is None or tag in tags or tag not in DEFERRABLE_TAGS):
                pool.wake_up()
        self._state = "SUSPENDED" if any(pool.is_asleep for pool in self._pools.values()) else "RUNNING"

    @classmethod
    def preserves_communicators(cls) -> bool:
        """XCCL's groups have no memory in the pools."""
        return True
