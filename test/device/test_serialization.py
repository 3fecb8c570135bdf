# torch.save and torch.load with every form of map_location, pickle and deepcopy.
import copy
import io
import pickle

import pytest
import torch


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


def values(device):
    base = torch.arange(12.0, device=device).reshape(3, 4)
    return {
        "plain": base,
        "view": base[1:, ::2],
        "half": base.half(),
        "bool": base > 3,
        "complex": torch.complex(base, -base),
        "empty": torch.empty(0, 3, device=device),
        "parameter": torch.nn.Parameter(base.clone()),
    }


def check(loaded, device):
    for name, expected in values("cpu").items():
        tensor = loaded[name]
        assert tensor.device == torch.device(device), name
        assert tensor.dtype == expected.dtype
        assert tensor.stride() == expected.stride()
        assert type(tensor) is type(expected)
        assert torch.equal(tensor.cpu(), expected), name


LOCATIONS = [
    ("kunlun:1", None, "kunlun:1"),
    ("kunlun:1", "cpu", "cpu"),
    ("kunlun:1", "kunlun", "kunlun:0"),
    ("kunlun:1", "kunlun:0", "kunlun:0"),
    ("kunlun:1", torch.device("kunlun:0"), "kunlun:0"),
    ("kunlun:1", torch.device("cpu"), "cpu"),
    ("kunlun:1", {"kunlun:1": "kunlun:0"}, "kunlun:0"),
    ("kunlun:1", {"kunlun:1": "cpu"}, "cpu"),
    ("kunlun:1", {"kunlun:0": "cpu"}, "kunlun:1"),
    ("kunlun:1", lambda storage, location: storage, "cpu"),
    ("kunlun:1", lambda storage, location: storage.kunlun(0) if location == "kunlun:1" else None, "kunlun:0"),
    ("cpu", "kunlun:1", "kunlun:1"),
    ("cpu", {"cpu": "kunlun:1"}, "kunlun:1"),
    ("cpu", lambda storage, location: storage.kunlun(1), "kunlun:1"),
    ("kunlun:0", "meta", "meta"),
]


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(("source", "location", "target"), LOCATIONS)
def test_map_location(two_devices, source, location, target, weights_only):
    loaded = torch.load(saved(values(source)), map_location=location, weights_only=weights_only)
    if target == "meta":
        assert all(tensor.device.type == "meta" for tensor in loaded.values())
    else:
        check(loaded, target)
        # Views of one storage still share it.
        assert loaded["view"].untyped_storage().data_ptr() == loaded["plain"].untyped_storage().data_ptr()
    assert torch.kunlun.current_device() == 0


def test_the_old_format(two_devices):
    check(torch.load(saved(values("kunlun:1"), _use_new_zipfile_serialization=False)), "kunlun:1")
    check(torch.load(saved(values("kunlun:1"), _use_new_zipfile_serialization=False), map_location="cpu"), "cpu")


def test_loading_from_a_mapped_file(two_devices, tmp_path):
    path = tmp_path / "values.pt"
    torch.save(values("cpu"), path)
    check(torch.load(path, map_location="kunlun:1", mmap=True), "kunlun:1")
    torch.save(values("kunlun:1"), path)
    check(torch.load(path, map_location="cpu", mmap=True), "cpu")
    check(torch.load(path, mmap=True), "kunlun:1")


def test_a_device_that_does_not_exist_is_named():
    buffer = saved(values("cpu"))
    with pytest.raises(RuntimeError, match=r"Attempting to deserialize object on KUNLUN device 7 but torch.kunlun"):
        torch.load(buffer, map_location="kunlun:7")


def test_a_module_and_its_optimizer_go_round():
    model = torch.nn.Linear(3, 2, device="kunlun")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 3, device="kunlun")).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}), map_location="cpu")
    other = torch.nn.Linear(3, 2, device="kunlun")
    other.load_state_dict(state["model"])
    other_optimizer = torch.optim.AdamW(other.parameters())
    other_optimizer.load_state_dict(state["optimizer"])
    for one, two in ((model, other), (optimizer, other_optimizer)):
        assert str(one.state_dict()) == str(two.state_dict())
    moment = other_optimizer.state[other.weight]["exp_avg"]
    assert moment.device.type == "kunlun"


def test_pickle_and_deepcopy(two_devices):
    for copied in (pickle.loads(pickle.dumps(values("kunlun:1"))), copy.deepcopy(values("kunlun:1"))):
        check(copied, "kunlun:1")
    tensor = torch.ones(3, device="kunlun:1")
    twin = copy.deepcopy(tensor)
    twin.zero_()
    assert tensor.sum().item() == 3
    conjugate = torch.tensor([1 + 2j], device="kunlun").conj()
    assert pickle.loads(pickle.dumps(conjugate)).tolist() == copy.deepcopy(conjugate).tolist() == [1 - 2j]
    storage = copy.deepcopy(tensor.untyped_storage())
    assert storage.device == torch.device("kunlun:1")
    model = copy.deepcopy(torch.nn.Linear(2, 2).kunlun(1))
    assert model.weight.device == torch.device("kunlun:1")
    assert isinstance(model.weight, torch.nn.Parameter)


def test_a_file_without_data_and_then_one_with(two_devices, tmp_path):
    path = tmp_path / "values.pt"
    tensor = torch.arange(6.0, device="kunlun:1")
    for materialize in (False, True):
        with torch.serialization.skip_data(materialize_fake_tensors=materialize):
            torch.save({"x": tensor}, path)
        # What was left out is a hole in the file, to be written later; shape, dtype and device are there.
        for location in (None, "kunlun:0", "cpu"):
            loaded = torch.load(path, map_location=location)["x"]
            assert (loaded.shape, loaded.dtype) == (tensor.shape, tensor.dtype)
            assert loaded.device == torch.device("kunlun:1" if location is None else location)
        with torch.serialization.skip_data():
            assert torch.load(path)["x"].device == tensor.device
        torch.save({"x": tensor}, path)
        assert torch.load(path)["x"].device == tensor.device
        assert torch.load(path)["x"].tolist() == list(range(6))


def test_a_safe_globals_file_needs_nothing_of_ours():
    # weights_only loading allows no function of the package, so a file can be read where the package is missing.
    text = saved(torch.ones(2, device="kunlun")).getvalue()
    assert b"torch_xpu_kunlun" not in text
