"""How operators reach the chip: counts by tier, and what happens to those that the chip has no kernel for.

An operator takes one of three ways: a *launcher* packs the call and returns while the chip computes; the *boxed* tier
runs it on the chip's own thread and waits; the copying *fallback* computes on the host, on copies. Only the last one is
slow, so it is counted, and a policy says whether it may happen at all.
"""

from __future__ import annotations

from typing import Any

from torch_xpu_kunlun import _C

__all__ = [
    "UnsupportedOperatorError",
    "operator_statistics",
    "reset_operator_statistics",
    "set_fallback_policy",
]

#: Raised for an operator without a kernel when the policy is ``error``; a subclass of ``NotImplementedError``.
UnsupportedOperatorError = _C.UnsupportedOperatorError


def operator_statistics() -> dict[str, Any]:
    """Calls since the start or the last reset.

    ``launcher``, ``boxed``, ``host_call`` and ``fallback`` are numbers of calls by tier (``host_call``: launched
    operators that the driver has no kernel for, computed by the host's kernel on the chip's thread).
    ``boxed_ops``, ``host_call_ops`` and ``fallback_ops`` map operator names to their numbers of calls.
    """
    return _C._operator_statistics()


def reset_operator_statistics() -> None:
    """Sets all counts to zero."""
    _C._reset_operator_statistics()


def set_fallback_policy(policy: str) -> None:
    """Sets what happens to operators without a kernel, for this process; until then ``KUNLUN_FALLBACK`` decides.

    ``policy`` is ``"warn"`` (compute on the host, warn once per operator), ``"allow"`` (without a warning) or
    ``"error"`` (raise :class:`UnsupportedOperatorError`), optionally followed by lists for single operators:
    ``"error;allow=aten::nonzero,aten::unique_dim"``. A policy that cannot be understood raises ``ValueError`` and
    leaves the old one in force.
    """
    _C._set_fallback_policy(policy)
