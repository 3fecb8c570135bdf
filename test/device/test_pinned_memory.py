# Pinned host memory: who says that it is, interior pointers, reuse, copies that do not wait.
import pytest
import torch


def test_pinned_tensors_say_so():
    assert not torch.empty(10).is_pinned()
    tensor = torch.empty(10, pin_memory=True)
    assert tensor.is_pinned()
    assert tensor.device.type == "cpu"
    assert torch.arange(10.0).pin_memory().tolist() == list(range(10))


def test_a_view_into_pinned_memory_is_pinned():
    tensor = torch.zeros(4096).pin_memory()
    assert tensor[1000:].is_pinned()
    assert tensor.view(64, 64)[3, 5:].is_pinned()


def test_pinned_memory_is_used_again():
    tensor = torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True)
    address = tensor.data_ptr()
    del tensor
    assert torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True).data_ptr() == address
    torch.accelerator.empty_host_cache()


@pytest.mark.parametrize("numel", [1, 1000, 1 << 20])
def test_copies_from_and_to_pinned_memory(numel):
    source = torch.randn(numel).pin_memory()
    device = source.to("kunlun", non_blocking=True)
    back = torch.empty(numel, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.kunlun.synchronize()
    assert torch.equal(back, source)


def test_a_pinned_source_may_be_dropped_before_the_copy_is_done():
    expected = torch.arange(1 << 18, dtype=torch.float32)
    results = []
    for offset in range(8):
        results.append((expected + offset).pin_memory().to("kunlun", non_blocking=True))
    for offset, result in enumerate(results):
        assert torch.equal(result.cpu(), expected + offset)


def test_dataloader_pins_its_batches():
    dataset = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2))
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    moved = torch.cat([batch.to("kunlun", non_blocking=True).cpu() for batch in batches])
    assert torch.equal(moved, torch.arange(12.0).reshape(6, 2))
