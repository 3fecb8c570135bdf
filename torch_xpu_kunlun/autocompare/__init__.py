"""``KUNLUN_AUTOCOMPARE=1``: the result of every operator is compared with the CPU's as it runs.

A Python kernel takes the place of every kernel that is registered for the device. It copies the arguments to the host,
calls the kernel that was there, calls the CPU's on the copies, and compares results and changed arguments: bit for bit
where ATen's CPU kernel computed both (tiers ``host_call``, ``boxed`` and ``fallback``) with one thread, within the
tolerances of ``torch.testing.assert_close`` where the chip has a kernel of its own or several threads share the sums.

Why not a ``TorchDispatchMode``: a mode belongs to a thread and is off inside other modes, so it misses what the user's
own threads launch, and it sees a composite operator but not the steps that it takes. A kernel at the device's dispatch
key sees all that reaches the device, on every thread, below autograd and so also in backward, and what it raises
arrives at the line that made the call. Calls cost nothing where the variable is not set.

What is not compared is listed in ``_exceptions.py``, each with its reason; operators that a library registers later,
and custom operators that have a CPU kernel only and so run that one, are not seen.
"""

from __future__ import annotations

import atexit
import collections
import sys
import threading
import traceback
import warnings
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.autocompare._case import save_case
from torch_xpu_kunlun.autocompare._copies import host_copies, number, with_numbers_wrapped
from torch_xpu_kunlun.autocompare._exceptions import (
    COMPARED_RESULTS,
    COUNTERPARTS,
    NEVER_EXACT,
    NotComparable,
    reason_not_to_compare,
    written_arguments,
)

__all__ = ["COUNTERPARTS", "AutocompareMismatch", "AutocompareWarning", "number", "report"]

_KEYS = ("PrivateUse1", "SparsePrivateUse1", "SparseCsrPrivateUse1")


class AutocompareMismatch(AssertionError):
    """An operator gave another result on the device than on the CPU. The text names the operator, its arguments, the
    difference, and the program that repeats the call."""


class AutocompareWarning(UserWarning):
    """The same, with ``KUNLUN_AUTOCOMPARE=warn``."""


class _Comparison:
    """What has been compared in this process, and what happens where it differs."""

    def __init__(self, folder: str, raises: bool):
        self.folder, self.raises = folder, raises
        self.lock = threading.Lock()  # guards the counts
        self.compared: collections.Counter = collections.Counter()
        self.not_compared: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        self.differing: collections.Counter = collections.Counter()
        self.busy = threading.local()  # .here: this thread compares, and what it calls is not compared again
        self.libraries: list[torch.library.Library] = []  # registrations end with their library

    def skip(self, op: OpOverload, reason: str) -> None:
        with self.lock:
            self.not_compared[op.name()][reason] += 1

    def kernel(self, op: OpOverload, original):
        """The kernel that takes the place of `original`."""

        def compared(keys, *args, **kwargs):
            if getattr(self.busy, "here", False):
                return self.original(op, original, keys, args, kwargs)
            self.busy.here = True
            try:
                return self.call(op, original, keys, args, kwargs)
            finally:
                self.busy.here = False

        return compared

    @staticmethod
    def original(op: OpOverload, kernel, keys, args: tuple, kwargs: dict) -> Any:
        args, kwargs = with_numbers_wrapped(op, args, kwargs)
        return kernel.call_boxed(keys, *args, **kwargs)

    def call(self, op: OpOverload, original, keys, args: tuple, kwargs: dict) -> Any:
        try:
            copies = host_copies((args, kwargs))
            before = host_copies(copies)
        except (NotImplementedError, torch.OutOfMemoryError) as error:  # such as nested tensors, which have no strides
            self.skip(op, f"the arguments cannot be copied to the host: {error}")
            return self.original(op, original, keys, args, kwargs)
        _C._start_operator_trace()
        try:
            result = self.original(op, original, keys, args, kwargs)
        finally:
            trace = _C._stop_operator_trace()
        for index in range(torch.kunlun.device_count()):
            torch.kunlun.synchronize(index)  # the call's own failure is raised here, at the call
        counterpart = COUNTERPARTS.get(op._schema.name, op)
        copies = with_numbers_wrapped(op, *copies)
        try:
            expected = counterpart(*copies[0], **copies[1])
        except NotComparable as error:
            self.skip(op, str(error))
            return result
        except Exception as error:  # what the CPU refuses cannot be compared; it is counted, and report() shows it
            self.skip(op, f"the CPU refuses it: {type(error).__name__}: {error}".splitlines()[0])
            return result
        # With several threads, sums may be split differently by the same kernel.
        same_kernel = bool(trace) and all(tier != "launcher" for tier, _ in trace)
        name = op._schema.name.partition("::")[2]
        exact = same_kernel and torch.get_num_threads() == 1 and name not in NEVER_EXACT
        if name in COMPARED_RESULTS:
            expected = expected[: COMPARED_RESULTS[name]]
        difference = _difference(
            [expected, written_arguments(op, *copies)], [result, written_arguments(op, args, kwargs)], exact
        )
        with self.lock:
            self.compared[op.name()] += 1
            if difference is None:
                return result
            self.differing[op.name()] += 1
            first = self.differing[op.name()] == 1
        if self.raises or first:
            self.tell(op, (args, kwargs), before, exact, trace, difference)
        return result

    def tell(self, op: OpOverload, originals, before, exact: bool, trace, difference: str) -> None:
        path = save_case(self.folder, op, originals, before, exact)
        served = ", ".join(f"{name} ({tier})" for tier, name in trace) or "nothing was launched"
        text = (
            f"{op.name()} gave another result on kunlun than on the CPU.\n{difference}\n"
            f"Arguments: {_describe(before)}\nServed by: {served}\nTo repeat it: python {path}"
        )
        if self.raises:
            raise AutocompareMismatch(text)
        stack = "".join(traceback.format_stack(limit=8)[:-3])
        warnings.warn(f"{text}\nCalled from:\n{stack}", AutocompareWarning, stacklevel=2)


def _difference(expected: Any, actual: Any, exact: bool) -> str | None:
    """None, or what differs. Results that only the device's operator has are left out."""
    # A counterpart on the CPU may return fewer results.
    if isinstance(expected[0], list | tuple) and isinstance(actual[0], list | tuple):
        actual = [actual[0][: len(expected[0])], actual[1]]
    wanted, got = tree_flatten(expected)[0], tree_flatten(actual)[0]
    if len(wanted) != len(got):
        return f"{len(got)} results against {len(wanted)}"
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    for index, (want, have) in enumerate(zip(wanted, got, strict=True)):
        if isinstance(want, torch.Tensor) and isinstance(have, torch.Tensor):
            try:
                torch.testing.assert_close(
                    have.detach().cpu(), want.detach(), equal_nan=True, check_stride=False, **tolerance
                )
            except AssertionError as error:
                return f"Result {index}: {error}"
        elif want != have and not (want != want and have != have):
            return f"Result {index}: {have} against {want}"
    return None


def _describe(values: Any) -> str:
    def one(value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        strides = f" strides {list(value.stride())}" if value.layout is torch.strided else f" {value.layout}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"

    args, kwargs = values
    leaves = [one(leaf) for leaf in tree_flatten(list(args))[0]]
    return ", ".join(leaves + [f"{name}={', '.join(map(one, tree_flatten(v)[0]))}" for name, v in kwargs.items()])


_installed: list[_Comparison] = []  # at most one


def _overload(qualified: str) -> OpOverload | None:
    """None for an operator that has kernels and is not declared: torch declares some in modules that are imported late,
    those over symmetric memory, which have nothing to be compared with."""
    namespace, _, name = qualified.partition("::")
    name, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name, None), overload or "default", None)


def install(folder: str, raises: bool = True) -> None:
    """Compares from now on, for the life of the process. The import calls it with what the variables say."""
    if _installed:
        raise RuntimeError("operators are compared already")
    comparison = _Comparison(folder, raises)
    _C._disable_autograd_shortcuts()  # they would pass by the kernels that are replaced here
    libraries: dict[str, torch.library.Library] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*other operators may also be overridden")
        for name in torch._C._dispatch_get_all_op_names():
            keys = [key for key in _KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
            if not keys or (op := _overload(name)) is None or reason_not_to_compare(op) is not None:
                continue
            namespace, _, rest = name.partition("::")
            library = libraries.setdefault(namespace, torch.library.Library(namespace, "IMPL"))
            for key in keys:
                original = torch.library.get_kernel(name, key)
                library.impl(rest, comparison.kernel(op, original), key, with_keyset=True, allow_override=True)
    comparison.libraries = list(libraries.values())
    _installed.append(comparison)
    atexit.register(lambda: print(_summary(), file=sys.stderr))


def report() -> dict[str, Any]:
    """What was compared so far.

    ``compared`` and ``differing`` map operators to numbers of calls; ``not_compared`` maps operators to reasons and
    these to numbers of calls. RuntimeError where nothing is compared, because ``KUNLUN_AUTOCOMPARE`` is not set.
    """
    if not _installed:
        raise RuntimeError("operators are not compared: set KUNLUN_AUTOCOMPARE=1 before the import")
    comparison = _installed[0]
    with comparison.lock:
        return {
            "compared": dict(comparison.compared),
            "differing": dict(comparison.differing),
            "not_compared": {op: dict(reasons) for op, reasons in comparison.not_compared.items()},
        }


def _summary() -> str:
    counts = report()
    total, differing = sum(counts["compared"].values()), sum(counts["differing"].values())
    skipped = sum(sum(reasons.values()) for reasons in counts["not_compared"].values())
    return (
        f"kunlun: {total} calls of {len(counts['compared'])} operators compared with the CPU, {differing} differed; "
        f"{skipped} calls could not be compared"
    )
