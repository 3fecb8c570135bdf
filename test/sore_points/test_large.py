"""More than 2**31 elements: sizes, offsets and indices beyond 32 bits.

Only operators without temporaries: a sum of bytes in int64 makes the CPU's kernel allocate 16 GiB on the host.
"""

import os

import pytest
import torch

ELEMENTS = (1 << 31) + 11
BYTES = 3 << 30


def available() -> int:
    """Bytes that this host can still give: the simulated device's memory is host memory."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        available() < 2 * BYTES or torch.kunlun.mem_get_info()[0] < BYTES,
        reason="needs 3 GiB on the device and as much on the host; KUNLUN_SIM_MEMORY gives the device more",
    ),
]


@pytest.fixture(scope="module")
def large():
    x = torch.zeros(ELEMENTS, dtype=torch.uint8, device="kunlun")
    yield x
    del x
    torch.kunlun.empty_cache()


def test_elements_at_the_far_end(large):
    large[-1] = 7
    large[ELEMENTS - 3 :].add_(1)
    assert large[-3:].tolist() == [1, 1, 8]
    assert large[(1 << 31) - 1 : (1 << 31) + 1].tolist() == [0, 0]
    assert large.select(0, ELEMENTS - 1).storage_offset() == ELEMENTS - 1
    large[-3:].zero_()


def test_fill_and_reductions(large):
    large.fill_(1)
    assert large.count_nonzero().item() == ELEMENTS
    large[-2] = 9
    assert large.argmax().item() == ELEMENTS - 2
    assert large.max().item() == 9
    large.zero_()


def test_copies_of_the_far_end(large):
    tail = torch.arange(100, dtype=torch.uint8)
    large[-100:].copy_(tail)
    assert torch.equal(large[-100:].cpu(), tail)
    assert torch.equal(large[-100:].to("kunlun:1").cpu(), tail)
    index = torch.tensor([ELEMENTS - 1, 0, ELEMENTS - 100], device="kunlun")
    assert large.index_select(0, index).tolist() == [99, 0, 0]
    large.zero_()


def test_strides_beyond_32_bits(large):
    far = large.as_strided((2, 3), (1 << 31, 2))
    far.copy_(torch.arange(6, dtype=torch.uint8).reshape(2, 3))
    assert far.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert large[1 << 31].item() == 3
    large.zero_()
