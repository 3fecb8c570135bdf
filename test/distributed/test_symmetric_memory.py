"""Symmetric memory of torch on kunlun: peers' memory, signals in stream order, and what goes wrong."""

import pytest
from common_symmetric import COMMON

MEMORY = """
start()
{device}
x, memory = make(4, 8)
assert (memory.rank, memory.world_size, memory.buffer_size, memory.offset) == (rank, size, 128, 0)
assert memory.device == x.device
assert memory.signal_pad_size == symm_mem.get_signal_pad_size()
assert symm_mem.is_symm_mem_tensor(x) and not symm_mem.is_symm_mem_tensor(torch.ones(2, device="kunlun"))
assert symm_mem.get_backend("kunlun") == "XCCL"
symm_mem.set_backend("XCCL")
assert not _SymmetricMemory.has_multicast_support(torch._C._autograd.DeviceType.PrivateUse1, 0)
assert memory.multicast_ptr == 0
assert x.data_ptr() == memory.buffer_ptrs[rank]
assert symm_mem.rendezvous(x, dist.group.WORLD.group_name).buffer_ptrs == memory.buffer_ptrs
assert symm_mem.rendezvous(torch.ones(2, device="kunlun"), dist.group.WORLD) is None

x.fill_(rank)
memory.barrier()
for peer in range(size):
    assert memory.get_remote_tensor(peer, (4, 8), torch.float32).tolist() == [[float(peer)] * 8] * 4
memory.barrier()
# Every rank writes its number into a row of the next one.
right = (rank + 1) % size
row = memory.get_buffer(right, (8,), torch.float32, 8 * rank)
assert row.device == x.device
row.fill_(100 + rank)
memory.barrier()
left = (rank - 1) % size
assert x[left].tolist() == [100.0 + left] * 8
remote = torch.ops.symm_mem.get_remote_tensors(x, dist.group.WORLD.group_name)
assert [t.data_ptr() for t in remote] == memory.buffer_ptrs
assert remote[right][rank].tolist() == [100.0 + rank] * 8, remote

pad = memory.get_signal_pad(rank)
assert pad.data_ptr() == memory.signal_pad_ptrs[rank]
assert (pad.dtype, pad.nbytes) == (torch.uint32, memory.signal_pad_size)
assert not pad.view(torch.int32)[size:].any().item()  # a peer may be in the next barrier
assert memory.get_signal_pad(right, (8, 8), torch.int64).shape == (8, 8)
memory.barrier()  # the peers have read
x.fill_(7.0)
assert not pad.view(torch.int32)[size:].any().item()  # a peer may be in the next barrier
memory.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("size", "device"),
    [(2, ""), (3, ""), (2, "torch.kunlun.set_device(0)")],
    ids=["2ranks", "3ranks", "one_device_number"],
)
def test_memory_of_peers(check_symmetric, size, device):
    check_symmetric(MEMORY.format(device=device), size)


def test_addresses_for_kernels(check_symmetric):
    check_symmetric(
        """
import ctypes
start()
x, memory = make(16)
for address, pointers in (
    (memory.buffer_ptrs_dev, memory.buffer_ptrs), (memory.signal_pad_ptrs_dev, memory.signal_pad_ptrs)
):
    torch.kunlun.synchronize()
    assert list((ctypes.c_uint64 * size).from_address(address)) == pointers
dist.destroy_process_group()
""",
        KUNLUN_SIM_PROTECT="off",  # the host reads the arrays in device memory
    )


def test_barrier_is_ordered_with_the_stream_and_not_with_the_host(check_symmetric):
    ranks = check_symmetric(
        """
start()
x, memory = make(1000)
x.zero_()
memory.barrier()
torch.kunlun.synchronize()
if rank == 0:
    begin = time.monotonic()
    memory.barrier()
    theirs = memory.get_buffer(1, (1000,), torch.float32).clone()
    print(time.monotonic() - begin)  # the other rank comes half a second later
    assert theirs.sum().item() == 1000.0
    assert time.monotonic() - begin > 0.3
else:
    time.sleep(0.5)
    x.fill_(1.0)
    memory.barrier()
torch.kunlun.synchronize()
dist.destroy_process_group()
"""
    )
    assert float(ranks[0].out) < 0.3


def test_signals_and_channels(check_symmetric):
    check_symmetric(
        """
start()
x, memory = make(100)
side = torch.kunlun.Stream()
for turn in range(20):
    if rank == 0:
        x.fill_(turn)
        memory.put_signal(1, channel=3)
        memory.wait_signal(1, channel=3)
        with torch.kunlun.stream(side):
            memory.barrier(channel=1)
    else:
        with torch.kunlun.stream(side):
            memory.barrier(channel=1)
        memory.wait_signal(0, channel=3)
        seen = memory.get_buffer(0, (100,), torch.float32).clone()
        memory.put_signal(0, channel=3)
        assert seen.tolist() == [float(turn)] * 100
torch.kunlun.synchronize()
assert not memory.get_signal_pad(rank).view(torch.int32).any().item()

# What ordinary work writes into the pad is a signal, too.
if rank == 0:
    memory.get_signal_pad(1)[2 * 5 + 0].fill_(1)
else:
    memory.wait_signal(0, channel=5, timeout_ms=10000)
torch.kunlun.synchronize()
memory.barrier()

channels = memory.signal_pad_size // 4 // size
memory.barrier(channel=channels - 1)
assert "room for" in raises(RuntimeError, memory.barrier, channels)
assert "channel must be at least 0" in raises(RuntimeError, memory.barrier, -1)
assert "rank must be in [0, 2), got 2" in raises(RuntimeError, memory.put_signal, 2)
assert "rank must be in [0, 2), got -1" in raises(RuntimeError, memory.wait_signal, -1)
dist.destroy_process_group()
"""
    )


def test_a_barrier_that_times_out_leaves_the_device_usable(check_symmetric):
    ranks = check_symmetric(
        """
start()
x, memory = make(4)
if rank == 0:
    memory.barrier(channel=2, timeout_ms=200)
    print(raises(RuntimeError, torch.kunlun.synchronize))
    print(raises(RuntimeError, memory.wait_signal, 1, 4, 100))
    assert torch.ones(3, device="kunlun").sum().item() == 3.0
memory.barrier(channel=0)
x.fill_(rank)
memory.barrier(channel=0)
assert memory.get_buffer(1 - rank, (4,), torch.float32).tolist() == [1.0 - rank] * 4
memory.barrier(channel=0)
torch.kunlun.synchronize()
dist.destroy_process_group()
"""
    )
    first, second = ranks[0].out.splitlines()
    assert "waited 200 ms for a word in device memory to become 1; it is 0" in first
    assert "barrier on channel 2: rank 0 waits for rank 1" in first
    assert "wait_signal on channel 4: rank 0 waits for rank 1" in second


def test_a_peer_that_dies_ends_the_wait(run_symmetric):
    ranks = run_symmetric(
        """
start()
x, memory = make(4)
memory.barrier()
torch.kunlun.synchronize()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
memory.barrier()
print(time.monotonic() - begin, raises(RuntimeError, torch.kunlun.synchronize))
assert x.fill_(1.0).sum().item() == 4.0
"""
    )
    assert [rank.code for rank in ranks] == [0, -9], ranks
    assert "which was to set a word in device memory to 1, has ended" in ranks[0].out
    assert "rank 0 waits for rank 1" in ranks[0].out


def test_the_end_of_the_process_ends_a_wait(check_ranks):
    # And so does the reset of the device.
    check_ranks(
        COMMON
        + """
start()
x, memory = make(4)
if rank == 0:
    memory.wait_signal(1)
    torch.kunlun.reset_device()
    memory.wait_signal(1)
""",
        exits=True,
    )


def test_sizes_that_differ(check_symmetric):
    ranks = check_symmetric(
        """
start()
x = symm_mem.empty(100 + rank, device="kunlun")
print(raises(ValueError, symm_mem.rendezvous, x, dist.group.WORLD))
y, memory = make(8)  # the group goes on
y.fill_(rank)
memory.barrier()
assert memory.get_buffer(1 - rank, (8,), torch.float32).tolist() == [1.0 - rank] * 8
memory.barrier()
torch.kunlun.synchronize()
dist.destroy_process_group()
"""
    )
    assert ranks[0].out == ranks[1].out
    assert "rank 0 has 400 bytes" in ranks[0].out
    assert "rank 1 has 404 bytes" in ranks[0].out


def test_a_rank_that_died_or_does_not_come(run_symmetric):
    ranks = run_symmetric(
        """
start(seconds=2)
x = symm_mem.empty(100, device="kunlun")
if rank == 2:
    time.sleep(5)
    os._exit(0)
begin = time.monotonic()
text = raises(RuntimeError, symm_mem.rendezvous, x, dist.group.WORLD)
print(text)
assert time.monotonic() - begin < 10
time.sleep(1)  # a rank that ends is another error
""",
        size=3,
    )
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    for rank in ranks[:2]:
        assert "waited 2000 ms for the rendezvous of symmetric memory" in rank.out
        assert "ranks of the group that have not come: 2" in rank.out

    ranks = run_symmetric(
        """
start()
x, memory = make(100)  # so that every rank is known
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
y = symm_mem.empty(100, device="kunlun")
begin = time.monotonic()
print(raises(RuntimeError, symm_mem.rendezvous, y, dist.group.WORLD))
assert time.monotonic() - begin < 10
"""
    )
    assert [rank.code for rank in ranks] == [0, -9], ranks
    assert "rank 1 of 2 (process " in ranks[0].out
    assert "has died before it joined the rendezvous of symmetric memory" in ranks[0].out


def test_wrong_arguments(check_symmetric):
    check_symmetric(
        """
start()
print(raises((RuntimeError, IndexError), lambda: symm_mem.empty(4, device="kunlun:4")))
x = _SymmetricMemory.empty_strided_p2p((4,), (1,), torch.float32, torch.device("kunlun", rank))
assert "names a group" in raises(RuntimeError, _SymmetricMemory.rendezvous, x)
assert "nobody" in raises(RuntimeError, symm_mem.rendezvous, x, "nobody")
y, memory = make(4)
assert "exceeds the allocated size" in raises(RuntimeError, memory.get_buffer, 0, (5,), torch.float32)
for name in ("all_reduce_", "one_shot_all_reduce"):
    text = raises(NotImplementedError, getattr(torch.ops.symm_mem, "multimem_" + name), y, "sum", "0")
    assert "no multicast memory" in text
dist.destroy_process_group()
"""
    )


def test_a_group_of_some_ranks_and_persistent_memory(check_symmetric):
    check_symmetric(
        """
start()
group = dist.new_group([2, 0])
if rank != 1:
    x = _SymmetricMemory.empty_strided_p2p(
        (4,), (1,), torch.float32, torch.device("kunlun", rank), group.group_name, alloc_id=42
    )
    memory = _SymmetricMemory.rendezvous(x)
    assert (memory.world_size, memory.rank) == (2, dist.get_rank(group))
    x.fill_(rank)
    memory.barrier()
    assert memory.get_buffer(1 - memory.rank, (4,), torch.float32)[0].item() == 2 - rank
    memory.barrier()
    torch.kunlun.synchronize()
    address = x.data_ptr()
    del x
    x = _SymmetricMemory.empty_strided_p2p(
        (4,), (1,), torch.float32, torch.device("kunlun", rank), group.group_name, alloc_id=42
    )
    assert x.data_ptr() == address
dist.barrier()
dist.destroy_process_group()
""",
        size=3,
    )


def test_memory_that_is_freed_while_a_peer_uses_it(check_symmetric):
    check_symmetric(
        """
start()
x, memory = make(1000)
x.fill_(rank + 1)
memory.barrier()
torch.kunlun.synchronize()
if rank == 0:
    del x, memory
    others = [symm_mem.empty(1000, device="kunlun").fill_(-1.0) for _ in range(8)]  # none of them in its place
    torch.kunlun.synchronize()
dist.barrier()
if rank == 1:
    theirs = memory.get_buffer(0, (1000,), torch.float32)
    assert theirs.tolist() == [1.0] * 1000
    theirs.fill_(5.0)  # and may write it still
    assert theirs.sum().item() == 5000.0
    del theirs, x, memory
torch.kunlun.synchronize()
dist.barrier()
if rank == 0:
    assert [x.sum().item() for x in others] == [-1000.0] * 8
    del others
    torch.kunlun.synchronize()
    free = torch.kunlun.mem_get_info()[0]
    torch.kunlun.ipc_collect()  # what the peer has given up
    torch.kunlun.synchronize()
    assert torch.kunlun.mem_get_info()[0] >= free
dist.destroy_process_group()
"""
    )


def test_a_thousand_allocations_leave_nothing(check_symmetric):
    check_symmetric(
        """
start()
def used():
    dist.barrier()
    torch.kunlun.synchronize()
    torch.kunlun.ipc_collect()
    torch.kunlun.synchronize()
    torch.kunlun.empty_cache()
    free, total = torch.kunlun.mem_get_info()
    return total - free, len(os.listdir("/proc/self/fd")), open("/proc/self/maps").read().count("\\n")

shared = sorted(os.listdir("/dev/shm"))
for turn in range(10):
    make(1000)
before = used()
for turn in range(1000):
    symm_mem.empty(1000, device="kunlun").fill_(1.0)
for turn in range(100):
    x, memory = make(10000)
    x.fill_(1.0)
    memory.barrier()
    del x, memory
after = used()
assert after[0] <= before[0], (before, after)
assert after[1] <= before[1] + 2, (before, after)
assert after[2] <= before[2] + 20, (before, after)
assert sorted(os.listdir("/dev/shm")) == shared
dist.destroy_process_group()
"""
    )
