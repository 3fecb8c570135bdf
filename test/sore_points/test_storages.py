"""set_ and resize_ of tensors and storages: sizes, contents, devices, and what shares the memory."""

import pytest
import torch


def test_resize_keeps_the_contents_and_the_sharing(on_both):
    def run(device):
        x = torch.arange(4.0, device=device)
        view = x[1:]
        x.resize_(2, 5)
        x.view(-1)[4:].zero_()
        view.add_(1)
        return x, view

    on_both(run)


@pytest.mark.parametrize("device", ["kunlun:0", "kunlun:1"])
def test_storages_grow_and_shrink_on_their_own_device(device):
    x = torch.arange(4, dtype=torch.int32, device=device)
    storage = x.untyped_storage()
    storage.resize_(40)
    assert (storage.nbytes(), storage.device) == (40, torch.device(device))
    assert x.tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)  # as FSDP gives memory back and takes it again
    x.fill_(7)
    assert x.tolist() == [7, 7, 7, 7]


def test_set_takes_part_of_another_storage(on_both):
    def run(device):
        source = torch.arange(12.0, device=device)
        x = torch.empty(0, device=device).set_(source.untyped_storage(), 2, (2, 3), (3, 1))
        x.mul_(2)
        y = torch.empty(0, device=device).set_(source[4:])
        return source, x, y, torch.empty(0, device=device).set_(source.untyped_storage())

    on_both(run)


def test_set_beyond_the_end_grows_the_storage(on_both):
    def run(device):
        source = torch.arange(4.0, device=device)
        x = torch.empty(0, device=device).set_(source.untyped_storage(), 2, (4,))
        x[2:].zero_()
        return x, source, source.untyped_storage().nbytes()

    on_both(run)


def test_set_data_and_empty(on_both):
    def run(device):
        x, y = torch.ones(3, device=device), torch.arange(4.0, device=device)
        x.data = y
        x.add_(1)
        return x, y, torch.ones(2, device=device).set_()

    on_both(run)


def test_a_storage_of_another_device_is_refused():
    for other in ("cpu", "kunlun:1"):
        with pytest.raises(RuntimeError, match="on different device"):
            torch.empty(0, device="kunlun:0").set_(torch.ones(3, device=other).untyped_storage())


def test_is_set_to_and_sharing():
    x = torch.ones(4, device="kunlun")
    assert x.is_set_to(x.view(4))
    assert not x.is_set_to(x[1:])
    assert x.view(2, 2).untyped_storage()._cdata == x.untyped_storage()._cdata


def test_copies_of_storages():
    storage = torch.arange(4, dtype=torch.uint8, device="kunlun").untyped_storage()
    assert storage.cpu().tolist() == [0, 1, 2, 3]
    other = torch.UntypedStorage(4, device="kunlun:1")
    other.copy_(storage)
    assert other.cpu().tolist() == [0, 1, 2, 3]
    clone = storage.clone()
    assert clone.device == storage.device
    assert clone.data_ptr() != storage.data_ptr()
    storage.fill_(5)
    assert storage.cpu().tolist() == [5] * 4
    assert clone.cpu().tolist() == [0, 1, 2, 3]


def test_weak_references_and_lifetimes():
    before = torch.kunlun.memory_allocated()
    x = torch.ones(1000, device="kunlun")
    view = x[10:]
    del x
    assert view[0].item() == 1.0
    assert torch.kunlun.memory_allocated() > before
    del view
    assert torch.kunlun.memory_allocated() == before
