"""Fixtures of the operator tests: every test ends with clean streams; Python in processes of its own."""

import pytest
import torch
from common_process import (  # noqa: F401 - fixtures
    check_new_python,
    check_python,
    forking_server,
    run_new_python_fixture,
    run_python,
)

import torch_xpu_kunlun  # noqa: F401 - registers the device


@pytest.fixture(autouse=True)
def clean_state():
    """Nothing may be left pending: an error that nobody collected fails the test that caused it."""
    yield
    torch.kunlun.set_device(0)
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.set_stream(torch.kunlun.default_stream(index))
        torch.kunlun.synchronize(index)
    torch.kunlun.set_device(0)


@pytest.fixture
def warn_always():
    """What torch says once in a process is said again."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)
