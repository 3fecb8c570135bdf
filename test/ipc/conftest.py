# Fixtures of the tests between processes: Python in processes of its own, and the pieces that most of them begin with.
import textwrap

import pytest
from common_process import check_python, forking_server, run_python  # noqa: F401 - fixtures

# The child is forked before the parent has used a device, so both may; nobody has to import torch again.
PAIR = """
import os, signal, time
import torch, torch_xpu_kunlun
context = torch.multiprocessing.get_context("fork")
there, back = context.Queue(), context.Queue()

def start(function):
    process = context.Process(target=function)
    process.start()
    return process

def refused(function, text, kind=RuntimeError):
    try:
        function()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError("not refused")
"""


@pytest.fixture
def check_pair(check_python):  # noqa: F811
    """Runs a piece of Python behind PAIR; it must end well and silently. Returns what it printed."""
    return lambda code, **environment: check_python(PAIR + textwrap.dedent(code), **environment)
