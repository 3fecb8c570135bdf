# PYTORCH_ALLOC_CONF: expandable segments, garbage collection, splitting, rounding; and memory over a long time.
import resource

import pytest
import torch

MIB = 1 << 20


def settings_of(text):
    torch.kunlun.memory._set_allocator_settings(text)


@pytest.fixture
def restored_settings():
    yield
    settings_of("expandable_segments:False,roundup_power2_divisions:1,large_segment_size_mb:20")
    torch.kunlun.empty_cache()


@pytest.mark.alone
def test_expandable_segments_grow_and_shrink(restored_settings, fresh_memory):
    settings_of("expandable_segments:True")
    base = torch.kunlun.memory_reserved()
    first = torch.ones(30 * MIB, dtype=torch.uint8, device="kunlun")
    second = torch.ones(50 * MIB, dtype=torch.uint8, device="kunlun")
    third = torch.ones(10 * MIB, dtype=torch.uint8, device="kunlun")
    assert second.data_ptr() == first.data_ptr() + 30 * MIB
    assert torch.kunlun.memory_reserved() == base + 90 * MIB
    del second
    torch.kunlun.empty_cache()
    assert torch.kunlun.memory_reserved() == base + 40 * MIB
    assert first.sum().item() + third.sum().item() == 40 * MIB
    segments = [segment for segment in torch.kunlun.memory_snapshot() if segment["is_expandable"]]
    assert sum(segment["total_size"] for segment in segments if segment["segment_type"] == "large") == 40 * MIB
    # In the hole and beyond: copies, kernels and views do not care.
    second = torch.full((60 * MIB,), 2, dtype=torch.uint8, device="kunlun")
    assert second.view(-1, 1024)[1:].cpu().eq(2).all()
    del first, second, third
    torch.kunlun.empty_cache()
    assert torch.kunlun.memory_reserved() == base


def test_expandable_segments_from_the_environment(check_new_python):
    check_new_python(
        """
import torch
a = torch.empty(30 << 20, dtype=torch.uint8, device="kunlun")
b = torch.empty(30 << 20, dtype=torch.uint8, device="kunlun")
assert b.data_ptr() == a.data_ptr() + (30 << 20)
assert torch.kunlun.memory_stats()["segment.all.current"] == 1
""",
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )


def test_garbage_is_collected_before_the_threshold_is_passed(check_new_python):
    check_new_python(
        """
import torch
torch.kunlun.init()
_, total = torch.kunlun.mem_get_info()
step = total // 10 // (2 << 20) * (2 << 20)
for i in range(1, 6):
    # Each is larger than the last, so none can be used for the next.
    torch.empty(step + i * (2 << 20), dtype=torch.uint8, device="kunlun")
    assert torch.kunlun.memory_reserved() <= total * 0.25, i
stats = torch.kunlun.memory_stats()
assert stats["num_alloc_retries"] == 0
assert stats["num_device_free"] == 3
""",
        PYTORCH_ALLOC_CONF="garbage_collection_threshold:0.25",
        KUNLUN_SIM_MEMORY="1G",
    )


def test_large_blocks_are_kept_whole(check_new_python):
    check_new_python(
        """
import torch
keep = torch.empty(64 << 20, dtype=torch.uint8, device="kunlun")
assert torch.kunlun.memory_stats()["oversize_segments.current"] == 1
del keep
small = torch.empty(10 << 20, dtype=torch.uint8, device="kunlun")
stats = torch.kunlun.memory_stats()
assert stats["max_split_size"] == 32 << 20
assert stats["inactive_split_bytes.all.current"] == 0, stats
assert torch.kunlun.memory_reserved() == 74 << 20
""",
        PYTORCH_ALLOC_CONF="max_split_size_mb:32",
    )


def test_sizes_are_rounded_up(restored_settings, fresh_memory):
    settings_of("roundup_power2_divisions:4")
    before = torch.kunlun.memory_stats()
    tensor = torch.empty(1200 * 1024, dtype=torch.uint8, device="kunlun")
    after = torch.kunlun.memory_stats()
    rounded, requested = (
        after[f"{key}.all.current"] - before[f"{key}.all.current"] for key in ("allocated_bytes", "requested_bytes")
    )
    assert rounded == 1280 * 1024
    assert requested == tensor.numel()


@pytest.mark.alone
def test_segments_of_another_size(restored_settings, fresh_memory):
    settings_of("large_segment_size_mb:64")
    before = torch.kunlun.memory_reserved()
    tensor = torch.empty(2 * MIB, dtype=torch.uint8, device="kunlun")
    assert torch.kunlun.memory_reserved() == before + 64 * MIB
    assert tensor.numel() == 2 * MIB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_key:1", "Unrecognized key 'no_such_key'"),
        (
            "expandable_segments:True,release_lock_on_cudamalloc:True",
            "key 'release_lock_on_cudamalloc'",
        ),
        ("backend:cudaMallocAsync", "backend must be native"),
        ("expandable_segments:maybe", "Expected 'True' or 'False'"),
    ],
)
def test_an_unknown_setting_is_refused(text, message, restored_settings):
    with pytest.raises(ValueError, match=message):
        settings_of(text)
    settings_of("backend:native")


@pytest.mark.parametrize(
    ("text", "message"),
    [("no_such_key:1", "Unrecognized key 'no_such_key'"), ("backend:cudaMallocAsync", "backend must be native")],
)
def test_an_unknown_setting_in_the_environment_is_refused(text, message, run_new_python):
    done = run_new_python('import torch; torch.ones(1, device="kunlun")', PYTORCH_ALLOC_CONF=text)
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert message in done.stderr


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("expandable", [False, True])
def test_a_thousand_rounds_leave_nothing_behind(expandable, restored_settings, fresh_memory):
    settings_of(f"expandable_segments:{expandable}")
    side = torch.kunlun.Stream()

    def use(i):
        tensors = [torch.full((1 + (i * 37 + k * 997) % 50_000,), k, device="kunlun") for k in range(4)]
        side.wait_stream(torch.kunlun.current_stream())
        with torch.kunlun.stream(side):
            total = sum(t.sum() for t in tensors)
        for tensor in tensors:
            tensor.record_stream(side)
        side.synchronize()
        assert total.item() == sum(k * t.numel() for k, t in enumerate(tensors))
        del tensor, tensors, total
        torch.kunlun.empty_cache()

    for i in range(100):
        use(i)
    start, resident = torch.kunlun.memory_stats(), resident_bytes()
    for i in range(1000):
        use(i)
    end = torch.kunlun.memory_stats()
    for key in ("reserved_bytes", "active_bytes", "allocated_bytes", "segment", "inactive_split_bytes"):
        assert end[f"{key}.all.current"] == start[f"{key}.all.current"], key
    assert resident_bytes() - resident < 8 * MIB


@pytest.mark.alone
def test_pinned_memory_is_counted():
    torch.kunlun.init()
    before = torch.kunlun.host_memory_stats()
    tensor = torch.empty(100_000, dtype=torch.uint8, pin_memory=True)
    after = torch.kunlun.host_memory_stats()
    assert after["active_requests.current"] == before["active_requests.current"] + 1
    assert after["active_bytes.current"] - before["active_bytes.current"] == 131072
    assert tensor.is_pinned()
    torch.kunlun.reset_peak_host_memory_stats()
    torch.kunlun.reset_accumulated_host_memory_stats()
    assert torch.kunlun.host_memory_stats()["active_requests.allocated"] == 0
    assert torch.kunlun.host_memory_stats_as_nested_dict()["active_bytes"]["current"] >= 131072
    assert {"num_host_alloc", "host_alloc_time.avg", "host_free_time.max"} <= set(torch.kunlun.host_memory_stats())


def test_peaks_start_again_from_what_is_held(fresh_memory):
    kept = torch.empty(4 * MIB, dtype=torch.uint8, device="kunlun")
    held = torch.kunlun.memory_allocated()
    torch.kunlun.reset_peak_memory_stats()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.kunlun.memory_allocated() == held == torch.kunlun.max_memory_allocated()
    with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
        torch.kunlun.reset_max_memory_allocated()
    with pytest.warns(FutureWarning, match="memory_reserved"):
        assert torch.kunlun.memory_cached() == torch.kunlun.memory_reserved()
    assert kept.numel() == 4 * MIB


def test_the_whole_of_torch_accelerator_memory(two_devices, fresh_memory):
    from torch.accelerator import memory

    tensor = torch.empty(4 * MIB, dtype=torch.uint8, device="kunlun:1")
    for index in (0, 1):
        assert memory.memory_allocated(index) == torch.kunlun.memory_allocated(index)
        assert memory.max_memory_allocated(index) == torch.kunlun.max_memory_allocated(index)
        assert memory.memory_reserved(index) == torch.kunlun.memory_reserved(index)
        assert memory.max_memory_reserved(index) == torch.kunlun.max_memory_reserved(index)
        assert memory.get_memory_info(index) == torch.kunlun.mem_get_info(index)
        stats = memory.memory_stats(index)
        assert stats.items() <= torch.kunlun.memory_stats(index).items() | stats.items()
        assert stats["active_bytes.all.current"] == torch.kunlun.memory_stats(index)["active_bytes.all.current"]
    memory.reset_accumulated_memory_stats(1)
    assert memory.memory_stats(1)["allocation.all.allocated"] == 0
    memory.empty_cache()
    memory.empty_host_cache()
    free, total = torch.kunlun.mem_get_info(1)
    assert torch.kunlun.device_memory_used(1) == total - free >= tensor.numel()
