"""Random numbers: one counter-based generator for each device, with a state of 16 bytes (seed and offset)."""

from collections.abc import Iterable
from typing import Any

import torch

from torch_xpu_kunlun import _C
from torch_xpu_kunlun.kunlun._device import current_device, device_count
from torch_xpu_kunlun.kunlun._utils import _get_device_index

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def default_generators() -> tuple[torch.Generator, ...]:
    """The generators that random operators use when none is given, one for each device."""
    return tuple(_C._get_default_generator(index) for index in range(device_count()))


def _get_generator(device: Any = "kunlun") -> torch.Generator:
    return _C._get_default_generator(_get_device_index(device, optional=True))


def get_rng_state(device: Any = "kunlun") -> torch.Tensor:
    """State of the device's generator: 16 bytes on the CPU, the seed and the offset as 64-bit numbers."""
    _C._refuse_in_forked_child()
    return _get_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of the generators of all devices."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "kunlun") -> None:
    """Sets the state of the device's generator to one that ``get_rng_state`` returned."""
    _C._refuse_in_forked_child()
    _get_generator(device).set_state(new_state)


def _get_rng_state_offset(device: Any = "kunlun") -> int:
    return _get_generator(device).get_offset()


def _set_rng_state_offset(offset: int, device: Any = "kunlun") -> None:
    _get_generator(device).set_offset(offset)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the generators of all devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the generator of the current device. Does nothing on a machine without a device."""
    if device_count() > 0:
        _C._get_default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices. Does nothing on a machine without a device."""
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the generator of the current device with a random number."""
    if device_count() > 0:
        _C._get_default_generator(current_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    generators = default_generators()
    if generators:
        random_seed = generators[0].seed()
        for generator in generators[1:]:
            generator.manual_seed(random_seed)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _get_generator("kunlun").initial_seed()
