"""Fixtures of the tests of fused operators: every test ends with clean streams."""

import pytest
import torch
from common_process import check_python, forking_server, run_python  # noqa: F401 - fixtures

import torch_xpu_kunlun  # noqa: F401 - registers the device


@pytest.fixture(autouse=True)
def clean_state():
    """Nothing may be left pending: an error that nobody collected fails the test that caused it."""
    torch.manual_seed(0)
    yield
    torch.kunlun.set_device(0)
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=str)
def dtype(request):
    return request.param
