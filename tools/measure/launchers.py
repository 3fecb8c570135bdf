# Operators whose launchers are generated, for timing what a call costs its caller: each on small tensors of float32.
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

UNARY = (
    "acos", "asinh", "atan", "ceil", "cosh", "digamma", "erf", "exp2", "expm1", "floor", "frac", "lgamma", "log",
    "log1p", "reciprocal", "round", "sign", "sqrt", "tan", "trunc",
)  # fmt: skip
BINARY = ("atan2", "copysign", "eq", "fmax", "hypot", "lt", "maximum")


@dataclass(frozen=True)
class Case:
    """An operator of torch's, the function that calls it, and how many tensors and which numbers that takes."""

    overload: str
    function: Callable[..., Any]
    tensors: int
    numbers: tuple[float, ...] = ()


def cases() -> list[Case]:
    """Thirty operators: pointwise with one and two operands, comparisons, and others with a number."""
    import torch

    named = {"copysign": "copysign.Tensor", "eq": "eq.Tensor", "lt": "lt.Tensor"}
    return [
        *(Case(f"aten::{name}", getattr(torch, name), 1) for name in UNARY),
        *(Case(f"aten::{named.get(name, name)}", getattr(torch, name), 2) for name in BINARY),
        Case("aten::cumsum", torch.cumsum, 1, (0,)),
        Case("aten::leaky_relu", torch._C._nn.leaky_relu, 1, (0.1,)),
        Case("aten::lerp.Scalar", torch.lerp, 2, (0.5,)),
    ]


def not_generated(overloads: list[str]) -> list[str]:
    """Those that have no generated launcher, which would make the comparison one of something else."""
    from torch_xpu_kunlun import tiers

    found = {name: tiers.registration(name) for name in overloads}
    return [name for name, own in found.items() if own is None or "generated/launchers" not in own.source]
