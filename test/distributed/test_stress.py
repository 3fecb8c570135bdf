"""Long runs: random collectives against an oracle, ranks killed at random moments, many groups."""

import pytest
from common_leftovers import segments, unused_since

pytestmark = pytest.mark.full

SOAK_SECONDS = 200
KILLS = 200
GROUPS = 1000


@pytest.mark.parametrize("size", [2, 3, 4])
def test_random_collectives_against_an_oracle(check_ranks, size):
    ranks = check_ranks(
        f"""
        import random
        from common_collectives import combine, reductions
        from common_group import FLOATS, INTEGERS, GroupTest, sample

        start()
        tests = GroupTest(rank, size)
        choose = random.Random(0)  # the same on every rank
        groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
        for group in groups:
            dist.barrier(group)
        stop = time.monotonic() + {SOAK_SECONDS}
        done = 0
        go_on = torch.ones(1)
        while True:
            if done % 100 == 0:
                # Rank 0's clock decides for all.
                flag = torch.tensor([float(time.monotonic() < stop)], device="kunlun")
                dist.broadcast(flag, 0)
                if not flag.item():
                    break
            dtype = choose.choice(FLOATS + INTEGERS)
            count = choose.choice([1, 17, 1000, 4096, 5000, 65536, 300001])
            op = choose.choice(reductions(dtype))
            group = choose.choice(groups)
            root = choose.randrange(size)
            kind = choose.choice(["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "reduce"])
            is_async = choose.random() < 0.5
            length = count * size if kind in ("reduce_scatter", "all_to_all") else count
            inputs = [sample(dtype, length, r, seed=done) for r in range(size)]
            x = inputs[rank].to("kunlun")
            if kind == "all_reduce":
                work, result, expected = dist.all_reduce(x, op, group, is_async), x, combine(op, inputs)
            elif kind == "broadcast":
                work, result, expected = dist.broadcast(x, root, group, is_async), x, inputs[root]
            elif kind == "reduce":
                work, result = dist.reduce(x, root, op, group, is_async), x
                expected = combine(op, inputs) if rank == root else inputs[rank]
            elif kind == "all_gather":
                result = torch.empty(count * size, dtype=dtype, device="kunlun")
                work, expected = dist.all_gather_into_tensor(result, x, group, is_async), torch.cat(inputs)
            elif kind == "reduce_scatter":
                result = torch.empty(count, dtype=dtype, device="kunlun")
                work = dist.reduce_scatter_tensor(result, x, op, group, is_async)
                expected = combine(op, inputs).chunk(size)[rank]
            else:
                result = torch.empty_like(x)
                work = dist.all_to_all_single(result, x, group=group, async_op=is_async)
                expected = torch.cat([y.chunk(size)[rank] for y in inputs])
            if work is not None:
                work.wait()
            tests.same(result, expected)
            done += 1
        print(done)
        dist.destroy_process_group()
        """,
        size=size,
    )
    assert int(ranks[0].out) > 100


def test_ranks_killed_at_random_moments(run_ranks):
    before = segments()
    for attempt in range(KILLS):
        size = 2 + attempt % 3
        ranks = run_ranks(
            f"""
            import random, threading
            choose = random.Random({attempt})
            victim, moment = choose.randrange(size), choose.choice([0.01, 0.1, 0.3]) * choose.random()
            start(seconds=60)
            if choose.random() < 0.5:  # else the moment may come while the ranks connect
                dist.all_reduce(torch.ones(1, device="kunlun"))
                torch.kunlun.synchronize()
            if rank == victim:
                threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
            begin = time.monotonic()
            try:
                for i in range(1_000_000):
                    x = torch.ones(choose.choice([1, 5000, 300000]), device="kunlun")
                    dist.all_reduce(x)
                    if i % 7 == 0:
                        torch.kunlun.synchronize()
            except RuntimeError as error:
                assert time.monotonic() - begin < moment + 5, error
                print(victim, error)
            """,
            size=size,
        )
        codes = [rank.code for rank in ranks]
        assert sorted(codes) == [-9] + [0] * (size - 1), (attempt, ranks)
        victim = codes.index(-9)
        for rank in ranks:
            if rank.code == 0:
                said, _, text = rank.out.partition(" ")
                assert int(said) == victim
                assert f"rank {victim} of {size} (process " in text, text
                assert "has died" in text, text
    assert unused_since(before) == set()


def test_many_groups(check_ranks):
    check_ranks(
        f"""
        start()
        x = torch.ones(10, device="kunlun")

        def state():
            with open("/proc/self/status") as status:
                resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident

        def make(count):
            for _ in range(count):
                group = dist.new_group()
                dist.all_reduce(x, group=group)
                torch.kunlun.synchronize()
                dist.destroy_process_group(group)

        make(100)
        files, threads, resident = state()
        make({GROUPS})
        after = state()
        assert after[:2] == (files, threads), (after, files, threads)
        assert after[2] - resident < 20_000, (after[2], resident)  # KiB
        dist.destroy_process_group()
        """
    )
