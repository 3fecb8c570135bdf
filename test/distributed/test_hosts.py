"""Groups whose ranks are on several hosts. Here one machine declares to be several (XCCL_HOST_ID)."""

import json

import pytest
from common_hosts import CollectivesOfHosts

BODY = """
from common_hosts import CollectivesOfHosts
os.environ["XCCL_HOST_ID"] = {hosts!r}[rank]
start()
CollectivesOfHosts(rank, size).run({folder!r})
dist.destroy_process_group()
"""

# The host of each rank.
LAYOUTS = ["ab", "aabb", "abab", "aaab"]


@pytest.fixture(scope="module", params=LAYOUTS)
def outcome(ranks, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outcome")
    size = len(request.param)
    ended = ranks.run(BODY.format(folder=str(folder), hosts=request.param), size=size)
    return ended, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize("method", CollectivesOfHosts.methods())
def test_collectives(outcome, method):
    _, reports = outcome
    for rank, report in enumerate(reports):
        assert method not in report["failures"], f"rank {rank}:\n" + report["failures"][method]
        assert method <= report["last"], f"rank {rank} did not get here; its last test was {report['last']}"


def test_ranks_ended_well(outcome):
    ended, _ = outcome
    for rank, end in enumerate(ended):
        assert end.code == 0, f"rank {rank}:\n{end.err}"


HOSTS = """
os.environ["XCCL_HOST_ID"] = "aab"[rank]
start()
x = torch.ones(2000, device="kunlun")
"""

MISMATCHES = {
    "count": ("dist.all_reduce(torch.ones(16 + rank // 2, device='kunlun'))", "16 elements", "17 elements"),
    "dtype": (
        "dist.all_reduce(torch.ones(16, device='kunlun', dtype=[torch.float32, torch.int32][rank // 2]))",
        "float32",
        "int32",
    ),
    "reduction": ("dist.all_reduce(x, [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank // 2])", "SUM", "MAX"),
    "on one host": ("dist.broadcast(x, rank % 2)", "rank 0 called broadcast", "root 0", "root 1"),
    "collective": (
        "[dist.all_reduce, lambda x: dist.broadcast(x, 0)][rank // 2](x)",
        "rank 0 called all_reduce",
        "rank 2 called broadcast",
    ),
    "splits": (
        "dist.all_to_all_single(torch.empty(6, device='kunlun'), x[:6].clone(), [2, 2, 2], "
        "[[2, 2, 2], [2, 2, 2], [1, 2, 3]][rank])",
        "rank 2 sends 4 bytes to rank 0, which expects 8",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_ranks_that_disagree(check_ranks, name):
    call, *parts = MISMATCHES[name]
    ranks = check_ranks(
        HOSTS
        + f"""
{call}
try:
    torch.kunlun.synchronize()
except ValueError as error:
    print(str(error).split("; nothing was read or written")[0])
else:
    raise AssertionError("no error")
assert (x == 1).all()  # nothing was written
dist.all_reduce(x)
assert x.unique().tolist() == [3.0]  # the group goes on
dist.destroy_process_group()
""",
        size=3,
    )
    assert len({rank.out for rank in ranks}) == 1, [rank.out for rank in ranks]
    assert all(part in ranks[0].out for part in parts), ranks[0].out


def test_a_send_and_its_receive_that_disagree(check_ranks):
    ranks = check_ranks(
        HOSTS
        + """
if rank != 1:
    x = torch.ones(4 + rank, device="kunlun")
    (dist.send if rank == 0 else dist.recv)(x, 2 - rank)
    try:
        torch.kunlun.synchronize()
    except ValueError as error:
        print(error)
    y = torch.full((3,), float(rank), device="kunlun")
    (dist.send if rank == 0 else dist.recv)(y, 2 - rank)
    assert y.tolist() == [0.0] * 3
dist.barrier()
dist.destroy_process_group()
""",
        size=3,
    )
    for rank in (0, 2):
        assert "4 elements" in ranks[rank].out
        assert "6 elements" in ranks[rank].out


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_killed_rank_is_reported_on_every_host(run_ranks, victim):
    ranks = run_ranks(
        f"""
        os.environ["XCCL_HOST_ID"] = "aabb"[rank]
        start()
        x = torch.ones(1000, device="kunlun")
        dist.all_reduce(x)
        torch.kunlun.synchronize()
        if rank == {victim}:
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            for _ in range(2):
                dist.all_reduce(x)
                torch.kunlun.synchronize()
        except RuntimeError as error:
            print(time.monotonic() - begin, error)
        assert dist.group.WORLD._get_backend(torch.device("kunlun")).get_error().name == "COMM_ERROR"
        """,
        size=4,
    )
    for index, rank in enumerate(ranks):
        if index == victim:
            assert rank.code == -9
            continue
        assert rank.code == 0, rank.err
        seconds, _, text = rank.out.partition(" ")
        assert float(seconds) < 5, rank.out
        assert f"rank {victim} of 4 (process " in text, rank.out
        assert "has died" in text


def test_a_rank_that_does_not_come(check_ranks):
    ranks = check_ranks(
        """
        os.environ["XCCL_HOST_ID"] = "ab"[rank]
        start(seconds=3)
        x = torch.ones(4, device="kunlun")
        dist.all_reduce(x)
        torch.kunlun.synchronize()
        if rank == 0:
            try:
                dist.all_reduce(x)
                torch.kunlun.synchronize()
            except RuntimeError as error:
                print(error)
            store.set("over", "1")
        else:
            store.wait(["over"], timedelta(seconds=60))
        """
    )
    assert "xccl:all_reduce number 2" in ranks[0].out or "Timed out" in ranks[0].out, ranks[0].out


def test_training_over_two_hosts_is_training_on_one(check_ranks):
    """DistributedDataParallel : the loss of four ranks on two hosts, of four on one, and of one process."""
    losses = []
    for hosts in ("aaaa", "aabb"):
        ranks = check_ranks(
            f"""
            os.environ["XCCL_HOST_ID"] = "{hosts}"[rank]
            start()
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to("kunlun")
            ddp = torch.nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            data = torch.randn(8, 16)[rank * 2 : rank * 2 + 2].to("kunlun")
            for _ in range(5):
                loss = ddp(data).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
            print(loss.item())
            dist.destroy_process_group()
            """,
            size=4,
        )
        assert len({rank.out for rank in ranks}) == 1
        losses.append(float(ranks[0].out))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
