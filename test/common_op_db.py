"""torch's operator test-bed: which operators and samples are compared with the CPU, and how."""

from __future__ import annotations

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
OPS = [op for op in op_db if op.supports_dtype(torch.float32, "cpu") and not op.name.startswith(CUDA_ONLY)]


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
