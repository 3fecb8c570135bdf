"""channels_last is kept: through operators, copies between devices, clones, modules and their gradients."""

import pytest
import torch

F = torch.nn.functional


def image(device, dims=2):
    shape = (2, 3, 4, 5) if dims == 2 else (2, 3, 2, 4, 5)
    form = torch.channels_last if dims == 2 else torch.channels_last_3d
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).div(50).to(device).to(memory_format=form)


OPERATORS = {
    "add": lambda x: x + 1,
    "add of two": lambda x: x + x,
    "broadcast": lambda x: x + torch.ones(3, 1, 1, device=x.device),
    "with a contiguous one": lambda x: x * x.contiguous(),
    "relu": F.relu,
    "clone": lambda x: x.clone(),
    "to half": lambda x: x.half(),
    "empty_like": torch.zeros_like,
    "cat": lambda x: torch.cat([x, x], 1),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: F.group_norm(x, 3),
    "conv": lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3, device=x.device)),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "where": lambda x: torch.where(x > 0, x, -x),
    "softmax": lambda x: x.softmax(1),
    "contiguous": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(0, 2, 3, 1).contiguous(),
    "slice": lambda x: x[:, :2] * 2,
    "dropout": lambda x: F.dropout(x, 0.0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_strides_are_those_of_the_cpu(name, on_both):
    on_both(lambda device: OPERATORS[name](image(device)))


@pytest.mark.parametrize("name", ["add", "relu", "clone", "where", "cat"])
def test_of_volumes(name, on_both):
    on_both(lambda device: OPERATORS[name](image(device, dims=3)))


@pytest.mark.parametrize("start", ["cpu", "kunlun:0"])
@pytest.mark.parametrize("end", ["cpu", "kunlun:0", "kunlun:1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kept_on_the_way(start, end, dtype):
    x = image(start)
    moved = x.to(end, dtype)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(moved.cpu().float(), image("cpu").to(dtype).float(), rtol=0, atol=0)
    plain = x.to(end, memory_format=torch.contiguous_format, copy=True)
    assert plain.is_contiguous()
    assert torch.equal(plain.cpu(), image("cpu"))


def test_modules_and_their_gradients(on_both):
    def run(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        model = model.to(device, memory_format=torch.channels_last)
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
        x = image(device).requires_grad_()
        out = model(x)
        out.square().sum().backward()
        return [out.detach(), x.grad, model[0].weight.grad]

    got = on_both(run)
    assert got[0].is_contiguous(memory_format=torch.channels_last)


def test_empty_and_resize(on_both):
    def run(device):
        x = torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last).zero_()
        return x, torch.zeros(0, device=device).resize_(2, 3, 4, 5, memory_format=torch.channels_last).zero_()

    on_both(run)
