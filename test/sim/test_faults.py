"""Faults that the simulated chip shows: each has a typed error with a clear text, and the device works afterwards."""

import threading
import time

import pytest
import torch
from common_faults import DEVICE, WAITS, works


def test_a_refused_launch(faults):
    a = torch.ones(4, device=DEVICE)
    faults.inject_fault("launch", after=2, device=1)
    b = a + 1
    b = b + 1
    assert faults.pending_faults() == ["launch:0@1"]
    with pytest.raises(RuntimeError, match=r"refused the launch.*injected.*aten::add.*kunlun:1"):
        b + 1
    assert faults.pending_faults() == []
    assert b.tolist() == [3.0] * 4
    assert works()


def test_only_the_named_device_counts(faults):
    faults.inject_fault("launch", device=DEVICE)
    assert works("kunlun:0")
    with pytest.raises(RuntimeError, match="refused the launch"):
        works()
    assert works()


def test_a_failing_operator(faults):
    a = torch.ones(4, device=DEVICE)
    torch.kunlun.synchronize(1)
    faults.inject_fault("kernel", after=1, device=1)
    a.add_(1)
    a.add_(1)  # fails when the chip gets to it
    with pytest.raises(RuntimeError, match=r"operator failed on the chip.*aten::add.*kunlun:1, work item \d+"):
        torch.kunlun.synchronize(1)
    assert a.tolist() == [2.0] * 4
    assert works()


def test_a_poisoned_device_says_so_until_it_is_reset(check_with_helpers):
    check_with_helpers(
        """
        import gc, torch
        from torch_xpu_kunlun import sim
        from common_faults import calls_on, works
        a, host = torch.ones(4, device="kunlun:1"), torch.ones(4)
        torch.kunlun.synchronize(1)
        sim.inject_fault("poison", device=1)
        b = a + 1
        try:
            torch.kunlun.synchronize(1)
        except torch.AcceleratorError:
            pass  # from here on the device is known to be broken
        for _ in range(2):
            for name, call in calls_on(a, host).items():
                try:
                    call()
                except torch.AcceleratorError as error:
                    text = str(error)
                    for part in ("broke the device", "aten::add", "kunlun:1", "torch.kunlun.reset_device()",
                                 "memory contents are lost"):
                        assert part in text, (name, part, text)
                else:
                    raise AssertionError(f"{name} raised nothing")
        assert works("kunlun:0")
        torch.kunlun.reset_device(1)
        assert works()
        a.fill_(3)
        assert a.tolist() == [3.0] * 4
        for call in calls_on(a, host).values():
            call()
        del a, b
        gc.collect()
        torch.kunlun.empty_cache()
        assert works()
        """
    )


def test_a_hang_ends_when_it_is_released_and_nothing_is_lost(faults):
    a = torch.ones(4, device=DEVICE)
    torch.kunlun.synchronize(1)
    faults.inject_fault("hang", device=1)
    a.add_(1)
    assert not torch.kunlun.current_stream(1).query()
    assert works("kunlun:0")
    with torch.kunlun.stream(torch.kunlun.Stream(1)):
        assert works()  # other streams of the device go on
    # Whoever waits holds no GIL, or this thread could not release the hang.
    threading.Timer(0.2, faults.release_hangs).start()
    cpu = time.process_time()
    torch.kunlun.synchronize(1)
    assert time.process_time() - cpu < 0.15  # nor does the wait, or the hang, take a core
    assert a.tolist() == [2.0] * 4
    assert works()


def test_a_hang_that_gives_up(faults):
    a = torch.ones(4, device=DEVICE)
    faults.inject_fault("hang", device=1, seconds=0.05)
    b = a + 1
    with pytest.raises(RuntimeError, match=r"hung and was given up after 0\.05 seconds.*aten::add"):
        b.cpu()
    assert works()


def test_a_reset_ends_a_hang(check_with_helpers):
    check_with_helpers(
        """
        import torch
        from torch_xpu_kunlun import sim
        from common_faults import works
        a = torch.ones(4, device="kunlun:1")
        sim.inject_fault("hang", device=1)
        for _ in range(10):
            a = a + 1
        torch.kunlun.reset_device(1)
        assert sim.hanging_streams() == 0
        assert works()
        """
    )


def test_a_process_with_a_hanging_stream_ends(check_python):
    check_python(
        """
        import torch
        from torch_xpu_kunlun import sim
        a = torch.ones(4, device="kunlun:1")
        sim.inject_fault("hang")
        a = a + 1
        """
    )


def test_ctrl_c_interrupts_every_wait(check_with_helpers):
    printed = check_with_helpers(
        """
        import signal, sys, threading, time
        import torch
        from torch_xpu_kunlun import sim
        from common_faults import WAITS, works
        event = torch.Event("kunlun")
        for name, wait in WAITS.items():
            a = torch.zeros(1 << 20, device="kunlun")
            torch.kunlun.synchronize()
            sim.inject_fault("hang")
            a.add_(1)
            event.record()
            timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
            timer.start()
            try:
                wait(a, event)
            except KeyboardInterrupt:
                print(name)
            timer.join()
            assert sim.hanging_streams() == 1, name
            sim.release_hangs()
            torch.kunlun.synchronize()
            assert a.min().item() == a.max().item() >= 1, name
            assert works("kunlun:0"), name
        """
    )
    assert printed.splitlines() == list(WAITS)


def test_a_copy_whose_wait_was_interrupted_is_never_made(check_python):
    check_python(
        """
        import signal, threading
        import torch
        from torch_xpu_kunlun import sim
        a, host = torch.ones(1 << 20, device="kunlun"), torch.zeros(1 << 20)
        sim.inject_fault("hang")
        a.add_(1)
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        try:
            host.copy_(a)
        except KeyboardInterrupt:
            sim.release_hangs()
        torch.kunlun.synchronize()
        assert host.max().item() == 0  # its memory may have been given to somebody else by now
        host.copy_(a)
        assert host.min().item() == 2
        """
    )


def test_faults_from_the_environment(check_with_helpers):
    check_with_helpers(
        """
        import torch
        from torch_xpu_kunlun import sim
        from common_faults import works
        a = torch.ones(4, device="kunlun:1")
        assert sim.pending_faults()[1:] == ["hang:5:30@0"], sim.pending_faults()
        try:
            for _ in range(3):
                a + 1
        except RuntimeError as error:
            assert "KUNLUN_SIM_FAULT" in str(error), error
        else:
            raise AssertionError("no fault")
        assert works()
        """,
        KUNLUN_SIM_FAULT="launch:1@1,hang:5:30@0",
    )


def test_small_memory(check_with_helpers):
    check_with_helpers(
        """
        import torch
        from common_faults import works
        a = torch.ones(8 << 20, device="kunlun:1")  # half of it
        try:
            torch.ones(16 << 20, device="kunlun:1")
        except torch.OutOfMemoryError as error:
            assert "Tried to allocate 64.00 MiB" in str(error), error
        else:
            raise AssertionError("no error")
        assert a.sum().item() == 8 << 20 and works()
        """,
        KUNLUN_SIM_MEMORY="64M",
    )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"kind": "crash"}, ValueError, "launch, kernel, poison or hang"),
        ({"kind": "launch", "after": -1}, ValueError, "not -1"),
        ({"kind": "launch", "after": "x"}, TypeError, "expected after to be an int, but got str"),
        ({"kind": "launch", "after": 1.5}, TypeError, "expected after to be an int, but got float"),
        ({"kind": 3}, TypeError, "expected kind to be a str, but got int"),
        ({"kind": "hang", "seconds": "1"}, TypeError, "expected seconds to be a number, but got str"),
        ({"kind": "launch", "seconds": 1.0}, ValueError, "only a hang takes seconds"),
        ({"kind": "hang", "seconds": 0}, ValueError, "between 0"),
        ({"kind": "hang", "device": 7}, RuntimeError, "invalid kunlun device ordinal 7"),
        ({"kind": "hang", "device": "cpu"}, ValueError, "expected a kunlun device, got cpu"),
    ],
)
def test_arguments_that_make_no_sense(faults, arguments, error, text):
    with pytest.raises(error, match=text):
        faults.inject_fault(**arguments)
    assert faults.pending_faults() == []


@pytest.mark.parametrize("name", ["set_copy_speed", "set_link_speed"])
def test_speeds_that_make_no_sense(faults, name):
    with pytest.raises(TypeError, match="expected a speed in bytes a second to be an int, but got str"):
        getattr(faults, name)("fast")
    with pytest.raises(ValueError, match="at least one byte a second, not 0"):
        getattr(faults, name)(0)


def test_another_driver_is_refused(tmp_path, run_python, pytestconfig):
    import shutil
    import subprocess

    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    driver = tmp_path / "tiny_driver.so"
    root = pytestconfig.rootpath
    source = root / "test" / "chip" / "tiny_driver.c"
    subprocess.run(["cc", "-std=c11", "-shared", "-fPIC", f"-I{root / 'csrc'}", source, "-o", driver], check=True)
    done = run_python(
        """
        from torch_xpu_kunlun import sim
        for call in (lambda: sim.inject_fault("launch"), sim.pending_faults, sim.clear_faults, sim.release_hangs,
                     sim.hanging_streams, lambda: sim.set_copy_speed(1), lambda: sim.set_link_speed(1)):
            try:
                call()
            except RuntimeError as error:
                assert "simulated chip only" in str(error) and "'tiny'" in str(error), error
            else:
                raise AssertionError("not refused")
        """,
        KUNLUN_CHIP=str(driver),
    )
    assert done.returncode == 0, done.stderr
