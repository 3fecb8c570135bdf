"""SGLang's own custom operators (``torch.ops.sglang.*``, collectives above all) on this device.

SGLang registers them for CUDA unless it knows the device. Their kernels are Python functions that fit any device, so
the same functions are registered for this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMESPACE = "sglang"
_KEY = "PrivateUse1"
# A registration lives as long as its library object.
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")


def _forwarding(op: torch._ops.OpOverload) -> Callable[..., Any]:
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(cuda, *args, **kwargs)

    return kernel


def _register(name: str) -> None:
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"{_NAMESPACE}::{name}", _KEY):
        return
    base, _, overload = name.partition(".")
    op = getattr(getattr(getattr(torch.ops, _NAMESPACE), base), overload or "default")
    _library.impl(name, _forwarding(op), _KEY)


def register_existing() -> None:
    """Registers every operator that SGLang has registered for CUDA so far."""
    prefix = f"{_NAMESPACE}::"
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        if name.startswith(prefix):
            _register(name.removeprefix(prefix))


def after_direct_register(result: Any, op_name: str, *args: Any, **kwargs: Any) -> None:
    """Hook: what SGLang registers later, as models and layers are imported."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"{_NAMESPACE}::{op_name}", "CUDA"):
        _register(op_name)
