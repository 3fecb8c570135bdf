"""vLLM's plug-in for ``kunlun``. Importing it imports nothing of vLLM, which loads it by an entry point.

``docs/ledger.md`` has a line for every class and function of vLLM that is overridden here, with its reason.
"""

from __future__ import annotations


def platform() -> str | None:
    """Entry point of the group ``vllm.platform_plugins``: the platform's class, or None where there is no device."""
    from torch_xpu_kunlun import engines

    return "torch_xpu_kunlun.engines.vllm.platform.KunlunPlatform" if engines.is_present() else None


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``, for every process of the engine."""
    from torch_xpu_kunlun import engines

    if engines.is_present():
        from torch_xpu_kunlun.engines.vllm import leftovers

        leftovers.unlink_queues()
