"""Tensors without memory: fake tensors that say kunlun, meta tensors on their way to the device."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def test_fake_tensors_take_no_memory_and_know_their_device():
    torch.ones(1, device="kunlun")
    before = torch.kunlun.memory_allocated()
    with FakeTensorMode():
        a = torch.empty(1 << 20, 1 << 10, device="kunlun")
        b = a.t() @ a
        other = torch.empty(2, device="kunlun:1") * 2
        layer = torch.nn.Linear(1 << 15, 1 << 15, device="kunlun")
    assert (b.shape, b.device) == ((1 << 10, 1 << 10), torch.device("kunlun:0"))
    assert other.device == torch.device("kunlun:1")
    assert isinstance(layer.weight, FakeTensor)
    assert torch.kunlun.memory_allocated() == before


def test_fake_tensors_of_real_ones():
    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.ones(2, 3, device="kunlun:1"))
    with mode:
        assert (fake + 1).device == torch.device("kunlun:1")
        assert torch.nn.functional.conv2d(
            torch.empty(2, 3, 8, 8, device="kunlun"), torch.empty(4, 3, 3, 3, device="kunlun")
        ).shape == (2, 4, 6, 6)
        with pytest.raises(RuntimeError, match="found at least two devices, kunlun:1 and cpu!"):
            fake + torch.empty(3)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
        torch.fft.rfft,
        lambda x: x.sort(-1),
        lambda x: torch.nn.functional.gelu(x).to(torch.bfloat16),
        lambda x: x.transpose(1, 2).contiguous(memory_format=torch.channels_last),
        torch.linalg.qr,
        lambda x: x.cumsum(1).argmax(2),
    ],
)
def test_shapes_and_strides_of_fake_tensors_are_those_of_real_ones(run):
    real = run(torch.randn(2, 3, 4, 5, device="kunlun"))
    with FakeTensorMode():
        fake = run(torch.empty(2, 3, 4, 5, device="kunlun"))
    real, fake = (torch.utils._pytree.tree_leaves(value) for value in (real, fake))
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.device, a.stride()) == (b.shape, b.dtype, b.device, b.stride())


def test_a_module_made_on_meta_gets_memory_on_the_device():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model = model.to_empty(device="kunlun")
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"kunlun"}
    source = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model.load_state_dict(source.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(model(x.to("kunlun")).cpu(), source(x))


def test_a_state_dict_is_assigned_to_a_module_on_meta():
    with torch.device("meta"):
        model = torch.nn.Linear(3, 4)
    state = torch.nn.Linear(3, 4).to("kunlun").state_dict()
    model.load_state_dict(state, assign=True)
    assert model.weight.data_ptr() == state["weight"].data_ptr()


def test_meta_tensors_hold_no_data_to_copy():
    meta = torch.empty(2, 3, device="meta")
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
        meta.to("kunlun")
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
        torch.empty(2, 3, device="kunlun").copy_(meta)
    with pytest.raises(NotImplementedError, match=r"use torch.nn.Module.to_empty\(\)"):
        torch.nn.Linear(2, 2, device="meta").to("kunlun")


def test_the_way_to_meta_keeps_the_form():
    x = torch.empty(2, 3, 4, 5, device="kunlun").to(memory_format=torch.channels_last)
    meta = x.to("meta")
    assert (meta.shape, meta.stride(), meta.dtype) == (x.shape, x.stride(), x.dtype)
    target = torch.empty(2, device="meta")
    assert target.copy_(torch.ones(2, device="kunlun")) is target
