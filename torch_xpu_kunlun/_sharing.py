"""Tensors and events that travel between processes: what ``torch.multiprocessing`` does with kunlun's.

Semantics are those of CUDA: the receiver works on the sender's memory. The sender must live until the tensor has been
received, and keeps the memory until every receiver has let go of it or has died.
"""

import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun.events import Event, InterprocessEvent

_torch_reduce_tensor = reductions.reduce_tensor
_torch_reduce_storage = reductions.reduce_storage


def _rebuild_tensor(
    kind: type,
    size: torch.Size,
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    requires_grad: bool,
    bits: tuple[bool, bool],
    shared: Any,
) -> torch.Tensor:
    _C._init()
    storage = torch.UntypedStorage(0, device="kunlun") if shared is None else _C._borrow_storage(shared)
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
    tensor = torch._utils._rebuild_tensor(typed, offset, size, stride)
    conjugate, negative = bits
    if conjugate:
        tensor = torch.conj(tensor)
    if negative:
        tensor = torch._neg_view(tensor)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _raise(kind: type[Exception], text: str) -> None:
    raise kind(text)


def _reduce_or_report(reduce: Callable[[Any], tuple[Any, ...]], value: Any) -> tuple[Any, ...]:
    # A queue pickles on a thread of its own, which prints what goes wrong and drops the message, so that the receiver
    # would wait for ever, as a DataLoader does for its worker. The error travels in place of the message instead.
    try:
        return reduce(value)
    except Exception as error:
        if threading.current_thread().name != "QueueFeederThread":
            raise
        return _raise, (type(error), f"a kunlun tensor could not be sent by the other process: {error}")


def _reduce_kunlun_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, "
            "since autograd does not support crossing process boundaries.  "
            "If you just want to transfer the data, call detach() on the tensor "
            "before serializing (e.g., putting it on the queue)."
        )
    torch.utils.hooks.warn_if_has_hooks(tensor)
    storage = tensor.untyped_storage()
    shared = None if storage.nbytes() == 0 else _C._lend_storage(storage)
    bits = (tensor.is_conj(), tensor.is_neg())
    arguments = (tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.requires_grad, bits)
    return _rebuild_tensor, (type(tensor), *arguments, shared)


def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Reducer of tensors for ``ForkingPickler``; those of other devices go through to torch's own."""
    if tensor.device.type != "kunlun" or tensor.layout != torch.strided or tensor.is_nested:
        return _torch_reduce_tensor(tensor)
    return _reduce_or_report(_reduce_kunlun_tensor, tensor)


def reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """Reducer of storages: refuses those of kunlun, as torch refuses CUDA's."""
    if storage.device.type == "kunlun":
        return _reduce_or_report(_refuse_storage, storage)
    return _torch_reduce_storage(storage)


def _refuse_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    raise RuntimeError("Cannot pickle kunlun storage; try pickling a kunlun tensor instead")


def _rebuild_event(physical_id: int, handle: bytes) -> InterprocessEvent:
    for index in range(torch.kunlun.device_count()):
        if torch.kunlun.get_device_properties(index).physical_id == physical_id:
            return Event.from_ipc_handle(index, handle)
    raise RuntimeError(
        f"received an event of the card with physical number {physical_id}, which this process does not see; "
        "look at KUNLUN_VISIBLE_DEVICES"
    )


def reduce_event(event: InterprocessEvent) -> tuple[Any, ...]:
    """Reducer of events that were made with ``interprocess=True``."""
    return _reduce_or_report(_reduce_kunlun_event, event)


def _reduce_kunlun_event(event: InterprocessEvent) -> tuple[Any, ...]:
    handle = event.ipc_handle()
    return _rebuild_event, (torch.kunlun.get_device_properties(event.device).physical_id, handle)


def reduce_plain_event(event: torch.Event) -> Any:
    """Reducer of events that were not: refuses those of kunlun and leaves the others to Python."""
    if event.device.type == "kunlun":
        return _reduce_or_report(_refuse_event, event)
    return event.__reduce_ex__(4)


def _refuse_event(event: torch.Event) -> tuple[Any, ...]:
    raise TypeError("only an event made with torch.kunlun.Event(interprocess=True) can be sent to another process")


def install() -> None:
    """Registers the reducers. Called once, by the import of the package."""
    # torch's reducers of sparse and nested tensors call this name for their parts.
    reductions.reduce_tensor = reduce_tensor
    for kind in (*torch._tensor_classes, torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce_tensor)
    ForkingPickler.register(torch.UntypedStorage, reduce_storage)
    ForkingPickler.register(InterprocessEvent, reduce_event)
    ForkingPickler.register(torch.Event, reduce_plain_event)
