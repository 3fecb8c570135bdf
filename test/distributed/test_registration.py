"""How a group is asked for: names, devices, options."""

import pytest


@pytest.mark.parametrize(
    "call",
    [
        'start("xccl")',
        'start("XCCL")',
        'start("bkcl")',
        "start(None)",
        'start("cpu:gloo,kunlun:xccl")',
        'start("kunlun:xccl")',
        'start("xccl", device_id=torch.device("kunlun", rank))',
        'start(None, device_id=torch.device("kunlun", rank))',
    ],
)
def test_ways_to_ask_for_a_group(check_ranks, call):
    check_ranks(
        f"""
        {call}
        x = torch.full((8,), float(rank + 1), device="kunlun")
        dist.all_reduce(x)
        assert x.tolist() == [3.0] * 8, x
        dist.barrier()
        # What DDP looks for: the group's default backend is the device's.
        group = dist.group.WORLD
        assert group._device_types and dist.is_xccl_available() and dist.is_backend_available("xccl")
        dist._verify_params_across_processes(group, [x], None)
        dist.destroy_process_group()
        """
    )


def test_options_reach_the_group(check_ranks):
    check_ranks(
        """
        from torch.distributed import ProcessGroupXCCL
        options = ProcessGroupXCCL.Options(is_high_priority_stream=True)
        group = start("xccl", pg_options=options)
        backend = group._get_backend(torch.device("kunlun"))
        assert backend.options.is_high_priority_stream
        assert backend.options._timeout == timedelta(seconds=60)
        assert not dist.new_group()._get_backend(torch.device("kunlun")).options.is_high_priority_stream
        dist.destroy_process_group()
        """
    )


def test_wrong_options_are_refused(check_ranks):
    check_ranks(
        """
        try:
            start("bkcl", pg_options=dist.ProcessGroupGloo._Options())
        except TypeError as error:
            assert "ProcessGroupXCCL.Options" in str(error)
        else:
            raise AssertionError("no error")
        """
    )


def test_cpu_tensors_are_refused(check_ranks):
    check_ranks(
        """
        start("xccl")
        try:
            dist.all_reduce(torch.ones(2))
        except RuntimeError as error:
            assert "No backend type associated with device type cpu" in str(error), error
        else:
            raise AssertionError("no error")
        dist.destroy_process_group()
        """
    )


def test_another_vendors_xccl_is_left_alone(run_new_python):
    done = run_new_python(
        """
        import torch
        from torch.distributed import distributed_c10d as c10d
        class Theirs: pass
        c10d._XCCL_AVAILABLE = True
        c10d.ProcessGroupXCCL = Theirs
        import torch_xpu_kunlun
        import torch.distributed as dist
        assert c10d.ProcessGroupXCCL is Theirs
        assert dist.Backend.default_device_backend_map["kunlun"] == "bkcl"
        try:
            c10d.BackendConfig(dist.Backend("kunlun:xccl"))
        except ValueError as error:
            print(error)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.returncode == 0, done.stderr
    assert "use the backend 'bkcl'" in done.stdout
