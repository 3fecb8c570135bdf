# The caching allocator as torch users see it: reuse, statistics, other streams, running out of memory.
import gc

import pytest
import torch

MIB = 1 << 20


def test_memory_is_counted_in_blocks_of_512_bytes(fresh_memory):
    before = torch.kunlun.memory_allocated()
    tensor = torch.empty(100, dtype=torch.uint8, device="kunlun")
    assert torch.kunlun.memory_allocated() - before == 512
    del tensor
    assert torch.kunlun.memory_allocated() == before


def test_freed_memory_is_used_again(fresh_memory):
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun")
    address = tensor.data_ptr()
    reserved = torch.kunlun.memory_reserved()
    del tensor
    assert torch.kunlun.memory_reserved() == reserved
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun")
    assert tensor.data_ptr() == address
    assert torch.kunlun.memory_reserved() == reserved


def test_empty_cache_gives_memory_back(fresh_memory):
    free, _ = torch.kunlun.mem_get_info()
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="kunlun")
    assert torch.kunlun.mem_get_info()[0] == free - 64 * MIB
    del tensor
    torch.kunlun.empty_cache()
    assert torch.kunlun.mem_get_info()[0] == free
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="kunlun")
    del tensor
    torch.accelerator.empty_cache()
    assert torch.kunlun.mem_get_info()[0] == free


def test_peaks(fresh_memory):
    base = torch.kunlun.memory_allocated()
    tensor = torch.empty(8 * MIB, dtype=torch.uint8, device="kunlun")
    del tensor
    assert torch.kunlun.max_memory_allocated() == base + 8 * MIB
    assert torch.kunlun.memory_allocated() == base
    assert torch.kunlun.max_memory_reserved() >= 8 * MIB
    torch.kunlun.reset_peak_memory_stats()
    assert torch.kunlun.max_memory_allocated() == base


def test_statistics_have_the_keys_of_cuda(fresh_memory):
    stats = torch.kunlun.memory_stats()
    kinds = "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes"
    expected = {
        f"{kind}.{pool}.{column}"
        for kind in [*kinds.split(), "requested_bytes"]
        for pool in ("all", "small_pool", "large_pool")
        for column in ("current", "peak", "allocated", "freed")
    }
    expected |= {
        f"{kind}.{column}"
        for kind in ("oversize_allocations", "oversize_segments")
        for column in ("current", "peak", "allocated", "freed")
    }
    expected |= {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"}
    expected |= {"max_split_size"}
    assert set(stats) == expected
    assert list(stats) == sorted(stats)


def test_statistics_add_up(fresh_memory):
    keep = [torch.empty(size, dtype=torch.uint8, device="kunlun") for size in (1, 700, 3 * MIB, 30 * MIB)]
    stats = torch.kunlun.memory_stats()
    for kind in ("allocation", "allocated_bytes", "reserved_bytes", "segment", "requested_bytes"):
        for column in ("current", "peak"):
            parts = [stats[f"{kind}.{pool}.{column}"] for pool in ("small_pool", "large_pool")]
            assert stats[f"{kind}.all.{column}"] <= sum(parts)
    assert stats["allocation.all.allocated"] == 4
    assert stats["requested_bytes.all.allocated"] == 701 + 33 * MIB
    assert stats["allocated_bytes.all.allocated"] == 512 + 1024 + 33 * MIB
    assert torch.accelerator.memory_allocated() == torch.kunlun.memory_allocated()
    assert torch.accelerator.memory_stats()["allocation.all.current"] == stats["allocation.all.current"]
    nested = torch.kunlun.memory_stats_as_nested_dict()
    assert nested["allocation"]["all"]["allocated"] == 4
    del keep
    torch.kunlun.reset_accumulated_memory_stats()
    assert torch.kunlun.memory_stats()["allocation.all.allocated"] == 0


def test_statistics_are_kept_for_each_device(two_devices, fresh_memory):
    before = torch.kunlun.memory_allocated(1)
    tensor = torch.empty(MIB, dtype=torch.uint8, device="kunlun:1")
    assert torch.kunlun.memory_allocated("kunlun:1") == before + MIB
    assert torch.kunlun.memory_stats(0)["allocation.all.allocated"] == 0
    assert tensor.device.index == 1


def test_summary_can_be_read(fresh_memory):
    tensor = torch.empty(5 * MIB, dtype=torch.uint8, device="kunlun")
    text = torch.kunlun.memory_summary()
    assert "allocated memory" in text
    assert "from large pool" in text
    assert "from large pool" not in torch.kunlun.memory_summary(abbreviated=True)
    assert tensor.numel() == 5 * MIB


def test_an_empty_tensor_takes_no_memory_and_has_the_right_device(two_devices, fresh_memory):
    before = torch.kunlun.memory_allocated(1)
    tensor = torch.empty(0, device="kunlun:1")
    assert tensor.untyped_storage().device == torch.device("kunlun:1")
    assert tensor.data_ptr() == 0
    assert torch.kunlun.memory_allocated(1) == before


def test_memory_that_another_stream_uses_is_not_handed_out(fresh_memory):
    stream = torch.kunlun.Stream()
    data = torch.ones(4 * MIB, dtype=torch.uint8, device="kunlun")
    torch.kunlun.synchronize()
    active = torch.kunlun.memory_stats()["active_bytes.all.current"]
    with torch.kunlun.stream(stream):
        total = data.sum()
    data.record_stream(stream)
    address = data.data_ptr()
    del data
    # Whether the stream is past its work or not, what it has read is not overwritten.
    other = torch.zeros(4 * MIB, dtype=torch.uint8, device="kunlun")
    stream.synchronize()
    assert total.item() == 4 * MIB
    del other
    again = torch.empty(4 * MIB, dtype=torch.uint8, device="kunlun")
    assert torch.kunlun.memory_stats()["active_bytes.all.current"] in (active, active + 512)
    assert again.numel() == 4 * MIB
    assert address != 0


def test_running_out_of_memory_is_explained_and_survived(fresh_memory):
    _, total = torch.kunlun.mem_get_info()
    keep = torch.empty(16 * MIB, dtype=torch.uint8, device="kunlun")
    ooms = torch.kunlun.memory_stats()["num_ooms"]
    allocated = torch.kunlun.memory_allocated() / MIB
    assert allocated >= 16
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2 * total, dtype=torch.uint8, device="kunlun")
    text = str(caught.value)
    assert text.startswith("kunlun out of memory. Tried to allocate ")
    assert "Device 0 has a total capacity of" in text
    assert "is free" in text
    assert f"{allocated:.2f} MiB allocated by torch" in text
    assert "reserved by torch but unallocated" in text
    assert torch.kunlun.memory_stats()["num_ooms"] == ooms + 1
    assert torch.kunlun.memory_stats()["num_alloc_retries"] >= 1
    keep.fill_(7)
    assert keep[-1].item() == 7
    assert torch.ones(3, device="kunlun").sum().item() == 3


def test_the_cache_of_another_stream_is_given_back_before_memory_runs_out(fresh_memory):
    free, _ = torch.kunlun.mem_get_info()
    size = free * 3 // 4 // (2 * MIB) * 2 * MIB
    with torch.kunlun.stream(torch.kunlun.Stream()):
        tensor = torch.empty(size, dtype=torch.uint8, device="kunlun")
        del tensor
    assert torch.kunlun.memory_reserved() >= size
    tensor = torch.empty(size, dtype=torch.uint8, device="kunlun")
    assert tensor.numel() == size
    assert torch.kunlun.memory_stats()["num_alloc_retries"] == 1
    del tensor
    torch.kunlun.empty_cache()


def test_the_memory_fraction_is_a_limit(fresh_memory):
    _, total = torch.kunlun.mem_get_info()
    assert torch.kunlun.get_per_process_memory_fraction() == 1.0
    gc.collect()
    torch.kunlun.empty_cache()
    torch.kunlun.set_per_process_memory_fraction(0.25)
    try:
        assert torch.kunlun.get_per_process_memory_fraction() == 0.25
        with pytest.raises(torch.OutOfMemoryError, match=r"This process may reserve .*set_per_process_memory_fraction"):
            torch.empty(total // 2, dtype=torch.uint8, device="kunlun")
        assert torch.empty(total // 8, dtype=torch.uint8, device="kunlun").numel() == total // 8
    finally:
        torch.kunlun.set_per_process_memory_fraction(1.0)
        torch.kunlun.empty_cache()


def test_a_memory_fraction_of_zero_leaves_only_what_is_reserved(fresh_memory):
    # As on CUDA, 0 is a limit like any other.
    held = torch.ones(1000, device="kunlun")  # keeps its segment, which has room for more
    torch.kunlun.set_per_process_memory_fraction(0)
    try:
        assert torch.kunlun.get_per_process_memory_fraction() == 0.0
        with pytest.raises(torch.OutOfMemoryError, match=r"This process may reserve 0 bytes of it"):
            torch.empty(4 << 20, dtype=torch.uint8, device="kunlun")
        assert (held + 1).sum().item() == 2000
    finally:
        torch.kunlun.set_per_process_memory_fraction(1.0)
        torch.kunlun.empty_cache()


@pytest.mark.parametrize("fraction", [-0.5, 1.5, float("nan")])
def test_a_wrong_fraction_is_refused(fraction):
    with pytest.raises(ValueError, match="between 0 and 1"):
        torch.kunlun.set_per_process_memory_fraction(fraction)
    with pytest.raises(TypeError, match="must be a number"):
        torch.kunlun.set_per_process_memory_fraction("half")


def test_the_base_of_an_allocation(fresh_memory):
    first = torch.empty(1000, dtype=torch.uint8, device="kunlun")
    second = torch.empty(1000, dtype=torch.uint8, device="kunlun")
    from torch_xpu_kunlun import _C

    base, size = _C._get_base_allocation(second.data_ptr())
    assert size == 2 * MIB
    assert base <= first.data_ptr() < base + size
    assert base <= second.data_ptr() < base + size
    assert _C._get_base_allocation(first.data_ptr() + 1 + 2 * size) == (0, 0)
