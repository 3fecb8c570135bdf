"""PyTorch on the Kunlun XPU: importing this package (or torch, which imports it) adds the device ``kunlun``."""


def _autoload() -> None:
    """Entry point of the group ``torch.backends``: importing the package has already added the device.

    It comes before ``import torch`` because that import loads this entry point, from this module as far as it got.
    """
    from torch_xpu_kunlun import _torchvision

    _torchvision.declare_schemas()


from torch_xpu_kunlun import _registration  # noqa: E402

_registration.register()

from torch_xpu_kunlun import _C, _accelerate, kunlun  # noqa: E402
from torch_xpu_kunlun._build_info import VERSION as __version__  # noqa: E402
from torch_xpu_kunlun.operators import (  # noqa: E402
    UnsupportedOperatorError,
    operator_statistics,
    reset_operator_statistics,
    set_fallback_policy,
)

_accelerate.warn_of_lone_processes()

if (_settings := _C._get_autocompare_settings()) is not None:
    from torch_xpu_kunlun import autocompare

    autocompare.install(*_settings)

__all__ = [
    "UnsupportedOperatorError",
    "__version__",
    "kunlun",
    "operator_statistics",
    "reset_operator_statistics",
    "set_fallback_policy",
]
