"""Asynchronous errors and threads: a failure stays on its streams; threads and streams compute rightly at once."""

import contextlib
import threading

import pytest
import torch
from common_move import DEVICE

from torch_xpu_kunlun import sim

BAD = r"index 9 is out of bounds.*aten::index\.Tensor_out"


def fail():
    """Launches work that fails on the current stream; returns its result."""
    return torch.ones(4, device=DEVICE)[torch.tensor([1, 9], device=DEVICE)]


def test_another_stream_is_not_touched():
    side = torch.kunlun.Stream()
    with torch.kunlun.stream(side):
        fail()
    x = torch.ones(1000, device=DEVICE) * 2
    torch.kunlun.default_stream().synchronize()
    assert x.sum().item() == 2000
    with pytest.raises(IndexError, match=BAD):
        side.synchronize()
    with torch.kunlun.stream(side):
        assert (x + 1).sum().item() == 3000  # clean again


def test_another_device_is_not_touched():
    fail()
    with torch.kunlun.device(1):
        assert torch.ones(5, device="kunlun:1").cumsum(0).tolist() == [1, 2, 3, 4, 5]
        torch.kunlun.synchronize(1)
    with pytest.raises(IndexError, match=BAD):
        torch.kunlun.synchronize(0)


def test_who_waits_for_a_failed_stream_fails_too():
    side = torch.kunlun.Stream()
    with torch.kunlun.stream(side):
        x = fail()
        event = torch.kunlun.Event()
        event.record()
    main = torch.kunlun.current_stream()
    main.wait_event(event)
    with pytest.raises(IndexError, match=BAD):
        (x + 1).sum().item()
    with pytest.raises(IndexError, match=BAD):
        side.synchronize()
    torch.kunlun.synchronize()
    assert torch.ones(3, device=DEVICE).sum().item() == 3


def test_what_was_copied_from_a_failed_device_fails_too():
    with pytest.raises(IndexError, match=BAD):
        fail().to("kunlun:1").cpu()
    for index in (0, 1):  # both streams carry the failure; which has reported it is a matter of time
        with contextlib.suppress(IndexError):
            torch.kunlun.synchronize(index)
    assert torch.ones(3, device="kunlun:1").to(DEVICE).sum().item() == 3


def test_work_behind_a_failure_is_skipped():
    target = torch.zeros(4, device=DEVICE)
    torch.kunlun.synchronize()
    gate = torch.kunlun.Stream()
    with torch.kunlun.stream(gate):
        with pytest.raises(IndexError, match=BAD):
            x = fail()
            for _ in range(3):
                target.add_(x.sum())
            gate.synchronize()
    assert target.tolist() == [0] * 4  # nothing was computed from what the failed kernel left


def test_a_failure_is_reported_once_and_with_its_number():
    fail()
    with pytest.raises(IndexError, match=r"work item \d+ of its stream"):
        torch.kunlun.synchronize()
    torch.kunlun.synchronize()
    fail()
    with pytest.raises(IndexError):
        torch.ones(3, device=DEVICE).cpu()
    assert torch.ones(3, device=DEVICE).tolist() == [1, 1, 1]


def test_failures_of_two_streams_are_both_reported():
    streams = [torch.kunlun.Stream() for _ in range(2)]
    for stream in streams:
        with torch.kunlun.stream(stream):
            fail()
    for stream in streams:
        with pytest.raises(IndexError, match=BAD):
            stream.synchronize()


def test_destruction_raises_nothing():
    x = fail()
    event = torch.kunlun.Event()
    event.record()
    del x, event
    with pytest.raises(IndexError, match=BAD):
        torch.kunlun.synchronize()


def compute(device: str, seed: int, rounds: int) -> list:
    """Chains that need their order: launchers, boxed operators, copies."""
    x = torch.full((64, 64), float(seed), device=device)
    for number in range(rounds):
        x = (x + number).remainder(17)
        if number % 10 == 0:
            x = x[torch.randperm(64, device=device).argsort().argsort().sort().values]
            x = x + torch.unique(x).numel() * 0
        if number % 25 == 0:
            x = x.cpu().to(device)
    return x.tolist()


@pytest.mark.parametrize("devices", [("kunlun:0", "kunlun:0"), ("kunlun:0", "kunlun:1")], ids=["one", "two"])
@pytest.mark.parametrize("own_streams", [False, True], ids=["default streams", "own streams"])
def test_threads_compute_at_the_same_time(devices, own_streams):
    results = {}

    def work(seed, device):
        stream = torch.kunlun.Stream(device) if own_streams else torch.kunlun.default_stream(device)
        with torch.kunlun.stream(stream):
            results[seed] = compute(device, seed, 100)

    threads = [threading.Thread(target=work, args=(seed, devices[seed % 2])) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {seed: compute("cpu", seed, 100) for seed in range(4)}


def test_a_threads_error_is_its_streams_alone():
    outcome = {}

    def work(name, bad):
        with torch.kunlun.stream(torch.kunlun.Stream()):
            try:
                for _ in range(20):
                    x = torch.ones(100, device=DEVICE)
                    x = x * 2
                    if bad:
                        fail()
                outcome[name] = x.sum().item()
            except IndexError as error:
                outcome[name] = type(error).__name__
                try:
                    torch.kunlun.current_stream().synchronize()
                except IndexError:
                    outcome[name] += " again"

    threads = [threading.Thread(target=work, args=(f"{bad}{n}", bad)) for n in range(2) for bad in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, value in outcome.items():
        assert value == 200 if name.startswith("False") else value.startswith("IndexError"), outcome


def test_streams_with_crossed_waits():
    streams = [torch.kunlun.Stream() for _ in range(8)]
    values = [torch.full((256,), float(n), device=DEVICE) for n in range(8)]
    expected = [float(n) for n in range(8)]
    torch.kunlun.synchronize()
    for turn in range(20):
        for n, stream in enumerate(streams):
            other = (n + turn + 1) % 8
            stream.wait_stream(streams[other])
            with torch.kunlun.stream(stream):
                values[n] = (values[n] + values[other]) % 1000
                values[n].record_stream(streams[(n - turn) % 8])
            expected[n] = (expected[n] + expected[other]) % 1000
            for later in streams:
                if later != stream:
                    later.wait_stream(stream)
    torch.kunlun.synchronize()
    assert [value.unique().tolist() for value in values] == [[e] for e in expected]


def test_a_tensor_freed_on_the_host_is_kept_for_the_stream_that_uses_it():
    side = torch.kunlun.Stream()
    results = []
    for number in range(50):
        x = torch.full((1 << 14,), float(number), device=DEVICE)
        side.wait_stream(torch.kunlun.current_stream())
        with torch.kunlun.stream(side):
            results.append(x * 1)
            x.record_stream(side)
        del x  # the next allocation would get this memory
    side.synchronize()
    assert [r[:1].item() for r in results] == list(range(50))
    assert all((r == n).all() for n, r in enumerate(results))


def test_launches_do_not_wait_for_the_chip():
    """The chip holds a stream up; the caller goes on all the same."""
    gate, side = torch.kunlun.Stream(), torch.kunlun.Stream()
    sim.inject_fault("hang")
    with torch.kunlun.stream(gate):
        held = torch.ones(1, device=DEVICE)
    passed = torch.kunlun.Event()
    passed.record(gate)
    side.wait_event(passed)
    with torch.kunlun.stream(side):
        y = torch.zeros(8, device=DEVICE)
        for _ in range(100):
            y += 1
    assert not gate.query()
    assert not side.query()  # a hundred launches, and none has been waited for
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2, 2, 2]  # other streams go on
    sim.release_hangs()
    with torch.kunlun.stream(side):
        assert y.tolist() == [100] * 8
        assert held.item() == 1
