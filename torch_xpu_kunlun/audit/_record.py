"""Notes every operator that reaches the device while a model runs, with its dtypes, shapes, tier and time."""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_xpu_kunlun import _C, tiers

DEVICE = "kunlun"


@dataclasses.dataclass
class Usage:
    """One operator with one combination of dtypes."""

    operator: str  # aten::add.Tensor
    dtypes: tuple[str, ...]  # of its tensor arguments
    tier: str
    chip_operator: str | None  # what the chip's table is asked for; None where nothing is launched or several are
    chip_kernel: bool
    calls: int = 0
    seconds: float | None = None  # from the call until the device has done it; None on fake tensors
    shapes: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # shapes of a call -> calls

    def as_dict(self) -> dict[str, Any]:
        """For JSON: shapes become a list of {"shapes": ..., "calls": ...}, the most frequent first."""
        result = dataclasses.asdict(self)
        result["shapes"] = [
            {"shapes": [list(shape) for shape in shapes], "calls": calls} for shapes, calls in self.shapes.most_common()
        ]
        return result


class Recorder(TorchDispatchMode):
    """A mode, so that it also sees fake tensors, and goes along into backward.

    On fake tensors, a composite operator of torch is taken apart, as the real device would do below this mode, and the
    tier follows from what is registered. On real ones the tier is what has served the call.
    """

    def __init__(self, fake: bool):
        super().__init__()
        self.fake = fake
        self._noted = 0
        self._inside: list[OpOverload] = []  # composites that are being taken apart
        self._usages: dict[tuple, Usage] = {}

    def __torch_dispatch__(self, func: OpOverload, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "prim":  # questions of the interpreter, which no device answers
            return func(*args, **kwargs)
        return self._on_fake(func, args, kwargs) if self.fake else self._on_device(func, args, kwargs)

    def take(self, other: Recorder) -> None:
        """Makes what `other` has noted this one's own."""
        self._usages = other._usages

    def usages(self) -> list[Usage]:
        """The slowest tiers first; within a tier by time, else by calls."""
        order = {tier: number for number, tier in enumerate(reversed(tiers.SLOWER))}
        return sorted(
            self._usages.values(),
            key=lambda u: (order.get(u.tier, len(order)), -(u.seconds or 0), -u.calls, u.operator),
        )

    def _on_fake(self, func: OpOverload, args: tuple, kwargs: dict) -> Any:
        key = tiers.composite_key(func)
        if key is not None and not tiers.is_view(func) and func not in self._inside and self._takes_apart(args, kwargs):
            return self._take_apart(func, key, args, kwargs)
        result = func(*args, **kwargs)
        if _on_the_device((args, kwargs, result)):
            self._note(func, args, kwargs, tiers.service(func, [t.dtype for t in _tensors((args, kwargs, result))]))
        return result

    def _take_apart(self, func: OpOverload, key: torch.DispatchKey, args: tuple, kwargs: dict) -> Any:
        noted = self._noted
        self._inside.append(func)
        try:
            with self:
                result = func._op_dk(key, *args, **kwargs)
        finally:
            self._inside.pop()
        if all(isinstance(t, FakeTensor) for t in _tensors(result)):
            return result
        # It has made a tensor without calling an operator, so that what it returns is fake no more.
        result = func(*args, **kwargs)
        if self._noted == noted:
            self._note(func, args, kwargs, tiers.Service("none"))
        return result

    def _takes_apart(self, args: tuple, kwargs: dict) -> bool:
        return _on_the_device((args, kwargs)) or DEVICE in str(kwargs.get("device"))

    def _on_device(self, func: OpOverload, args: tuple, kwargs: dict) -> Any:
        if not _on_the_device((args, kwargs)) and DEVICE not in str(kwargs.get("device")):
            return func(*args, **kwargs)
        torch.kunlun.synchronize()
        _C._start_operator_trace()
        begin = time.perf_counter()
        try:
            result = func(*args, **kwargs)
        finally:
            trace = _C._stop_operator_trace()
        torch.kunlun.synchronize()
        seconds = time.perf_counter() - begin
        tier = tiers.slowest([tier for tier, _ in trace])
        launched = {name for _, name in trace}
        chip_operator = launched.pop() if len(launched) == 1 else None
        self._note(func, args, kwargs, tiers.Service(tier, chip_operator, tier == "launcher"), seconds)
        return result

    def _note(self, func, args, kwargs, service: tiers.Service, seconds: float | None = None) -> None:
        self._noted += 1
        tensors = _tensors((args, kwargs))
        dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in tensors)
        key = (func.name(), dtypes, service)
        usage = self._usages.setdefault(
            key, Usage(func.name(), dtypes, service.tier, service.chip_operator, service.chip_kernel)
        )
        usage.calls += 1
        usage.shapes[tuple(_shape(t) for t in tensors)] += 1
        if seconds is not None:
            usage.seconds = (usage.seconds or 0.0) + seconds


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _shape(tensor: torch.Tensor) -> tuple:
    """Sizes that follow from values have names on fake tensors."""
    return tuple(str(n) if isinstance(n, torch.SymInt) else n for n in tensor.shape)


def _on_the_device(values: Any) -> bool:
    return any(t.device.type == DEVICE for t in _tensors(values))
