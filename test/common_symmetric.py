"""Fixtures that run code as ranks which use symmetric memory."""

import pytest

COMMON = """
import torch.distributed._symmetric_memory as symm_mem
from torch._C._distributed_c10d import _SymmetricMemory

def make(*sizes, dtype=torch.float32, device="kunlun"):
    tensor = symm_mem.empty(*sizes, dtype=dtype, device=torch.device(device, torch.kunlun.current_device()))
    return tensor, symm_mem.rendezvous(tensor, dist.group.WORLD)

def raises(kind, function, *arguments):
    try:
        function(*arguments)
        torch.kunlun.synchronize()
    except kind as error:
        return str(error)
    raise AssertionError("no error")
"""


@pytest.fixture
def check_symmetric(check_ranks):
    def run(body: str, size: int = 2, **environment: str):
        return check_ranks(COMMON + body, size, **environment)

    return run


@pytest.fixture
def run_symmetric(run_ranks):
    def run(body: str, size: int = 2, **environment: str):
        return run_ranks(COMMON + body, size, **environment)

    return run
