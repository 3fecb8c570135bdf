"""torch's operator test-bed: which operators there are, how their inputs reach the device, what counts as the same."""

from __future__ import annotations

from collections.abc import Iterable

import common_move
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
EXACT = {"rtol": 0, "atol": 0}
ROUNDED = {"rtol": 1.3e-6, "atol": 1e-5}  # torch's own of float32, for results that are put into a float64 `out` too
# Just-in-time CUDA source: no sample runs on the CPU.
CUDA_ONLY = ("jiterator_",)
ALL_OPS = [op for op in op_db if not op.name.startswith(CUDA_ONLY)]
OPS = [op for op in ALL_OPS if op.supports_dtype(torch.float32, "cpu")]


def name_of(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tolerance_of(op, usual: dict = EXACT) -> dict:
    """Bit for bit, with few exceptions."""
    return ROUNDED if op.name in CLOSE else usual


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


def move(op, sample, device: str | None = None):
    """Copies of a sample's input, arguments and keyword arguments on the device, or on the CPU."""
    mover = Mover(device or common_move.DEVICE)
    args = mover(sample.args)
    if op.name == "tensor_split":  # takes its indices on the host, whatever the device
        args = Mover("cpu")(sample.args)
    if op.name == "to":  # names its device by a string
        args = tuple(mover.device if arg == "cpu" else arg for arg in args)
    return mover(sample.input), args, move_kwargs(sample.kwargs, mover)


def same_bits(want: torch.Tensor, got: torch.Tensor) -> bool:
    """Quick and sufficient: every byte is the same."""
    if want.layout is not torch.strided or want.numel() < 2 or want.is_conj() or want.is_neg():
        return False
    want, got = want.detach().contiguous(), got.detach().contiguous()
    return torch.equal(want.reshape(-1).view(torch.uint8), got.reshape(-1).view(torch.uint8))


def same_tensor(want: torch.Tensor, got: torch.Tensor, values: bool, tolerance: dict) -> str | None:
    if want.layout != got.layout or want.dtype != got.dtype or want.shape != got.shape:
        return f"{want.layout} {want.dtype}{list(want.shape)} against {got.layout} {got.dtype}{list(got.shape)}"
    if want.layout is torch.strided and want.stride() != got.stride() and want.numel() > 1:
        return f"strides {want.stride()} against {got.stride()}"
    if not values:
        return None
    host = got.cpu()
    if same_bits(want, host):
        return None
    try:
        torch.testing.assert_close(host, want, equal_nan=True, **tolerance)
    except AssertionError as error:
        return str(error)
    return None


def same(expected, actual, values: bool, tolerance: dict = EXACT) -> str | None:
    """None, or what differs."""
    # A result that a non-blocking copy has put into pinned host memory is there when the device says so.
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)
    expected_leaves, expected_spec = tree_flatten(expected)
    actual_leaves, actual_spec = tree_flatten(actual)
    if expected_spec != actual_spec:
        return f"{expected_leaves} against {actual_leaves}"
    for number, (want, got) in enumerate(zip(expected_leaves, actual_leaves, strict=True)):
        if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
            difference = same_tensor(want, got, values, tolerance)
            if difference:
                return f"result {number}: {difference}"
        elif type(want) is not type(got) or (values and want != got and not (want != want and got != got)):
            return f"result {number}: {want} against {got}"
    return None


def compare_with_cpu(op, samples: Iterable) -> int:
    """Every sample that runs on the CPU gives the same on the device; at least one does. Returns how many ran."""
    compared = 0
    problems = []
    cpu_error = None
    for sample in samples:
        moved = move(op, sample)
        text = describe(sample)
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:  # whatever the CPU refuses is not compared
            cpu_error = error
            continue
        try:
            actual = op(moved[0], *moved[1], **moved[2])
            difference = same(expected, actual, not uses_randomness(op, sample), tolerance_of(op))
        except Exception as error:  # reported below, with all other samples
            difference = f"{type(error).__name__}: {error}"
        compared += 1
        if difference:
            problems.append(f"{text}\n    {difference}")
    assert compared > 0, f"no sample runs on the CPU: {cpu_error}"
    assert not problems, f"{len(problems)} of {compared} samples differ, the first:\n  " + "\n  ".join(problems[:3])
    return compared
