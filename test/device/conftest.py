# Fixtures of the device tests: a clean device for each test, and Python in processes of its own.
import pytest
import torch
from common_process import (  # noqa: F401 - fixtures
    check_new_python,
    check_python,
    forking_server,
    run_new_python_fixture,
    run_python,
)


@pytest.fixture(autouse=True)
def clean_state():
    """Every test begins and ends on device 0, its default stream, with nothing pending."""
    yield
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.set_stream(torch.kunlun.default_stream(index))
    torch.kunlun.set_device(0)
    if torch.kunlun.is_initialized():
        for index in range(torch.kunlun.device_count()):
            torch.kunlun.synchronize(index)


@pytest.fixture
def two_devices():
    if torch.kunlun.device_count() < 2:
        pytest.skip("needs two devices")


@pytest.fixture
def fresh_memory():
    """An empty cache and statistics that start from here."""
    torch.kunlun.init()
    torch.kunlun.empty_cache()
    torch.kunlun.reset_peak_memory_stats()
    torch.kunlun.reset_accumulated_memory_stats()
