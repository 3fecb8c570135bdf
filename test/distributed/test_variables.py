"""What the variables XCCL_ALGORITHM, XCCL_ACCUMULATE and XCCL_TIMEOUT change, and that rank 0 decides for its group."""

import pytest

SAME_SUMS = """
from common_collectives import combine, reductions
from common_group import FLOATS, INTEGERS, GroupTest, sample

tests = GroupTest.__new__(GroupTest)
{before}
start()
for dtype in FLOATS + INTEGERS:
    for op in reductions(dtype):
        for count in (0, 1, 17, 5000, 40001):
            inputs = [sample(dtype, count, r) for r in range(size)]
            x = inputs[rank].to("kunlun")
            dist.all_reduce(x, op)
            tests.same(x, combine(op, inputs))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_every_algorithm_gives_the_same_bits(check_ranks, algorithm):
    # Rank 0's word counts; the others ask for something else.
    before = f'os.environ["XCCL_ALGORITHM"] = "{algorithm}" if rank == 0 else "auto"'
    check_ranks(SAME_SUMS.format(before=before), size=3)


def test_one_shot_reads_everything(check_ranks):
    """Over slow links the amount of data shows: one shot moves two inputs to each of three ranks, two shots 4/3."""
    count = 3 << 20
    ranks = check_ranks(
        f"""
        os.environ["XCCL_ALGORITHM"] = "one_shot"
        start()
        x = torch.ones({count}, dtype=torch.uint8, device="kunlun")
        torch.kunlun.synchronize()
        begin = time.monotonic()
        dist.all_reduce(x)
        torch.kunlun.synchronize()
        print(time.monotonic() - begin)
        dist.destroy_process_group()
        """,
        size=3,
        KUNLUN_SIM_LINK_SPEED="10M",
    )
    assert all(float(rank.out) >= 2 * count / (10 << 20) for rank in ranks)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("count", [100, 50_000])
def test_native_accumulation_rounds_after_each_rank(check_ranks, dtype, count):
    check_ranks(
        f"""
        os.environ["XCCL_ACCUMULATE"] = "native" if rank == 0 else "float32"
        start()
        dtype = torch.{dtype}
        inputs = [torch.randn({count}, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(size)]
        x = inputs[rank].to("kunlun")
        dist.all_reduce(x)
        each = inputs[0]
        for y in inputs[1:]:
            each = each + y
        once = sum(y.float() for y in inputs).to(dtype)
        assert torch.equal(x.cpu(), each)
        assert not torch.equal(each, once)
        small = torch.full((4,), 100, dtype=torch.int8, device="kunlun")
        dist.all_reduce(small, dist.ReduceOp.AVG)  # accumulates in int64 all the same
        assert small.tolist() == [100] * 4
        dist.destroy_process_group()
        """,
        size=4,
    )


def test_native_accumulation_between_hosts_is_refused(check_ranks):
    check_ranks(
        """
        os.environ["XCCL_ACCUMULATE"] = "native"
        os.environ["XCCL_HOST_ID"] = "ab"[rank]
        start()
        try:
            dist.all_reduce(torch.ones(10, device="kunlun"))
        except NotImplementedError as error:
            assert "XCCL_ACCUMULATE=native is for groups of one host" in str(error)
        else:
            raise AssertionError("not refused")
        """
    )


def test_timeout_of_groups_that_name_none(check_ranks):
    check_ranks(
        """
        os.environ["XCCL_TIMEOUT"] = "77"
        torch.kunlun.set_device(rank)
        timeout = lambda group: group._get_backend(torch.device("kunlun")).options._timeout

        dist.init_process_group("cpu:gloo,kunlun:xccl", store=store, rank=rank, world_size=size)
        assert timeout(dist.group.WORLD) == timedelta(seconds=77)
        assert timeout(dist.new_group()) == timedelta(seconds=77)
        assert timeout(dist.new_group(backend="bkcl")) == timedelta(seconds=77)
        assert timeout(dist.new_group(timeout=timedelta(seconds=5))) == timedelta(seconds=5)
        assert dist.distributed_c10d._get_default_timeout("gloo") == dist.distributed_c10d.default_pg_timeout
        del os.environ["XCCL_TIMEOUT"]
        assert timeout(dist.new_group(backend="xccl")) == dist.distributed_c10d.default_pg_timeout
        dist.destroy_process_group()
        """
    )
