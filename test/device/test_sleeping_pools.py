# Memory pools that give their memory back for a while and keep their addresses.
import subprocess
from pathlib import Path

import pytest
import torch

from torch_xpu_kunlun import _C

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pool(fresh_memory):
    return torch.kunlun.SleepableMemPool()


def test_tensors_are_where_they_were(pool):
    free = torch.kunlun.mem_get_info()[0]
    reserved = torch.kunlun.memory_reserved()
    with torch.kunlun.use_mem_pool(pool):
        weight = torch.arange(5 * MIB, dtype=torch.int32, device="kunlun").view(5, MIB)
    row, address = weight[3], weight.data_ptr()
    assert not pool.is_asleep
    assert pool.sleep() == 20 * MIB
    assert pool.is_asleep
    assert torch.kunlun.mem_get_info()[0] == free
    assert torch.kunlun.memory_reserved() == reserved
    assert pool.snapshot() == []
    # Somebody else has the memory meanwhile.
    other = torch.full((20 * MIB,), 7, dtype=torch.uint8, device="kunlun")
    del other
    pool.wake_up()
    assert not pool.is_asleep
    assert torch.kunlun.memory_reserved() >= reserved + 20 * MIB
    assert weight.data_ptr() == address
    assert torch.equal(weight.cpu().flatten(), torch.arange(5 * MIB, dtype=torch.int32))
    assert row[0].item() == 3 * MIB
    weight += 1
    assert row[0].item() == 3 * MIB + 1


def test_contents_need_not_be_kept(pool):
    with torch.kunlun.use_mem_pool(pool):
        cache = torch.full((MIB,), 7, device="kunlun")
    pool.sleep(keep=False)
    pool.wake_up()
    cache.zero_()
    assert cache.sum().item() == 0


def test_what_sleeps_is_not_touched(pool):
    with torch.kunlun.use_mem_pool(pool):
        x = torch.ones(1000, device="kunlun")
        bits = torch.ones(1000, dtype=torch.int64, device="kunlun")
    pool.sleep()
    awake = torch.zeros(1000, device="kunlun")
    for use in (
        lambda: x + 1,  # launched
        lambda: x.sum().item(),
        x.nonzero,  # computed on the chip's thread for a waiting caller
        bits.bincount,
        x.cpu,
        lambda: x.copy_(torch.ones(1000)),
        lambda: awake.copy_(x),
        lambda: awake.add_(x),
        lambda: torch.add(awake, 1, out=x),
        lambda: torch.linalg.inv(x[:100].view(10, 10)),
        lambda: x.untyped_storage().resize_(8000),
        x.clone,
    ):
        with pytest.raises(
            RuntimeError, match=r"memory pool that sleeps and has no memory: call the pool's wake_up\(\)"
        ):
            use()
    assert (awake + 1).sum().item() == 1000
    pool.wake_up()
    assert (x + bits).sum().item() == 2000


def test_views_and_frees_are_allowed_asleep(pool):
    with torch.kunlun.use_mem_pool(pool):
        kept = torch.arange(MIB, device="kunlun")
        freed = torch.ones(8 * MIB, device="kunlun")
    pool.sleep()
    half = kept[MIB // 2 :].view(2, -1)
    allocated = torch.kunlun.memory_allocated()
    del freed
    assert torch.kunlun.memory_allocated() == allocated - 32 * MIB
    pool.wake_up()
    assert half[0, 0].item() == MIB // 2


def test_without_memory_it_sleeps_on(pool):
    with torch.kunlun.use_mem_pool(pool):
        weight = torch.full((16 * MIB,), 3.0, device="kunlun")
    pool.sleep()
    before = torch.kunlun.memory_stats()["num_ooms"]
    hog = torch.empty(torch.kunlun.mem_get_info()[0] - 8 * MIB, dtype=torch.uint8, device="kunlun")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 64.00 MiB"):
        pool.wake_up()
    assert torch.kunlun.memory_stats()["num_ooms"] == before + 1
    assert pool.is_asleep
    with pytest.raises(RuntimeError, match="sleeps"):
        weight.sum()
    del hog
    pool.wake_up()
    assert weight.sum().item() == 3 * 16 * MIB


def test_what_a_pool_refuses(pool):
    with pytest.raises(RuntimeError, match="the memory pool is awake"):
        pool.wake_up()
    with torch.kunlun.use_mem_pool(pool):
        with pytest.raises(RuntimeError, match="leave use_mem_pool first"):
            pool.sleep()
    pool.sleep()
    with pytest.raises(RuntimeError, match="the memory pool sleeps already"):
        pool.sleep()
    with pytest.raises(RuntimeError, match=r"nothing can be allocated .* call wake_up\(\) first"):
        with torch.kunlun.use_mem_pool(pool):
            raise AssertionError("entered")
    pool.wake_up()
    with torch.kunlun.use_mem_pool(pool):
        assert torch.ones(3, device="kunlun").sum().item() == 3


def test_what_other_processes_share_stays_awake(pool):
    with torch.kunlun.use_mem_pool(pool):
        shared, own = torch.ones(1000, device="kunlun"), torch.ones(1000, device="kunlun")
    loan = _C._lend_storage(shared.untyped_storage())
    with pytest.raises(RuntimeError, match="cannot sleep while one of its tensors is shared with another process"):
        pool.sleep()
    assert not pool.is_asleep
    _C._borrow_storage(loan)  # by this very process, which ends the loan
    elsewhere = torch.ones(1000, device="kunlun")
    loan = _C._lend_storage(elsewhere.untyped_storage())  # is none of the pool's
    pool.sleep()
    _C._borrow_storage(loan)
    with pytest.raises(RuntimeError, match=r"memory pool that sleeps .* wake_up\(\)"):
        _C._lend_storage(own.untyped_storage())
    pool.wake_up()
    assert (shared + own).sum().item() == 2000


def test_tensors_that_cannot_grow_keep_their_shapes(pool):
    with torch.kunlun.use_mem_pool(pool):
        x = torch.ones(1000, device="kunlun")
    pool.sleep()
    with pytest.raises(RuntimeError, match="memory pool that sleeps"):
        x.resize_(2000)
    assert x.shape == (1000,)
    pool.wake_up()
    with pytest.raises(torch.OutOfMemoryError):
        x.resize_(1 << 40)
    assert x.shape == (1000,)
    with pytest.raises(torch.OutOfMemoryError):
        x.set_(x.untyped_storage(), 0, (1 << 20, 1 << 20), (1, 1 << 20))
    assert x.shape == (1000,)
    assert x.stride() == (1,)
    assert x.sum().item() == 1000


def test_a_pool_that_sleeps_belongs_to_its_device(two_devices, pool):
    with pytest.raises(RuntimeError, match="belongs to device 0, but was entered for device 1"):
        with torch.kunlun.use_mem_pool(pool, device=1):
            raise AssertionError("entered")
    with torch.kunlun.device(1):
        second = torch.kunlun.SleepableMemPool()
        with torch.kunlun.use_mem_pool(second):
            x = torch.ones(1000, device="kunlun")
    free = torch.kunlun.mem_get_info(1)[0]
    assert second.sleep() == 2 * MIB == torch.kunlun.mem_get_info(1)[0] - free
    second.wake_up()
    assert x.device.index == 1
    assert x.sum().item() == 1000


def test_work_that_runs_is_waited_for(pool):
    with torch.kunlun.use_mem_pool(pool):
        x = torch.zeros(MIB, device="kunlun")
    stream = torch.kunlun.Stream()
    stream.wait_stream(torch.kunlun.current_stream())
    with torch.kunlun.stream(stream):
        for _ in range(50):
            x += 1
    pool.sleep()
    pool.wake_up()
    assert x.sum().item() == 50 * MIB


def test_with_expandable_segments_around_it(check_python):
    check_python(
        """
import torch
pool = torch.kunlun.SleepableMemPool()
with torch.kunlun.use_mem_pool(pool):
    x = torch.arange(1 << 20, device="kunlun")
y = x + 1
pool.sleep()
assert (y + 1)[0].item() == 2
pool.wake_up()
assert torch.equal(x + 1, y)
""",
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )


def test_a_chip_without_addresses_apart_from_memory(tmp_path, check_python):
    path = tmp_path / "tiny_driver.so"
    flags = ["-std=c11", "-shared", "-fPIC", "-DTINY_NO_ADDRESSES", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["cc", *flags, str(ROOT / "test" / "chip" / "tiny_driver.c"), "-o", str(path)], check=True)
    check_python(
        """
import torch
torch.kunlun.MemPool()
try:
    torch.kunlun.SleepableMemPool()
    raise SystemExit("not refused")
except NotImplementedError as error:
    assert "has no addresses apart from memory" in str(error) and "address_reserve" in str(error), error
""",
        KUNLUN_CHIP=str(path),
    )
