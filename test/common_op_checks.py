"""Checks of torch's operator test-bed: one action, done on the CPU and on the device, has the same outcome.

A kind of check is an action: a function of an operator and a `Side`, which has the inputs of one sample on one device.
What the action returns on the CPU is what it must return on the device: tensors bit for bit, with their strides and
dtypes. What the CPU refuses is not compared, unless the action itself catches the error (`Side.attempt`):
then the device must refuse it too, with the same exception.

`cases` gives each kind its operators and dtypes: all of them in the whole sweep, a sample chosen by a hash of the
name in the quick suite. What does not pass is a line of `aten/op_db_skips.txt`; a case of such a line that passes fails
the suite. `check` records what it did for the table of rates (tools/op_rates.py).
"""

from __future__ import annotations

import fnmatch
import itertools
import random
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import common_move
import numpy
import pytest
import torch
from common_op_db import ALL_OPS, EXACT, describe, move, name_of, same, short, tolerance_of, uses_randomness
from torch.utils._pytree import tree_flatten, tree_map

SKIPS = Path(__file__).parent / "aten" / "op_db_skips.txt"


class NothingToCheck(Exception):
    """This sample has nothing for this kind of check."""


@dataclass(frozen=True)
class Refused:
    """An error that an action caught, comparable between devices."""

    error: type
    text: str


# What may differ in the text of an error.
DIFFERENCES = [
    # What the device adds when a kernel failed after its call had returned.
    (r" \(aten::\S+, device .*\)$", ""),
    # torch's legacy names of tensor types hold the device.
    (r"\btorch\.(\w+)Tensor\b|\b(?:CPU|kunlun)(\w+)Type\b", r"<\1\2 tensor>"),
    (r"\b(cpu|CPU|kunlun(:\d+)?|PrivateUse1|privateuseone(:\d+)?)", "<device>"),
    # A kernel's private name: the device may reach the same result by another kernel of torch.
    (r'^"\w+" not implemented', "not implemented"),
]


def comparable(text: str) -> str:
    """The first line of an error, without what may differ between devices."""
    line = text.strip().partition("\n")[0]
    for pattern, replacement in DIFFERENCES:
        line = re.sub(pattern, replacement, line)
    return line


def synchronize() -> None:
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)


class Side:
    """One sample on one device. Both sides draw the same random numbers in the same order."""

    def __init__(self, op, sample, device: str):
        self.op = op
        self.sample = sample
        self.device = device
        self._generator = torch.Generator().manual_seed(0)

    def inputs(self):
        """Fresh copies of input, arguments and keyword arguments, with the sample's strides, sharing, requires_grad."""
        return move(self.op, self.sample, self.device)

    def draw(self, like: torch.Tensor) -> torch.Tensor:
        """Random numbers of the tensor's shape and dtype, contiguous, where it is."""
        dtype = torch.complex64 if like.dtype.is_complex else torch.float32
        made = torch.randn(like.shape, generator=self._generator, dtype=dtype)
        return made.to(like.dtype).to(like.device)

    def attempt(self, function: Callable, *args, **kwargs):
        """What the function returns, or its error, as something to compare."""
        try:
            result = function(*args, **kwargs)
            synchronize()  # a kernel's own error comes now, and not with the next call
            return result
        except Exception as error:
            refusal = error
        try:
            synchronize()
        except Exception as error:  # an earlier kernel of this function failed; on the CPU it was the first to be seen
            refusal = error
        return Refused(type(refusal), comparable(str(refusal)))


def tensors_of(value) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def map_tensors(function: Callable, value):
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def record(record_property, kind: str, op, dtype: torch.dtype) -> None:
    """What the test is about, for the table of rates (tools/op_rates.py) and for tools/op_coverage.py."""
    record_property("kind", kind)
    record_property("operator", getattr(op, "aten_name", None) or name_of(op))
    record_property("dtype", short(dtype))


def outcome(action: Callable, side: Side):
    """(result, None) or (None, error)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = action(side.op, side)
            synchronize()
    except Exception as error:
        return None, error
    return result, None


def elsewhere(results, sample) -> str | None:
    """What is on another device than the tests' tensors, the host included."""
    device = torch.device(common_move.DEVICE)
    if not tensors_of((sample.input, sample.args, sample.kwargs)) and "device" not in sample.kwargs:
        return None  # a factory that was not told where
    for tensor in tensors_of(results):
        if (tensor.device.type, tensor.device.index) != (device.type, device.index or 0):
            return f"a result is on {tensor.device}"
    return None


def check(kind: str, op, dtype, samples: Iterable, action: Callable, record_property, tolerance=EXACT) -> None:
    """Does the action with every sample on both devices; fails if an outcome differs."""
    record(record_property, kind, op, dtype)
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    compared = refused = 0
    problems = []
    for sample in samples:
        expected, refusal = outcome(action, Side(op, sample, "cpu"))
        if isinstance(refusal, (AttributeError, NameError, AssertionError)):
            raise refusal  # a mistake of the check, no refusal
        if refusal is not None:
            refused += not isinstance(refusal, NothingToCheck)
            continue
        actual, error = outcome(action, Side(op, sample, common_move.DEVICE))
        if error is not None:
            difference = f"{type(error).__name__}: {error}"
        else:
            difference = same(expected, actual, not uses_randomness(op, sample), tolerance_of(op, tolerance))
        difference = difference or elsewhere(actual, sample)
        if not difference and torch.kunlun.current_device() != 0:
            difference = f"left the current device set to {torch.kunlun.current_device()}"
            torch.kunlun.set_device(0)
        compared += 1
        if difference:
            problems.append(f"{describe(sample)}\n    {difference}")
    record_property("compared", compared)
    record_property("refused", refused)
    assert not problems, f"{len(problems)} of {compared} samples differ, the first:\n  " + "\n  ".join(problems[:3])


def known_failures(path: Path = SKIPS) -> dict[tuple[str, str], str]:
    """Cases that do not pass: kind and pattern of ``operator-dtype`` -> reason and link.

    A line is ``kind + kind ...: pattern | reason | link``.
    """
    cases = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or not all(parts) or "http" not in parts[2]:
            raise ValueError(f"{path.name}:{number}: expected `kinds: pattern | reason | link`, found {line!r}")
        kinds, _, pattern = parts[0].partition(": ")
        cases |= {(kind, pattern): f"{parts[1]} ({parts[2]})" for kind in kinds.split(" + ")}
    return cases


KNOWN_FAILURES = known_failures()


def known_failure(kind: str, name: str) -> str | None:
    found = (why for (k, pattern), why in KNOWN_FAILURES.items() if k == kind and fnmatch.fnmatchcase(name, pattern))
    return next(found, None)


def chosen(kind: str, name: str, share: float) -> bool:
    """Whether a case is part of the quick suite, the same in every run and on every machine."""
    return zlib.crc32(f"{kind} {name}".encode()) % 10000 < share * 10000


# Set where the quick suite alone is wanted: to make the other 60,000 cases and deselect them takes ten seconds.
QUICK_ONLY = False


def parameters(kind: str, pairs: Iterable, quick: float) -> Iterator:
    for op, dtype in pairs:
        name = f"{name_of(op)}-{short(dtype)}"
        in_quick = chosen(kind, name, quick)
        if QUICK_ONLY and not in_quick:
            continue
        reason = known_failure(kind, name)
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        if not in_quick:
            marks.append(pytest.mark.full)
        yield pytest.param(op, dtype, id=name, marks=marks)


def cases(kind: str, dtypes: Callable, ops=ALL_OPS, quick: float = 0.01):
    """Parametrises a test with operators and dtypes; `quick` is the share that the quick suite takes.

    `dtypes` gives those in which an operator is checked: a sequence, empty if the check does not apply to it.
    """
    pairs = [(op, dtype) for op in ops for dtype in sorted(dtypes(op), key=str)]
    return pytest.mark.parametrize(("op", "dtype"), list(parameters(kind, pairs, quick)))


def cpu_dtypes(op) -> set[torch.dtype]:
    return set(op.dtypes)


def gradient_dtypes(op) -> set[torch.dtype]:
    if not op.supports_autograd:
        return set()
    return {d for d in op.supported_backward_dtypes("cpu") if d.is_floating_point or d.is_complex}


def some(samples: Iterable, dtype: torch.dtype, few: int, many: int) -> Iterator:
    """Samples of a case: `many` in float32, `few` in the other dtypes."""
    return itertools.islice(samples, many if dtype is torch.float32 else few)
