"""Fixtures of the feature tests: every test ends with clean streams and torch's settings as they were."""

import pytest
import torch

import torch_xpu_kunlun  # noqa: F401 - registers the device


@pytest.fixture(autouse=True)
def clean_state():
    """Nothing may be left pending: an error that nobody collected fails the test that caused it."""
    yield
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)
    assert torch.kunlun.current_device() == 0
    assert torch.get_default_device() == torch.device("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
