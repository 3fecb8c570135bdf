"""The process group over the vendor's library of collectives, against stand-ins for it and for the vendor's runtime."""

from pathlib import Path

import pytest
from common_bkcl import BkclCollectives
from common_group import Outcome
from common_process import ForkingServer
from common_ranks import Ranks
from common_vendor import build


class Vendor:
    """Ranks in processes that find the vendor's libraries in a folder."""

    def __init__(self, libraries: Path, folder: Path):
        # The loader reads its path when a process starts, so it is set before the server does.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_LIBRARY_PATH", str(libraries))
            patch.setenv("KUNLUN_CHIP", "xre")
            patch.setenv("KUNLUN_FALLBACK", "allow")
            self.server = ForkingServer()
            self.server.start()
        self.ranks = Ranks(self.server, folder)


@pytest.fixture(scope="module")
def vendor_with(tmp_path_factory):
    """Makes a Vendor from flags of the stand-in library; ends its processes."""
    made = []

    def make(*flags: str, collectives: bool = True) -> Ranks:
        libraries = build(tmp_path_factory.mktemp("vendor"), "-DVENDOR_WORKS_AT_ONCE", *flags, collectives=collectives)
        made.append(Vendor(libraries, tmp_path_factory.mktemp("ranks")))
        return made[-1].ranks

    yield make
    for vendor in made:
        vendor.server.stop()


@pytest.fixture(scope="module")
def vendor(vendor_with):
    return vendor_with()


@pytest.fixture(scope="module", params=[2, 3], ids=["2ranks", "3ranks"])
def outcome(vendor, request, tmp_path_factory):
    return Outcome(BkclCollectives, vendor, request.param, tmp_path_factory.mktemp("outcome"))


@pytest.mark.parametrize("method", BkclCollectives.methods())
def test_collectives(outcome, method):
    outcome.check(method)


def test_ranks_ended_well(outcome):
    outcome.check_end()


def test_training_equals_one_process(vendor):
    vendor.check(
        """
        from torch.nn.parallel import DistributedDataParallel

        def model():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

        start()
        data = torch.randn(3, size * 4, 8, generator=torch.Generator().manual_seed(1))
        alone, shared = model(), DistributedDataParallel(model().to("kunlun"))
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, shared)]
        for batch in data:
            mine = batch[rank * 4 : rank * 4 + 4].to("kunlun")
            losses = [alone(batch).square().mean(), shared(mine).square().mean()]
            for loss, optimizer in zip(losses, optimizers):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        for expected, parameter in zip(alone.parameters(), shared.parameters(), strict=True):
            torch.testing.assert_close(parameter.cpu(), expected)
        dist.destroy_process_group()
        """
    )


CATCH = """
def catch(call):
    try:
        call()
        print("no error")
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__ + ":", str(error).replace(chr(10), " "))
"""


def test_a_rank_that_is_killed(vendor):
    """The library tells nobody; the watchdog sees it."""
    ranks = vendor.run(
        CATCH
        + """
start()
x = torch.ones(4).to("kunlun")
dist.all_reduce(x)
torch.kunlun.synchronize()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
work = dist.all_reduce(x, async_op=True)
catch(lambda: work.wait(timeout=timedelta(seconds=60)))
print(time.monotonic() - begin)
catch(lambda: dist.all_reduce(x))
print(dist.group.WORLD._get_backend(torch.device("kunlun")).get_error().name)
""",
        size=3,
    )
    assert [rank.code for rank in ranks] == [0, -9, 0], ranks
    for rank in (ranks[0], ranks[2]):
        waited, seconds, later, state = rank.out.splitlines()
        assert waited.startswith("RuntimeError: rank 1 of 3 (process "), waited
        assert "has died" in waited
        assert float(seconds) < 5
        assert later.startswith("RuntimeError: the communicator cannot be used any more: rank 1 of 3 (process "), later
        assert state == "COMM_ERROR"
        assert 'xccl:all_reduce number 2 of group "0" is ended, because rank 1 of 3' in rank.err


def test_a_rank_that_is_killed_while_another_receives(vendor):
    ranks = vendor.run(
        CATCH
        + """
start()
x = torch.ones(4).to("kunlun")
if rank > 0:
    (dist.send if rank == 2 else dist.recv)(x, 3 - rank)
    torch.kunlun.synchronize()
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    dist.recv(x, 2)
    catch(torch.kunlun.synchronize)
""",
        size=3,
    )
    assert [rank.code for rank in ranks] == [0, 0, -9], ranks
    assert ranks[1].out.startswith("RuntimeError: rank 2 of 3 (process "), ranks[1].out + ranks[1].err


def test_what_a_dead_rank_leaves_undone_is_not_read(vendor):
    """Whoever waits for a stream that it has held up gets the error, once."""
    survivor, _ = vendor.run(
        CATCH
        + """
start()
groups = [dist.group.WORLD, dist.new_group()]
x = torch.ones(4).to("kunlun")
for group in groups:
    dist.all_reduce(x, group=group)
torch.kunlun.synchronize()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x, group=groups[0])
catch(x.tolist)
catch(x.tolist)
dist.all_reduce(x, group=groups[1], async_op=True).wait()
catch(lambda: x.clone().tolist())
catch(torch.kunlun.synchronize)
catch(torch.kunlun.synchronize)
"""
    )
    first, second, waiting, device, again = survivor.out.splitlines()
    for text in (first, waiting, device):
        assert text.startswith("RuntimeError: rank 1 of 2 (process "), survivor.out + survivor.err
    assert second == again == "no error"


def test_a_rank_that_ends_while_others_are_busy(vendor):
    """What it has sent arrives, although the receiver comes to it only after it has ended."""
    receiver, _ = vendor.check(
        """
        import ctypes
        start()
        x = torch.full((4,), float(rank)).to("kunlun")
        dist.batch_isend_irecv([dist.P2POp(dist.isend if rank == 1 else dist.irecv, x, 1 - rank)])[0].wait()
        if rank == 1:
            dist.send(x + 1, 0)
            torch.kunlun.synchronize()
            os._exit(0)
        # Work of another kind keeps the stream for longer than a running operation may wait for a rank that has ended.
        busy = ctypes.CDLL("libxpurt.so").fake_sleep
        busy.argtypes = [ctypes.c_void_p, ctypes.c_int]
        pair = torch.empty(4).to("kunlun")
        assert busy(torch.kunlun.current_stream().kunlun_stream, 4000) == 0
        dist.recv(pair, 1)
        print(pair.tolist())
        """
    )
    assert receiver.out == "[2.0, 2.0, 2.0, 2.0]\n", receiver.out + receiver.err


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_before_it_is_connected(vendor, victim):
    # It has met the others in the store, and dies before it asks the library for the communicator.
    ranks = vendor.run(
        CATCH
        + f"""
start()
if rank == {victim}:
    of_group = dist.distributed_c10d._world.pg_map[dist.group.WORLD][1]
    dist.PrefixStore("kunlun/", of_group).set("xccl/group/0/here/{victim}", "here")
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
catch(lambda: dist.all_reduce(torch.ones(10).to("kunlun")))
print(time.monotonic() - begin)
"""
    )
    text, seconds = ranks[1 - victim].out.splitlines()
    assert f"rank {victim} of 2 (process " in text, text
    assert "has died before it joined the communicator" in text
    assert float(seconds) < 5


def test_a_rank_that_does_not_come(vendor):
    waiting, _ = vendor.check(
        CATCH
        + """
start(seconds=2)
x = torch.ones(4).to("kunlun")
dist.all_reduce(x)
torch.kunlun.synchronize()
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    catch(lambda: work.wait(timeout=timedelta(seconds=60)))
    catch(lambda: dist.all_reduce(x))
    store.set("over", "1")
else:
    store.wait(["over"], timedelta(seconds=60))
"""
    )
    waited, later = waiting.out.splitlines()
    assert waited.startswith('RuntimeError: xccl:all_reduce number 2 of group "0" timed out after 2000 ms'), waited
    assert later.startswith("RuntimeError: the communicator cannot be used any more: xccl:all_reduce number 2"), later


FAULT = (
    CATCH
    + """
import ctypes
def fail(before, result):
    ctypes.CDLL("libbkcl.so").fake_fail(before, result)

start()
x = torch.full((4,), float(rank)).to("kunlun")
backend = dist.group.WORLD._get_backend(torch.device("kunlun"))
"""
)


@pytest.mark.parametrize("result", [1, 2])
def test_a_call_that_fails_on_one_rank(vendor, result):
    """Its next call must not meet the one that the others have made meanwhile."""
    others, failing = vendor.check(
        FAULT
        + f"""
dist.all_reduce(x)
torch.kunlun.synchronize()
if rank == 1:
    fail(0, {result})
    catch(lambda: dist.all_reduce(x))
    catch(lambda: dist.all_reduce(torch.full((4,), 100.0).to("kunlun")))
    print(backend.get_error().name)
    backend.abort()
else:
    work = dist.all_reduce(x, async_op=True)
    catch(lambda: work.wait(timeout=timedelta(seconds=3)))
    print(x.tolist())
dist.PrefixStore("end", store).set(str(rank), "1")
dist.PrefixStore("end", store).wait(["0", "1"])
"""
    )
    waited, values = others.out.splitlines()
    assert "did not end within 3000 ms" in waited
    assert values == "[1.0, 1.0, 1.0, 1.0]"
    first, later, state = failing.out.splitlines()
    cause = f"the vendor's library of collectives failed in bkcl_all_reduce with code {result}: "
    assert first.startswith(("ValueError: " if result == 1 else "RuntimeError: ") + cause), first
    assert later.startswith("RuntimeError: the communicator cannot be used any more: " + cause), later
    assert state == "COMM_ERROR"


def test_a_batch_that_fails_on_one_rank(vendor):
    """All communicators of it are at their end; others, and the process, go on."""
    failing, *others = vendor.check(
        FAULT
        + """
def exchange():
    peers = [1, 2] if rank == 0 else [0]
    batch = [dist.P2POp(op, x, peer) for peer in peers for op in ([dist.isend] if rank == 0 else [dist.irecv])]
    for work in dist.batch_isend_irecv(batch):
        work.wait(timeout=timedelta(seconds=3))

exchange()
if rank == 0:
    fail(1, 2)
catch(exchange)
if rank == 0:
    for peer in (1, 2):
        catch(lambda: dist.send(x, peer))
dist.barrier()
y = torch.ones(3).to("kunlun")
dist.all_reduce(y)
print(y.tolist())
""",
        size=3,
    )
    cause = "the vendor's library of collectives failed in bkcl_send with code 2: "
    first, *later, values = failing.out.splitlines()
    assert first.startswith("RuntimeError: " + cause), first
    assert len(later) == 2
    for text in later:
        assert text.startswith("RuntimeError: the communicator cannot be used any more: " + cause), text
    assert values == "[3.0, 3.0, 3.0]"
    assert "did not end within 3000 ms" in others[1].out  # whether the first send took place is the library's business
    for rank in others:
        assert rank.out.splitlines()[-1] == "[3.0, 3.0, 3.0]"


MISSING = """
try:
    start()
    print("no error")
except RuntimeError as error:
    print(error)
"""


def test_without_the_library(vendor_with):
    (rank,) = vendor_with(collectives=False).run(MISSING, size=1)
    assert rank.out.startswith("the vendor's library of collectives (XCCL, libbkcl.so) cannot be opened: libbkcl.so: ")
    assert "put its folder on LD_LIBRARY_PATH" in rank.out
    assert "gloo on CPU tensors" in rank.out


def test_a_library_without_a_function(vendor_with):
    (rank,) = vendor_with("-Dbkcl_all_gather=other").run(MISSING, size=1)
    assert "libbkcl.so does not export bkcl_all_gather as a C function" in rank.out, rank.out + rank.err


REFUSED = """
start()
for dtype, op in ((torch.float32, "AVG"), (torch.float32, "MIN"), (torch.float16, "SUM")):
    x = torch.full((2,), rank + 1).to(dtype).to("kunlun")
    try:
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        print(x.tolist())
    except NotImplementedError as error:
        print(error)
half = torch.full((3,), rank + 1.5).half().to("kunlun")
dist.broadcast(half, 1)
assert half.tolist() == [2.5, 2.5, 2.5]
"""


def test_an_older_library(vendor_with):
    """No average, no all_to_all_v."""
    ranks = vendor_with("-DVENDOR_BEFORE_AVERAGE", "-DVENDOR_WITHOUT_ALL_TO_ALL_V")
    for rank in ranks.check(REFUSED):
        average, least, half = rank.out.splitlines()
        assert "reduce with SUM and divide by the number of ranks" in average
        assert (least, half) == ("[1.0, 1.0]", "[3.0, 3.0]")
    ranks.check(
        """
        from common_bkcl import BkclCollectives
        start()
        BkclCollectives(rank, size).test_all_to_all()
        dist.destroy_process_group()
        """,
        size=3,
    )


def test_a_library_with_other_numbers(vendor_with):
    """A number that means something else there is found out before it touches anybody's data."""
    for rank in vendor_with("-DVENDOR_OTHER_NUMBERS").check(REFUSED):
        average, least, half = rank.out.splitlines()
        assert average == "[1.5, 1.5]"
        assert "did not do what it should with number 2 for MIN when that was tried" in least
        assert "did not reduce FLOAT16 (number 4) as it should when that was tried" in half


def test_a_library_whose_bytes_saturate(vendor_with):
    """They travel, and are compared, but their sums are not those of torch."""
    ranks = vendor_with("-DVENDOR_SATURATES").check(
        CATCH
        + """
start()
x = torch.tensor([200 - 100 * rank, 7 * rank], dtype=torch.uint8).to("kunlun")
for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
    try:
        dist.all_reduce(x, op)
    except NotImplementedError as error:
        print(error)
dist.all_reduce(x, dist.ReduceOp.MAX)
print(x.tolist())
for dtype in (torch.uint8, torch.int8, torch.bool, torch.float8_e5m2):
    y = torch.tensor([rank, 1.0]).to(dtype).to("kunlun")
    dist.broadcast(y, 1)
    assert y.cpu().float().tolist() == [1.0, 1.0], y
"""
    )
    for rank in ranks:
        *refused, values = rank.out.splitlines()
        assert len(refused) == 2
        assert all("did not add UINT8 modulo 256" in text and "to int32" in text for text in refused), refused
        assert values == "[200, 7]"


def test_a_library_without_abort(vendor_with):
    survivor, _ = vendor_with("-DVENDOR_WITHOUT_ABORT").run(
        """
        start(seconds=1)
        x = torch.ones(4).to("kunlun")
        dist.all_reduce(x)
        torch.kunlun.synchronize()
        if rank == 1:
            os._exit(0)
        try:
            dist.all_reduce(x, async_op=True).wait(timeout=timedelta(seconds=2))
        except RuntimeError as error:
            print(error)
        """
    )
    assert "did not end within 2000 ms" in survivor.out, survivor.out + survivor.err
    assert (
        "a communicator could not be aborted: the vendor's library of collectives has no bkcl_comm_abort"
        in survivor.err
    )
