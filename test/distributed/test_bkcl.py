"""The process group over the vendor's library of collectives, against stand-ins for it and for the vendor's runtime."""

import json
import subprocess
from pathlib import Path

import pytest
from common_bkcl import BkclCollectives
from common_process import ForkingServer
from common_ranks import Ranks

CHIP = Path(__file__).parents[1] / "chip"


def build(folder: Path, *flags: str, collectives: bool = True) -> Path:
    """The stand-ins, in `folder`."""
    command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    runtime = [str(CHIP / "vendor_runtime.cpp"), "-DVENDOR_WORKS_AT_ONCE", "-o", str(folder / "libxpurt.so")]
    subprocess.run([*command, *runtime], check=True)
    if collectives:
        source = [str(CHIP / "vendor_collectives.cpp"), *flags, f"-L{folder}", "-lxpurt"]
        subprocess.run([*command, *source, "-o", str(folder / "libbkcl.so")], check=True)
    return folder


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
        libraries = build(tmp_path_factory.mktemp("vendor"), *flags, collectives=collectives)
        made.append(Vendor(libraries, tmp_path_factory.mktemp("ranks")))
        return made[-1].ranks

    yield make
    for vendor in made:
        vendor.server.stop()


@pytest.fixture(scope="module")
def vendor(vendor_with):
    return vendor_with()


BODY = """
from common_bkcl import BkclCollectives
start()
BkclCollectives(rank, size).run({folder!r})
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[2, 3], ids=["2ranks", "3ranks"])
def outcome(vendor, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outcome")
    ended = vendor.run(BODY.format(folder=str(folder)), size=request.param)
    return ended, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


@pytest.mark.parametrize("method", BkclCollectives.methods())
def test_collectives(outcome, method):
    _, reports = outcome
    for rank, report in enumerate(reports):
        assert method not in report["failures"], f"rank {rank}:\n" + report["failures"][method]
        assert method <= report["last"], f"rank {rank} did not get here; its last test was {report['last']}"


def test_ranks_ended_well(outcome):
    ended, _ = outcome
    for rank, end in enumerate(ended):
        assert end.code == 0, f"rank {rank}:\n{end.err}"


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


def test_a_rank_that_dies(vendor):
    """The library tells nobody; the watchdog ends what waits."""
    survivor, _ = vendor.run(
        """
        start(seconds=2)
        x = torch.ones(4).to("kunlun")
        dist.all_reduce(x)
        torch.kunlun.synchronize()
        if rank == 1:
            os._exit(0)
        work = dist.all_reduce(x, async_op=True)
        for call in (lambda: work.wait(timeout=timedelta(seconds=60)), lambda: dist.all_reduce(x)):
            try:
                call()
            except RuntimeError as error:
                print(error)
        """
    )
    assert survivor.code == 0, survivor.err
    waited, later = survivor.out.splitlines()
    assert waited.startswith('xccl:all_reduce number 2 of group "0" timed out after 2000 ms'), waited
    assert later.startswith("the communicator cannot be used any more: xccl:all_reduce number 2"), later


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
