"""torch's operator test-bed: which operators and samples are compared with the CPU, and how."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from common_move import Mover, move_kwargs
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten

# Results are random numbers or uninitialised memory: only their shape can be compared.
NO_VALUES = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric",
    "log_normal", "multinomial", "new_empty", "new_empty_strided", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "normal", "normal_", "pca_lowrank",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform",
}  # fmt: skip
# LAPACK's least squares rounds differently with the alignment of its workspace, on the CPU too.
CLOSE = {"linalg.lstsq"}
# Just-in-time CUDA source: no sample runs on the CPU.
CUDA_ONLY = ("jiterator_",)
ALL_OPS = [op for op in op_db if not op.name.startswith(CUDA_ONLY)]
OPS = [op for op in ALL_OPS if op.supports_dtype(torch.float32, "cpu")]


def name_of(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def uses_randomness(op, sample) -> bool:
    if op.name == "nn.functional.scaled_dot_product_attention":
        return sample.kwargs.get("dropout_p", 0.0) > 0
    if op.name == "nn.functional.multi_head_attention_forward":
        return sample.kwargs.get("dropout_p", 0.0) > 0 or any(isinstance(a, float) and a > 0 for a in sample.args)
    return op.name in NO_VALUES


def describe(sample) -> str:
    def one(value):
        if not isinstance(value, torch.Tensor):
            return value
        strides = list(value.stride()) if value.layout is torch.strided else value.layout
        return f"{value.dtype}{list(value.shape)}{strides}"

    leaves, _ = tree_flatten((sample.input, sample.args))
    return f"{[one(leaf) for leaf in leaves]} { ({k: one(v) for k, v in sample.kwargs.items()}) }"


def move(op, sample):
    mover = Mover()
    args = mover(sample.args)
    if op.name == "tensor_split":  # takes its indices on the host, whatever the device
        args = sample.args
    return mover(sample.input), args, move_kwargs(sample.kwargs, mover)


def same(expected, actual, values: bool, exactly: bool) -> str | None:
    """None, or what differs."""
    # A result that a non-blocking copy has put into pinned host memory is there when the device says so.
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)
    expected_leaves, expected_spec = tree_flatten(expected)
    actual_leaves, actual_spec = tree_flatten(actual)
    if len(expected_leaves) != len(actual_leaves):
        return f"{expected_spec} against {actual_spec}"
    for number, (want, got) in enumerate(zip(expected_leaves, actual_leaves, strict=True)):
        if not isinstance(want, torch.Tensor):
            if values and want != got and not (want != want and got != got):
                return f"result {number}: {want} against {got}"
            continue
        if want.layout != got.layout or want.dtype != got.dtype or want.shape != got.shape:
            return f"result {number}: {want.dtype}{list(want.shape)} against {got.dtype}{list(got.shape)}"
        if want.layout is torch.strided and want.stride() != got.stride() and want.numel() > 1:
            return f"result {number}: strides {want.stride()} against {got.stride()}"
        if values:
            try:
                tolerance = {"rtol": 0, "atol": 0} if exactly else {}
                torch.testing.assert_close(got.cpu(), want, equal_nan=True, **tolerance)
            except AssertionError as error:
                return f"result {number}: {error}"
    return None


def compare_with_cpu(op, samples: Iterable) -> None:
    """Every sample that runs on the CPU gives the same on the device; at least one does."""
    compared = 0
    problems = []
    cpu_error = None
    for sample in samples:
        moved = move(op, sample)
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:  # whatever the CPU refuses is not compared
            cpu_error = error
            continue
        finally:
            text = describe(sample)
        try:
            actual = op(moved[0], *moved[1], **moved[2])
            torch.kunlun.synchronize()  # a non-blocking copy to the host may still be under way
            difference = same(expected, actual, not uses_randomness(op, sample), op.name not in CLOSE)
        except Exception as error:  # reported below, with all other samples
            difference = f"{type(error).__name__}: {error}"
        compared += 1
        if difference:
            problems.append(f"{text}\n    {difference}")
    assert compared > 0, f"no sample runs on the CPU: {cpu_error}"
    assert not problems, f"{len(problems)} of {compared} samples differ, the first:\n  " + "\n  ".join(problems[:3])


def record(record_property, op, dtype: torch.dtype) -> None:
    """For `pytest --junitxml`, which tools/op_coverage.py reads: the operator and the dtype that the test is about."""
    record_property("operator", op.aten_name)
    record_property("dtype", str(dtype).removeprefix("torch."))


def known_failures(name: str) -> dict[str, str]:
    """Cases that do not pass, from a file beside this one's tests: case -> reason and link.

    A line is ``case | reason | link``; empty lines and lines that begin with # are left out.
    """
    cases = {}
    for number, line in enumerate((Path(__file__).parent / "aten" / name).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{name}:{number}: expected `case | reason | link`, found {line!r}")
        cases[parts[0]] = f"{parts[1]} ({parts[2]})"
    return cases
