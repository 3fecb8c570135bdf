"""Lets the engines' dependencies import a torchvision whose binary does not load.

transformers, which SGLang needs, imports torchvision's image processing wherever torchvision is installed, and vLLM's
models that see need it. The wheels on PyPI are built for CUDA: on another torch their binary is left out, but
registering shape functions for two of its operators is not, so that the import fails. Declaring these two makes it
pass; calling them raises, as torchvision says.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []  # declarations live as long as their library


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def is_unloadable() -> bool:
    """Whether a torchvision for CUDA is installed beside a torch without it. Imports nothing of it."""
    if torch.version.cuda is not None:
        return False
    folder = _folder("torchvision")
    if folder is None or not (folder / "version.py").is_file():
        return False
    return re.search(r"__version__ = '[^']*\+cu\d+'", (folder / "version.py").read_text()) is not None


def declare_schemas() -> None:
    """Declares the operators where an engine is installed and nothing else would declare them."""
    if _libraries or not any(map(importlib.util.find_spec, ("sglang", "vllm"))) or not is_unloadable():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
