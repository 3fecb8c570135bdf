# Life in a process: import, first use, fork, exit, environment variables.
import pytest

FORK = """
    import os, sys, torch
    def in_child(function):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                function()
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
"""


def test_looking_starts_nothing(check_new_python):
    check_new_python(
        """
        import os, torch
        def look():
            with open("/proc/self/maps") as maps:
                mapped = [line for line in maps if "memfd" in line]
            return len(os.listdir("/proc/self/task")), mapped, len(os.listdir("/proc/self/fd"))
        before = look()
        def check():
            assert not torch.kunlun.is_initialized()
            assert look() == before, (before, look())
        import torch_xpu_kunlun
        check()
        assert torch.kunlun.is_available() and torch.kunlun.device_count() == 2
        torch.kunlun.get_device_properties(1)
        torch.kunlun.set_device(1)
        torch.manual_seed(1)
        assert torch.kunlun.memory_allocated() == 0 and torch.kunlun.memory_stats() == {}
        torch.kunlun.empty_cache()
        assert torch.kunlun.current_stream().stream_id == 0
        torch.kunlun.Stream(); torch.kunlun.Event()
        check()
        torch.empty(1, device="kunlun")
        assert torch.kunlun.is_initialized()
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize("imports", ["import torch, torch_xpu_kunlun", "import torch_xpu_kunlun, torch"])
def test_both_orders_of_import(check_new_python, imports, autoload):
    check_new_python(
        f"""
        {imports}
        import torch_xpu_kunlun.kunlun
        assert torch_xpu_kunlun.kunlun is torch.kunlun
        assert torch.kunlun.is_available()
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
    )


def test_fork_after_import_and_after_device_count(check_python):
    check_python(
        FORK
        + """
    import torch_xpu_kunlun
    def use():
        assert not torch.kunlun._is_in_bad_fork()
        assert torch.ones(10, device="kunlun").sum().item() == 10
    in_child(use)
    assert torch.kunlun.device_count() == 2
    in_child(use)
    use()
    """
    )


def test_fork_after_first_use_is_refused_in_the_child(check_python):
    output = check_python(
        FORK
        + """
    import torch_xpu_kunlun
    tensor = torch.ones(10, device="kunlun")
    pinned = torch.ones(10).pin_memory()
    stream, event = torch.kunlun.Stream(), torch.kunlun.Event()
    event.record()
    state = torch.kunlun.get_rng_state()
    def use():
        global tensor, pinned, stream, event
        assert torch.kunlun._is_in_bad_fork()
        assert not torch.kunlun.is_initialized()
        for act in (
            lambda: torch.ones(10, device="kunlun"),
            lambda: tensor + 1,
            lambda: tensor.cpu(),
            lambda: torch.kunlun.synchronize(),
            lambda: torch.kunlun.init(),
            lambda: torch.kunlun.Stream().synchronize(),
            lambda: torch.kunlun.mem_get_info(),
            lambda: torch.ones(10).pin_memory(),
            lambda: torch.kunlun.Stream(),
            lambda: torch.Stream("kunlun"),
            lambda: torch.kunlun.current_stream(),
            lambda: torch.kunlun.default_stream(),
            lambda: torch.kunlun.stream(stream).__enter__(),
            lambda: torch.kunlun.set_device(1),
            lambda: torch.kunlun.Event().record(),
            lambda: event.record(stream),
            lambda: event.query(),
            lambda: event.synchronize(),
            lambda: event.wait(stream),
            lambda: stream.query(),
            lambda: torch.kunlun.Event(interprocess=True).ipc_handle(),
            lambda: torch.kunlun.get_rng_state(),
            lambda: torch.kunlun.set_rng_state(state),
            lambda: torch.randn(3, device="kunlun"),
            lambda: torch.kunlun.utilization(),
        ):
            try:
                act()
            except RuntimeError as error:
                print(str(error).splitlines()[0])
            else:
                raise AssertionError("not refused")
        assert torch.kunlun.memory_allocated() == 0
        torch.manual_seed(1)
        # What was inherited may go away in peace, and CPU work goes on.
        del tensor, pinned, stream, event
        assert torch.ones(3).sum().item() == 3
    in_child(use)
    assert tensor.sum().item() == 10
    """
    )
    lines = output.splitlines()
    assert len(lines) == 25
    text = (
        "Cannot re-initialize kunlun in forked subprocess. To use kunlun with multiprocessing, "
        "you must use the 'spawn' start method"
    )
    assert set(lines) == {text}


def test_a_second_import_and_a_reload_find_everything_done(check_python):
    check_python(
        """
        import importlib, sys, torch, torch_xpu_kunlun
        module, dlpack = torch.kunlun, torch.Tensor.__dlpack_device__
        importlib.reload(torch_xpu_kunlun)
        importlib.reload(torch_xpu_kunlun._registration).register()
        importlib.reload(torch_xpu_kunlun)
        assert torch.kunlun is module and torch.Tensor.__dlpack_device__ is dlpack
        for name in [name for name in sys.modules if name.startswith("torch_xpu_kunlun")]:
            del sys.modules[name]
        import torch_xpu_kunlun
        assert torch.kunlun is module and torch.Tensor.__dlpack_device__ is dlpack
        assert torch.ones(2, device="kunlun").sum().item() == 2
        """
    )


def test_the_first_import_and_first_use_may_be_in_a_thread(check_new_python):
    check_new_python(
        """
        import threading
        seen = []
        def work():
            import torch, torch_xpu_kunlun
            seen.append(torch.ones(3, device="kunlun").sum().item())
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        import torch
        assert seen == [3, 3] and torch.ones(4, device="kunlun").sum().item() == 4
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_dataloader_workers_that_only_use_the_cpu(check_python):
    check_python(
        """
        import torch, torch_xpu_kunlun
        torch.ones(1, device="kunlun")
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, pin_memory=True)
        total = sum(batch.to("kunlun").sum().item() for (batch,) in loader)
        assert total == 28, total
        """
    )


def test_exit_with_work_and_tensors_pending(check_python):
    for last in ("pass", "torch.kunlun.synchronize()", "import sys; sys.exit(0)"):
        check_python(
            f"""
            import torch, torch_xpu_kunlun
            keep = [torch.randn(512, 512, device="kunlun") for _ in range(4)]
            stream = torch.kunlun.Stream()
            event = torch.kunlun.Event()
            pinned = torch.empty(1000).pin_memory()
            with torch.kunlun.stream(stream):
                for _ in range(20):
                    keep.append(keep[-1] * 2)
                event.record()
            {last}
            """
        )


def test_an_uncaught_error_is_the_last_word(run_python):
    done = run_python("import torch, torch_xpu_kunlun; torch.empty(2, device='kunlun'); raise KeyError('mine')")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")


@pytest.mark.parametrize(("visible", "count", "first"), [("1", 1, 1), ("1,0", 2, 1), ("0", 1, 0), ("", 0, None)])
def test_visible_devices(check_python, visible, count, first):
    code = f"""
    import torch, torch_xpu_kunlun
    assert torch.kunlun.device_count() == {count}
    assert torch.kunlun.is_available() is {count > 0}
    if {count}:
        assert torch.kunlun.get_device_properties(0).physical_id == {first}
        assert torch.ones(2, device="kunlun").sum().item() == 2
    else:
        try:
            torch.ones(2, device="kunlun")
        except RuntimeError as error:
            assert "no kunlun device is visible" in str(error), error
        else:
            raise AssertionError("not refused")
    """
    check_python(code, KUNLUN_VISIBLE_DEVICES=visible)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KUNLUN_VISIBLE_DEVICES", "0,zero"),
        ("KUNLUN_SIM_DEVICES", "many"),
        ("KUNLUN_SIM_MEMORY", "4 apples"),
        ("KUNLUN_LAUNCH_BLOCKING", "perhaps"),
        ("KUNLUN_FALLBACK", "sometimes"),
        ("KUNLUN_LOG_LEVEL", "loud"),
        ("KUNLUN_CHIP", "abacus"),
    ],
)
def test_a_malformed_variable_is_named_and_can_be_corrected(run_python, name, value):
    done = run_python(
        f"""
        import os, torch, torch_xpu_kunlun
        try:
            torch.ones(2, device="kunlun")
        except ValueError as error:
            print(error)
        else:
            raise AssertionError("not refused")
        del os.environ["{name}"]
        assert torch.kunlun.device_count() == 2
        assert torch.ones(2, device="kunlun").sum().item() == 2
        """,
        **{name: value},
    )
    assert done.returncode == 0, done.stderr
    assert name in done.stdout
    assert value in done.stdout


def test_a_malformed_variable_is_a_warning_where_nothing_may_be_raised(run_python):
    done = run_python(
        """
        import torch, torch_xpu_kunlun
        assert torch.kunlun.device_count() == 0
        assert not torch.kunlun.is_available()
        """,
        KUNLUN_SIM_DEVICES="many",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no kunlun device can be used") == 1
    assert "KUNLUN_SIM_DEVICES" in done.stderr


def test_sim_memory_is_what_the_device_has(check_python):
    check_python(
        """
        import torch, torch_xpu_kunlun
        assert torch.kunlun.mem_get_info() == (64 << 20, 64 << 20)
        try:
            torch.empty(65 << 20, dtype=torch.uint8, device="kunlun")
        except torch.OutOfMemoryError as error:
            assert "total capacity of 64.00 MiB" in str(error), error
        assert torch.empty(32 << 20, dtype=torch.uint8, device="kunlun").numel() == 32 << 20
        """,
        KUNLUN_SIM_MEMORY="64M",
    )


def test_the_environment_table_is_complete(check_python):
    output = check_python(
        """
        from torch_xpu_kunlun import _C
        for row in _C._get_environment():
            assert all(row[key] for key in ("name", "values", "meaning")), row
            print(row["name"])
        """
    )
    assert "KUNLUN_CHIP" in output.split()
    assert "KUNLUN_VISIBLE_DEVICES" in output.split()


def test_another_torch_is_refused_with_both_names(run_new_python):
    done = run_new_python(
        """
        import torch
        torch.__version__ = torch.torch_version.TorchVersion("2.99.1")
        import torch_xpu_kunlun
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "torch 2.99.1 is installed" in done.stderr
    assert "was built for torch 2." in done.stderr


def test_allocator_settings_are_used(check_new_python):
    check_new_python(
        """
        import torch, torch_xpu_kunlun
        tensor = torch.empty(1100, dtype=torch.uint8, device="kunlun")
        assert torch.kunlun.memory_allocated() == 1536
        large = torch.empty((64 << 20) + 512 * 3, dtype=torch.uint8, device="kunlun")
        assert torch.kunlun.memory_allocated() == 1536 + (80 << 20), torch.kunlun.memory_allocated()
        assert torch.kunlun.memory_stats()["max_split_size"] == 32 << 20
        assert torch.kunlun.memory_stats()["oversize_allocations.current"] == 1
        """,
        PYTORCH_ALLOC_CONF="max_split_size_mb:32,roundup_power2_divisions:4",
    )


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_a_failed_operator_is_reported_at_the_latest_when_waited_for(check_python, blocking):
    check_python(
        f"""
        import torch
        weight = torch.ones(4, 2, device="kunlun")
        wrong = torch.tensor([9]).to("kunlun")
        torch.kunlun.synchronize()
        at_call = True
        try:
            torch.nn.functional.embedding(wrong, weight)
            at_call = False
            torch.kunlun.synchronize()
        except IndexError as error:
            assert at_call or {blocking} == 0
            assert "index out of range" in str(error), error
        else:
            raise AssertionError("not reported")
        # Reported once; then the stream is clean.
        torch.kunlun.synchronize()
        assert (weight + 1).sum().item() == 16
        """,
        KUNLUN_LAUNCH_BLOCKING=blocking,
    )
