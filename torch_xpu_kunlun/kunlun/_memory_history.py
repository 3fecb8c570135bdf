"""Who allocated what: recording of the memory history, and snapshots of the allocator in the format of torch.cuda's.

The viewer at https://pytorch.org/memory_viz and the functions of ``torch.cuda._memory_viz`` read them.
"""

import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._lazy import _lazy_init, is_initialized


def _record_memory_history_impl(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    if compile_context or global_record_annotations:
        raise NotImplementedError(
            "kunlun's memory history keeps stacks and the text of _set_memory_metadata; it has neither compile_context "
            "nor global_record_annotations"
        )
    _lazy_init()
    _C._record_memory_history(enabled, context, stacks, max_entries, clear_history, skip_actions or [])


def _record_memory_history_legacy(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: Any = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    **others: Any,
) -> None:
    context = None if not record_context else "all" if trace_alloc_record_context else "state"
    _record_memory_history_impl(
        "all" if enabled else None,
        context,
        "all" if record_context_cpp else "python",
        trace_alloc_max_entries,
        device,
        clear_history,
        **others,
    )


def _record_memory_history(enabled: str | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    """Starts, changes or stops the recording of what the allocators of all devices do, as in ``torch.cuda.memory``.

    Args:
        enabled: ``"all"`` keeps events, ``"state"`` only who holds the memory that is in use; None stops.
        context: for what a stack trace is kept: None (nothing), ``"state"`` (memory in use), ``"alloc"`` (also
            allocations in the list of events) or ``"all"`` (also for the one who frees).
        stacks: ``"python"``, or ``"all"`` for the frames of C++ as well.
        max_entries: of a device; older events make room for newer ones.
        device: accepted as in ``torch.cuda``; all devices are recorded.
        clear_history: forget the events so far.
        skip_actions: kinds of events that are not recorded, such as ``["free_requested"]``.

    Raises ValueError for words that are not among these.
    """
    if isinstance(enabled, bool):
        _record_memory_history_legacy(enabled, *args, **kwargs)
    else:
        _record_memory_history_impl(enabled, *args, **kwargs)


_record_memory_history.__signature__ = inspect.signature(_record_memory_history_impl)  # type: ignore[attr-defined]


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of all devices with their blocks, or those of one memory pool; empty before the first use.

    ``include_traces`` is accepted as in ``torch.cuda``; segments hold no traces.
    """
    if not is_initialized():
        return []
    return _C._memory_snapshot(mempool_id, include_traces)["segments"]


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The segments and recorded events of all devices, in the format of ``torch.cuda.memory._snapshot``."""
    _lazy_init()
    snapshot = _C._memory_snapshot(None, True)
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes a snapshot as a pickle, which the viewer at https://pytorch.org/memory_viz opens."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """The stack that allocated the memory which begins at ``data_ptr``; None if that was not recorded."""
    return _C._allocation_traceback(data_ptr) if is_initialized() else None


def _set_memory_metadata(metadata: str) -> None:
    """A text for the events that the calling thread causes from now on; empty for none."""
    _C._set_memory_metadata(metadata)


def _get_memory_metadata() -> str:
    """The text of ``_set_memory_metadata``."""
    return _C._get_memory_metadata()


def _attach_out_of_memory_observer(observer: Callable[[int, int, int, int], Any]) -> None:
    """Has ``observer(device, requested, available, free)`` called, in bytes, before an out-of-memory error is raised.

    ``requested`` is what the allocator asked the device for, ``available`` what this process may have in all, and
    ``free`` what the device has left. Observers stay until the process ends.
    """
    _C._attach_out_of_memory_observer(observer)
