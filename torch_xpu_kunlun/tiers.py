"""Which tier serves an operator, and whether the chip has a kernel: asked of what is registered and of the driver.

A tier is one of

========== ============================================================================================
none       nothing to compute: views, memory, questions about a tensor
launcher   the chip's own kernel, asynchronous
host_call  the same launch, but the driver has no kernel: the host's runs on the chip's thread
boxed      the host's kernel on the device's memory, the caller waits
fallback   the host's kernel on copies, under the policy of ``KUNLUN_FALLBACK``
composite  torch builds it from other operators, which have tiers of their own
missing    nobody can compute it for the device: torch raises ``NotImplementedError``
========== ============================================================================================
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from torch_xpu_kunlun import _C

__all__ = ["SLOWER", "Registration", "Service", "is_view", "overload_named", "registration", "service", "slowest"]

#: Tiers in which something is computed, each slower than those before it.
SLOWER = ("launcher", "host_call", "boxed", "fallback", "missing")

_KEY = "PrivateUse1"
_COMPOSITES = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd", "CompositeImplicitAutograd")

# What the rule of `launched_operators` does not find: launchers that put others than their own on the stream ...
_LAUNCHED = {
    "aten::eye.out": ("aten::eye.m_out",),
    "aten::max": ("aten::amax.out",),
    "aten::min": ("aten::amin.out",),
    "aten::relu": ("aten::clamp_min.out",),
    "aten::relu_": ("aten::clamp_min.out",),
    "aten::rsub.Tensor": ("aten::sub.out",),
    "aten::native_dropout": ("aten::bernoulli_.float", "aten::mul.out"),
    "aten::native_dropout_backward": ("aten::mul.out",),
    "aten::_thnn_fused_lstm_cell": ("aten::sigmoid.out", "aten::tanh.out", "aten::mul.out", "aten::add.out"),
    "aten::_thnn_fused_lstm_cell_backward_impl": ("aten::sigmoid_backward.grad_input", "aten::mul.out"),
    "aten::_thnn_fused_gru_cell": ("aten::sigmoid.out", "aten::tanh.out", "aten::mul.out", "aten::add.out"),
    "aten::_thnn_fused_gru_cell_backward": ("aten::sigmoid_backward.grad_input", "aten::mul.out"),
    "aten::_copy_from": ("aten::copy_",),
    "aten::_copy_from_and_resize": ("aten::copy_",),
    "kunlun::cutlass_scaled_mm": ("kunlun::scaled_mm_int8",),
}
# ... those that go on in the boxed tier, and under which name ...
_BOXED_INSIDE = {
    "aten::convolution_overrideable": "aten::convolution",
    "aten::convolution_backward_overrideable": "aten::convolution_backward",
    "aten::conj_physical_": "aten::conj_physical.out",
}
# ... the dtypes in which launchers without a meta function are launchers, if shapes and strides are alike too ...
_ALIKE = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
# ... and those that only hand out memory. The test over torch's operator database compares all of them with what runs.
_MEMORY = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::resize_", "aten::set_", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::_efficientzerotensor",
    "aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized", "aten::_nested_from_padded",
    "aten::record_stream",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Service:
    """How an operator is served: the tier, and the operator of the chip's table that its kernel is looked up by."""

    tier: str
    chip_operator: str | None = None
    chip_kernel: bool = False


def slowest(tiers: Sequence[str]) -> str:
    """The slowest of some tiers; ``none`` if nothing was computed."""
    known = [tier for tier in tiers if tier in SLOWER]
    return max(known, key=SLOWER.index) if known else "none"


def overload_named(qualified: str) -> OpOverload:
    """``"aten::add.Tensor"`` as ``torch.ops.aten.add.Tensor``."""
    namespace, _, name = qualified.partition("::")
    name, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def is_view(op: OpOverload) -> bool:
    """Whether a result aliases an argument that the operator does not write."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def composite_key(op: OpOverload) -> torch.DispatchKey | None:
    """The key of torch's own composite kernel, if that is what runs on the device."""
    if registration(op.name()) is not None:
        return None
    for key in _COMPOSITES:
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key):
            return getattr(torch.DispatchKey, key)
    return None


def service(op: OpOverload, dtypes: Sequence[torch.dtype] = (), device: int = 0) -> Service:
    """How calls with tensors of these dtypes (arguments, then results) are served on ``kunlun:<device>``.

    A kernel that takes no part in the chip's table, because it does its work by calling other operators, has no
    ``chip_operator``. Raises what opening the device raises.
    """
    own = registration(op.name())
    if own is None:
        if is_view(op):
            return Service("none")
        if composite_key(op) is not None:
            return Service("composite")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU"):
            return Service("missing")
    addressable = torch.kunlun.get_device_properties(device).is_host_addressable
    if own is None or own.kind == "boxed":  # without a kernel of its own, the fallback of the dispatch key
        if _has_kernel(op.name(), dtypes):
            return Service("launcher", op.name(), True)
        return Service("boxed" if addressable else "fallback", op.name(), False)
    launched = launched_operators(op)
    if not launched:
        return Service("none")
    if "generated/launchers_alike" in own.source and not _are_alike(dtypes):
        return Service("boxed" if addressable else "fallback", op.name(), False)
    if op.name() in _BOXED_INSIDE and not _has_kernel(launched[0], dtypes):
        return Service("boxed" if addressable else "fallback", launched[0], False)
    for name in launched:
        if not _has_kernel(name, dtypes):
            return Service("host_call" if addressable else "fallback", name, False)
    return Service("launcher", launched[0], True)


def _are_alike(dtypes: Sequence[torch.dtype]) -> bool:
    """Whether they may be those of a call with floating-point operands; a result may hold truth values."""
    found = set(dtypes)
    return not found or (found != {torch.bool} and found - {torch.bool} <= _ALIKE)


def _has_kernel(name: str, dtypes: Sequence[torch.dtype]) -> bool:
    # The interface has no number for quantised and sub-byte dtypes; tensors of those never reach the chip's table.
    known = [dtype for dtype in dtypes if not str(dtype).startswith(("torch.q", "torch.bits"))]
    return len(known) == len(dtypes) and _C._chip_has_operator(name, list(dtypes))


@dataclasses.dataclass(frozen=True)
class Registration:
    """A kernel that is registered for the device."""

    kind: str  # launcher or boxed
    source: str  # file and line of the registration


@functools.cache
def registration(name: str) -> Registration | None:
    """What is registered for the device under the operator's own name; None where nothing is."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, _KEY):
        return None
    for line in torch._C._dispatch_dump(name).splitlines():
        if line.startswith(f"{_KEY}: "):
            source = line.removeprefix(f"{_KEY}: registered at ").partition(" :: ")[0]
            # The boxed tier is one function for all operators; launchers have the operator's own signature.
            return Registration("launcher" if line.endswith("[ boxed unboxed ]") else "boxed", source)
    raise RuntimeError(f"torch's dispatcher shows no kernel of {name} for {_KEY}, although it has one")


@functools.cache
def launched_operators(op: OpOverload) -> tuple[str, ...]:
    """What a launcher puts on the stream, by the names of the chip's table; nothing for views and questions."""
    name = op.name()
    if name in _BOXED_INSIDE:
        return (_BOXED_INSIDE[name],)
    if name in _LAUNCHED:
        return _LAUNCHED[name]
    schema = op._schema
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    if name in _MEMORY or is_view(op) or not (writes or any("Tensor" in str(r.type) for r in schema.returns)):
        return ()
    # Results of known shape are computed under the name of the out variant, unless the operator has an entry itself;
    # out and in-place variants of operators from outside torch under the name of the functional one.
    functional = schema.name.removesuffix("_")
    for candidate in (name, *_out_variants(op), functional):
        if _C._chip_has_operator(candidate, []):
            return (candidate,)
    return (*_out_variants(op), name)[:1]


def _out_variants(op: OpOverload) -> list[str]:
    """The out variant of the same operator: results of known shape are computed under its name."""

    def inputs(schema):
        return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]

    namespace, _, base = op._schema.name.partition("::")
    # In-place operators end with an underscore.
    packet = getattr(getattr(torch.ops, namespace), base.removesuffix("_"), None)
    if packet is None:
        return []
    variants = []
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        if any(a.is_out for a in schema.arguments) and inputs(schema) == inputs(op._schema):
            variants.append(f"{schema.name}.{overload}")
    return variants
