"""Fixtures of the tests of the simulated chip's switches."""

import textwrap

import pytest
import torch
from common_process import (  # noqa: F401 - fixtures
    check_new_python,
    check_python,
    check_silent,
    forking_server,
    run_new_python_fixture,
    run_python,
)

from torch_xpu_kunlun import sim


@pytest.fixture
def check_with_helpers(run_python, pytestconfig):  # noqa: F811 - the fixture
    """Like check_python, with the helpers of this suite within reach."""
    path = f"import sys; sys.path.append({str(pytestconfig.rootpath / 'test')!r})\n"
    return lambda code, **environment: check_silent(run_python(path + textwrap.dedent(code), **environment))


@pytest.fixture
def faults():
    """The module; no fault, hang or limit outlives the test."""
    yield sim
    sim.clear_faults()
    sim.release_hangs()
    sim.set_copy_speed(None)
    sim.set_link_speed(None)
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)
