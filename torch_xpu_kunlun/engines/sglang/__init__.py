"""SGLang on ``kunlun``: the functions that SGLang's entry points name.

``platform`` (group ``sglang.srt.platforms``) tells SGLang which class describes the device; ``register`` (group
``sglang.srt.plugins``) hands it the hooks. Importing this module imports neither SGLang nor torch_xpu_kunlun's native
part a second time, so an environment without SGLang pays nothing for it.
"""

from __future__ import annotations

from torch_xpu_kunlun import engines

_PLATFORM = "torch_xpu_kunlun.engines.sglang.platform.KunlunPlatform"


def platform() -> str | None:
    """The qualified name of the platform class, or None where no device is to be seen."""
    return _PLATFORM if engines.is_present() else None


def register() -> None:
    """Adds the attention backends and hooks, if ``kunlun`` is the platform that SGLang has chosen."""
    from sglang.srt.platforms import current_platform

    if current_platform.device_type != "kunlun":
        return
    from torch_xpu_kunlun.engines.sglang import hooks

    hooks.register()
