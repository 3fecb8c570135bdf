"""Automatic mixed precision: ``torch.amp`` with the device filled in."""

import functools

import torch
from torch.amp import GradScaler as _GradScaler
from torch.amp import autocast as _autocast

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

#: ``torch.amp.custom_fwd`` and ``torch.amp.custom_bwd``, decorators of an autograd function's methods, for kunlun.
custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="kunlun")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="kunlun")


class autocast(_autocast):
    """``torch.autocast("kunlun")``: inside, operators that gain from it run in ``dtype``."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True):
        super().__init__("kunlun", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(_GradScaler):
    """``torch.amp.GradScaler("kunlun")``: scales the loss so that small gradients survive float16."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ):
        super().__init__(
            "kunlun",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
