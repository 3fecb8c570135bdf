"""What the sensors of a device say. A driver that lacks one raises NotImplementedError and names it.

The simulated chip knows how busy it is and nothing else.
"""

from typing import Any

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._utils import _get_device_index

__all__ = ["clock_rate", "memory_usage", "power_draw", "temperature", "utilization"]

# kl_telemetry in csrc/runtime/chip/chip.h.
_UTILIZATION, _MEMORY_UTILIZATION, _TEMPERATURE, _POWER, _CLOCK = range(5)


def _measure(device: Any, what: int) -> float:
    return _C._get_device_telemetry(_get_device_index(device, optional=True), what)


def utilization(device: Any = None) -> int:
    """Percent of the time in which work ran on the device over the last sample period.

    The simulated chip takes its sample when it is asked, for a tenth of a second.
    """
    return round(_measure(device, _UTILIZATION))


def memory_usage(device: Any = None) -> int:
    """Percent of the time in which the device's memory was read or written over the last sample period."""
    return round(_measure(device, _MEMORY_UTILIZATION))


def temperature(device: Any = None) -> int:
    """Temperature of the device in degrees Celsius."""
    return round(_measure(device, _TEMPERATURE))


def power_draw(device: Any = None) -> int:
    """Power that the device draws, in milliwatts."""
    return round(1000 * _measure(device, _POWER))


def clock_rate(device: Any = None) -> int:
    """Clock rate of the device in megahertz."""
    return round(_measure(device, _CLOCK))
