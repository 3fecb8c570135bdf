"""Symmetric memory of torch on kunlun: peers' memory, signals in stream order, operators, and what goes wrong."""

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
def check(check_ranks):
    def run(body: str, size: int = 2, **environment: str):
        return check_ranks(COMMON + body, size, **environment)

    return run


@pytest.fixture
def run(run_ranks):
    def run(body: str, size: int = 2, **environment: str):
        return run_ranks(COMMON + body, size, **environment)

    return run


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
def test_memory_of_peers(check, size, device):
    check(MEMORY.format(device=device), size)


def test_addresses_for_kernels(check):
    check(
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


def test_barrier_is_ordered_with_the_stream_and_not_with_the_host(check):
    ranks = check(
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


def test_signals_and_channels(check):
    check(
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


def test_a_barrier_that_times_out_leaves_the_device_usable(check):
    ranks = check(
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


def test_a_peer_that_dies_ends_the_wait(run):
    ranks = run(
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


def test_sizes_that_differ(check):
    ranks = check(
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


def test_a_rank_that_died_or_does_not_come(run):
    ranks = run(
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

    ranks = run(
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


def test_wrong_arguments(check):
    check(
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


def test_a_group_of_some_ranks_and_persistent_memory(check):
    check(
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


def test_memory_that_is_freed_while_a_peer_uses_it(check):
    check(
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


def test_a_thousand_allocations_leave_nothing(check):
    check(
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


OPERATORS = """
start()
import common_group
name = dist.group.WORLD.group_name
ops = torch.ops.symm_mem
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32):
    for count in (1, 7, 1000, 6000):
        parts = [common_group.sample(dtype, count, peer) for peer in range(size)]
        half = dtype in (torch.float16, torch.bfloat16)
        total = parts[0].to(torch.float32 if half else dtype, copy=True)
        for part in parts[1:]:
            total += part
        total = total.to(dtype)
        device = torch.device("kunlun", torch.kunlun.current_device())
        x = symm_mem.empty(count + 3, dtype=dtype, device=device)[3:]
        symm_mem.rendezvous(x, name)
        own = parts[rank].to(device)

        x.copy_(own)
        results = [ops.one_shot_all_reduce(x, "sum", name)]
        results.append(ops.one_shot_all_reduce_out(x, "sum", name, torch.empty_like(x)))
        assert torch.equal(x.cpu(), parts[rank])
        x.zero_()
        results.append(ops.one_shot_all_reduce_copy(x, own, "sum", name))
        results.append(ops.one_shot_all_reduce_copy_out(x, own, "sum", name, torch.empty_like(own)))
        results.append(ops.two_shot_all_reduce_out(x, "sum", name, torch.empty_like(own)))
        x.copy_(own)
        results.append(ops.two_shot_all_reduce_(x, "sum", name))
        for result in results:
            assert torch.equal(result.cpu(), total), (dtype, count)

        wide = symm_mem.empty(4, size * count, dtype=dtype, device=device)
        symm_mem.rendezvous(wide, name)
        inputs = [common_group.sample(dtype, 4 * size * count, peer, 1).view(4, -1) for peer in range(size)]
        total = inputs[0].to(torch.float32 if half else dtype, copy=True)
        for part in inputs[1:]:
            total += part
        total = total.to(dtype)
        wide.copy_(inputs[rank])
        out = ops.reduce_scatter_out(wide, name, True, torch.empty(4, count, dtype=dtype, device=device))
        assert torch.equal(out.cpu(), total.chunk(size, 1)[rank])
        out = ops.reduce_scatter_out(wide.view(-1), name, False, torch.empty(4 * count, dtype=dtype, device=device))
        assert torch.equal(out.cpu(), total.view(-1).chunk(size)[rank])

x, memory = make(6)
assert "only \\"sum\\"" in raises(RuntimeError, ops.one_shot_all_reduce, x, "max", name)
assert "symmetric memory" in raises(RuntimeError, ops.one_shot_all_reduce, torch.ones(2, device="kunlun"), "sum", name)
z, _ = make(6, dtype=torch.float8_e4m3fn)
assert "not implemented for" in raises(NotImplementedError, ops.one_shot_all_reduce, z, "sum", name)
odd, _ = make(size * 2 + 1)
assert "divisible" in raises(RuntimeError, ops.reduce_scatter_out, odd, name, False, torch.empty(2, device="kunlun"))

words = torch.zeros(8, dtype=torch.uint32, device="kunlun")
assert _SymmetricMemory.stream_write_value32(words, 3, 7) is not None
_SymmetricMemory.memset32(words, offset=5, val=2**32 - 1, count=2)
assert words.tolist() == [0, 0, 0, 7, 0, 2**32 - 1, 2**32 - 1, 0]
assert "offset" in raises(RuntimeError, _SymmetricMemory.stream_write_value32, words, -1, 0)
assert "do not lie" in raises(RuntimeError, _SymmetricMemory.stream_write_value32, words, 8, 0)
assert "val" in raises(RuntimeError, _SymmetricMemory.memset32, words, 0, 2**32, 1)
assert "uint32" in raises(RuntimeError, _SymmetricMemory.memset32, words.view(torch.int32), 0, 1, 1)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_operators(check, size):
    check(OPERATORS, size)


ASYNC_TP = """
start()
name = dist.group.WORLD.group_name
ops = torch.ops.symm_mem
torch.manual_seed(0)
def same(a, b):
    half = b.dtype == torch.bfloat16
    torch.testing.assert_close(a.cpu(), b, rtol=0.02 if half else 1e-5, atol=0.1 if half else 1e-4)
for dtype in (torch.float32, torch.bfloat16):
    a = torch.randn(size, 2 * size, 3 * size, 16 * size).to(dtype)
    bs = [torch.randn(16 * size, 4 * size).to(dtype) for _ in range(2)]
    for dim in (0, 1, 2, 3):
        shard = a.chunk(size, dim)[rank].contiguous().kunlun()
        whole, products = ops.fused_all_gather_matmul(shard, [b.kunlun() for b in bs], dim, name)
        same(whole, a)
        for b, product in zip(bs, products):
            same(product, a @ b)
        whole, products = ops.fused_all_gather_matmul(shard, [bs[0].kunlun()], dim, name, return_A=False)
        assert whole is None
        same(products[0], a @ bs[0])
    # Each rank has its part of the inner dimension.
    inner, outer = a.chunk(size, -1)[rank].contiguous().kunlun(), bs[0].chunk(size, 0)[rank].contiguous().kunlun()
    for dim in (0, 1, 2, 3):
        for kind, scale in (("sum", 1), ("avg", size)):
            part = ops.fused_matmul_reduce_scatter(inner, outer, kind, dim, name)
            expected = (a.float() @ bs[0].float() / scale).to(dtype).chunk(size, dim)[rank]
            assert part.is_contiguous()
            same(part, expected)

    # Collectives that run aside; with the input in symmetric memory or not.
    wait = torch.ops._c10d_functional.wait_tensor
    parts = [torch.randn(2 * size, 5, generator=torch.Generator().manual_seed(peer)).to(dtype) for peer in range(size)]
    for empty in (symm_mem.empty, torch.empty):
        place = empty(2 * size, 5, dtype=dtype, device=torch.device("kunlun", torch.kunlun.current_device()))
        place.copy_(parts[rank])
        same(wait(ops._low_contention_all_gather(place, name)), torch.cat(parts))
        for kind in ("sum", "avg"):
            total = sum(part.float() for part in parts) / (size if kind == "avg" else 1)
            same(wait(ops._low_contention_reduce_scatter(place, kind, name)), total.to(dtype).chunk(size)[rank])
assert "sum or avg" in raises(ValueError, ops._low_contention_reduce_scatter, place, "max", name)
assert "not divisible" in raises(ValueError, ops.fused_matmul_reduce_scatter, inner[:1], outer, "sum", 0, name)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_products_that_overlap_with_their_exchange(check, size):
    check(ASYNC_TP, size)


def test_scaled_products(check):
    check(
        """
start()
name = dist.group.WORLD.group_name
ops = torch.ops.symm_mem
torch.manual_seed(0)
a, b = torch.randn(32, 64).to(torch.float8_e4m3fn), torch.randn(16, 64).to(torch.float8_e4m3fn).t()
one = torch.tensor(1.0, device="kunlun")
expected = a.float() @ b.float()
shard = a.chunk(size)[rank].contiguous().kunlun()
whole, (product,) = ops.fused_all_gather_scaled_matmul(
    shard, [b.kunlun()], one, [one], 0, name, [None], [None], [torch.bfloat16], [False]
)
assert torch.equal(whole.cpu().float(), a.float())
torch.testing.assert_close(product.cpu().float(), expected, rtol=0.01, atol=0.01)
part = ops.fused_scaled_matmul_reduce_scatter(
    a.kunlun(), b.kunlun(), one, one, "sum", 0, 0, name, [32, 16], None, None, torch.bfloat16
)
torch.testing.assert_close(part.cpu().float(), size * expected.chunk(size)[rank], rtol=0.01, atol=0.01)
dist.destroy_process_group()
"""
    )
