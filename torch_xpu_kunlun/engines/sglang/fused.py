"""The fused operators, or the same composed of torch's own where ``KUNLUN_CUSTOM_OPS=0`` asks for that."""

from types import ModuleType

from torch_xpu_kunlun import engines, ops
from torch_xpu_kunlun.ops import reference


def operators() -> ModuleType:
    """The module to call: both have the same functions."""
    return ops if engines.use_custom_ops() else reference
