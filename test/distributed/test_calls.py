"""When a call returns: the host waits for nothing but what it asks for, and can be interrupted."""

import pytest

LATE = """
import threading
start()
x = torch.ones({count}, device="kunlun")
dist.all_reduce(x)  # connects
torch.kunlun.synchronize()
for round in range(50):
    if rank == 0:
        {call}
        store.set(f"{{round}}", "go on")
    else:
        store.wait([f"{{round}}"], timedelta(seconds=20))  # rank 0 has to get here before this rank joins it
        {call}
    {wait}
    torch.kunlun.synchronize()
assert x.unique().tolist() == [2.0**51], x
dist.destroy_process_group()
"""


@pytest.mark.parametrize("count", [1000, 100_000, 3_000_000])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_call_does_not_wait_for_peers(check_ranks, count, is_async):
    call = f"work = dist.all_reduce(x, async_op={is_async})"
    check_ranks(LATE.format(count=count, call=call, wait="work.wait()" if is_async else "pass"))


def test_an_asynchronous_barrier_does_not_wait_for_peers(check_ranks):
    call = "work = dist.barrier(async_op=True); dist.all_reduce(x)"
    check_ranks(LATE.format(count=10, call=call, wait="work.wait()"))


def test_small_collectives_need_no_other_thread(check_ranks):
    """Where nobody is waited for, the calling thread carries the collective out. One rank: peers might come late."""
    (rank,) = check_ranks(
        """
        start()
        x = torch.ones(1000, device="kunlun")

        def sleeps():
            total = 0
            for task in os.listdir("/proc/self/task"):
                with open(f"/proc/self/task/{task}/status") as status:
                    fields = dict(line.split(":", 1) for line in status)
                if fields["Name"].strip().startswith("kl0-"):  # threads of streams
                    total += int(fields["voluntary_ctxt_switches"])
            return total

        def run(count, **arguments):
            before = sleeps()
            for _ in range(count):
                dist.all_reduce(x, dist.ReduceOp.MAX, **arguments)
                dist.barrier()
                torch.kunlun.synchronize()
            return sleeps() - before

        run(10)
        time.sleep(0.1)  # the threads go to sleep
        print(run(1000), run(1000, async_op=True))
        dist.destroy_process_group()
        """,
        size=1,
    )
    by_caller, by_stream = map(int, rank.out.split())
    assert by_caller == 0
    assert by_stream > 0  # what is counted above would be seen


@pytest.mark.parametrize("what", ["barrier", "wait"])
def test_ctrl_c_ends_a_wait_for_peers(check_ranks, what):
    wait = {
        "barrier": "dist.barrier()",
        "wait": "dist.all_reduce(x, async_op=True).wait(timedelta(seconds=60))",
    }[what]
    ranks = check_ranks(
        f"""
        import threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a program that runs in a terminal
        start()
        x = torch.ones(10, device="kunlun")
        dist.all_reduce(x)
        torch.kunlun.synchronize()
        if rank == 0:
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            begin = time.monotonic()
            try:
                {wait}
            except KeyboardInterrupt:
                print(time.monotonic() - begin)
            timer.join()
            store.set("interrupted", "")
        else:
            store.wait(["interrupted"], timedelta(seconds=50))
            {wait}  # what rank 0 no longer waits for goes on
        dist.all_reduce(x)
        assert x.unique().numel() == 1
        torch.kunlun.synchronize()
        dist.destroy_process_group()
        """
    )
    assert 0.2 < float(ranks[0].out) < 10


def test_a_handle_may_outlive_the_profiler(check_ranks):
    check_ranks(
        """
        start()
        x = torch.ones(10, device="kunlun")
        for _ in range(3):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                work = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
            del work
            dist.all_reduce(x, dist.ReduceOp.MAX)  # releases what has ended
        assert "xccl:all_reduce" in [event.key for event in profiler.key_averages()]
        dist.destroy_process_group()
        """
    )
