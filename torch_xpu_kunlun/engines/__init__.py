"""Plug-ins by which inference engines serve models on ``kunlun``; each is loaded by its engine's own entry point.

Importing this package imports no engine.
"""

from __future__ import annotations

import torch

import torch_xpu_kunlun
from torch_xpu_kunlun import _C

#: Versions of each engine on which the tests of its plug-in have run.
TRIED_VERSIONS = {"vllm": ("0.32.0",), "sglang": ("0.5.21", "0.5.23")}


def is_present() -> bool:
    """Whether there is a kunlun device, so that an engine may choose it; starts no device."""
    return torch.kunlun.is_available()


def use_custom_ops() -> bool:
    """Whether fused operators may be used (``KUNLUN_CUSTOM_OPS``); otherwise plain torch operators do their work."""
    return _C._custom_ops_enabled()


def start_up_line(engine: str, version: str) -> str:
    """One line that names the plug-in, the engine, the chip, its driver and the versions of their interfaces."""
    chip = _C._get_chip_info()
    interface = ", ".join(f"{table} {number}" for table, number in chip["interface"].items())
    return (
        f"torch_xpu_kunlun {torch_xpu_kunlun.__version__} serves {engine} {version} "
        f"on {torch.kunlun.get_device_name()}; "
        f"interface: {interface}; driver {chip['driver']} {chip['driver_version']}, runtime {chip['runtime_version']}; "
        f"XCCL {'over the collectives of the driver' if chip['collectives'] else 'none'}; "
        f"fused operators {'on' if use_custom_ops() else 'off (KUNLUN_CUSTOM_OPS=0)'}"
    )


def untried_warning(engine: str, version: str) -> str | None:
    """A warning where the plug-in was never tried with this version of the engine; None where it was."""
    tried = TRIED_VERSIONS[engine]
    if version.split("+")[0] in tried:
        return None
    return (
        f"torch_xpu_kunlun was never tried with {engine} {version}, only with {', '.join(tried)}: "
        "its interfaces may have changed. If something fails, install one of these."
    )
