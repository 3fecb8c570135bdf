"""What SGLang leaves in /dev/shm: it ends its processes with SIGKILL, so that none of them removes anything."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang.srt.managers.load_snapshot import ShmLoadSnapshotReader

_files: set[Path] = set()


def remember_load_file(reader: Any, port_args: Any, caller: str, *args: Any, **kwargs: Any) -> None:
    """Hook: the file by which schedulers tell the main process their load, made by them and removed by nobody."""
    if caller != "TokenizerManager":
        return
    if not _files:
        atexit.register(remove_load_files)
    _files.add(Path(getattr(reader, "path", None) or reader._shm_path))


def remove_load_files(*args: Any, **kwargs: Any) -> None:
    """Hook and at exit: removes these files; the schedulers are gone."""
    while _files:
        _files.pop().unlink(missing_ok=True)


def unlink_load_file(result: tuple, *args: Any, **kwargs: Any) -> None:
    """Hook: after the start, one scheduler and one reader have this file open, so its name can go.

    With several schedulers or readers nobody knows whether all have it, and it is removed at the end.
    """
    reader = getattr(result[0], "load_snapshot_reader", None)
    if isinstance(reader, ShmLoadSnapshotReader) and reader.dp_size == 1 and reader.read(0) is not None:
        path = Path(reader.path)
        path.unlink(missing_ok=True)
        _files.discard(path)


def remove_load_file_of_failed_start(original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Hook: a scheduler that fails has its whole engine killed, so it removes the file that it has made."""
    try:
        original(scheduler, *args, **kwargs)
    except BaseException:
        if path := getattr(getattr(scheduler, "load_snapshot_writer", None), "path", None):
            Path(path).unlink(missing_ok=True)
        raise


def unlink_queue(result: Any, queue: Any, *args: Any, **kwargs: Any) -> None:
    """Hook: ranks have mapped the queue by which the first one tells the others its requests, so its name can go."""
    ring = getattr(queue, "buffer", None)
    if queue._is_writer and ring is not None and ring.is_creator:
        ring.shared_memory.unlink()
        ring.is_creator = False  # or its destructor would unlink the name again


def avoid_semaphore() -> None:
    """Progress bars share a lock between processes, a named semaphore that the killed process could not remove.

    A scheduler's bars are its own, so a lock of its threads does.
    """
    import tqdm

    tqdm.tqdm.set_lock(threading.RLock())
