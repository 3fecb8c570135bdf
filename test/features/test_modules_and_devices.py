"""Modules on their way to the device, default devices, swapped tensors, inference mode."""

import pytest
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LSTM(4, 3))


MOVES = [lambda m: m.to("kunlun"), lambda m: m.kunlun(), lambda m: m.to(torch.empty(0, device="kunlun")), lambda m:
         m.to(torch.device("kunlun", 0), torch.float64)]  # fmt: skip


@pytest.mark.parametrize("swap", [False, True], ids=["in place", "swapped"])
@pytest.mark.parametrize("move", MOVES)
def test_parameters_stay_the_same_objects(move, swap):
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        model = net()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        move(model)
        assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
        assert {tensor.device.type for tensor in model.state_dict().values()} == {"kunlun"}
        x = torch.ones(2, 4, device="kunlun", dtype=model[0].weight.dtype)
        model(x)[0].sum().backward()
        before = model[0].weight.detach().clone()
        optimizer.step()
        assert not torch.equal(before, model[0].weight), "the optimizer still holds the module's parameters"
        model.cpu()
        assert all(a is b and a.device.type == "cpu" for a, b in zip(parameters, model.parameters(), strict=True))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_swapped_tensors_change_places():
    a, b = torch.ones(2, device="kunlun"), torch.zeros(3)
    torch.utils.swap_tensors(a, b)
    assert (a.device.type, a.shape, b.device.type, b.shape) == ("cpu", (3,), "kunlun", (2,))
    assert b.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("device", ["kunlun", "kunlun:1", torch.device("kunlun", 1)])
def test_default_device(device):
    want = torch.device(device)
    index = 0 if want.index is None else want.index

    def check():
        made = [torch.ones(2), torch.tensor([1.0]), torch.arange(3), torch.randperm(5), torch.rand(2), nn.Linear(2, 2)
                .weight, torch.empty(0), torch.eye(2), torch.full((2,), 1.0), torch.hann_window(4)]  # fmt: skip
        assert {tensor.device for tensor in made} == {torch.device("kunlun", index)}
        assert torch.ones(2, device="cpu").device.type == "cpu"
        assert torch.get_default_device().type == "kunlun"

    torch.set_default_device(device)
    try:
        check()
    finally:
        torch.set_default_device(None)
    with torch.device(device):
        check()
    assert torch.ones(2).device.type == "cpu"


def test_inference_mode():
    with torch.inference_mode():
        x = torch.ones(3, device="kunlun")
        x[1:].mul_(2).add_(1)
        y = x.to(torch.float16).to("cpu").to("kunlun")
        assert x.is_inference()
        assert y.is_inference()
        assert y.tolist() == [1.0, 3.0, 3.0]
    with pytest.raises(RuntimeError, match="requires_grad=True on inference tensor outside InferenceMode"):
        x.requires_grad_()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (x * torch.ones(3, device="kunlun", requires_grad=True)).sum().backward()
    outside = torch.ones(2, device="kunlun")
    with torch.inference_mode():
        outside.add_(1)
        view = outside[:1]
    assert not view.is_inference()
    assert outside.tolist() == [2.0, 2.0]


def test_modules_in_inference_mode_give_the_same():
    model = net().kunlun().eval()
    x = torch.randn(3, 4, device="kunlun")
    with torch.inference_mode():
        inferred = model(x)[0]
    assert torch.equal(inferred, model(x)[0])


def test_a_deep_copy_and_a_pickle_stay_on_their_device():
    import copy
    import pickle

    x = torch.arange(6.0, device="kunlun:1").reshape(2, 3).t()
    for again in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert again.device == x.device
        assert again.stride() == x.stride()
        assert torch.equal(again, x)
        assert again.data_ptr() != x.data_ptr()
