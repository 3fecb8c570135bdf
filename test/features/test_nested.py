"""Nested tensors: the strided layout as far as the CPU goes, and the jagged one, which torch writes in Python."""

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def nested(device, requires_grad=False):
    parts = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(-2, 2, 12).reshape(4, 3)]
    return torch.nested.nested_tensor(parts, device=device, requires_grad=requires_grad)


def check_equal(want, got):
    if isinstance(want, (tuple, list)):
        for a, b in zip(want, got, strict=True):
            check_equal(a, b)
    elif not isinstance(want, torch.Tensor):
        assert want == got
    else:
        assert got.device.type == "kunlun"
        assert (want.is_nested, want.layout, want.dtype) == (got.is_nested, got.layout, got.dtype)
        if want.is_nested:
            check_equal(want.unbind(), got.unbind())
        else:
            torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


def weights(x):
    return torch.linspace(-1, 1, 15, device=x.device).reshape(5, 3), torch.linspace(0, 1, 5, device=x.device)


OPERATIONS = {
    "add": lambda x: x + x,
    "multiply by a number": lambda x: x * 2,
    "in place": lambda x: x.clone().relu_().mul_(x),
    "to padded": lambda x: x.to_padded_tensor(-1.0),
    "from padded": lambda x: torch._nested_from_padded(x.to_padded_tensor(0.0), x._nested_tensor_size().cpu()),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "linear": lambda x: torch.nn.functional.linear(x, *weights(x)),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (3,), torch.ones_like(x[0][0]), torch.ones_like(x[0][0])),
    "gelu": torch.nn.functional.gelu,
    "to half": lambda x: x.half(),
    "one part": lambda x: x[1],
    "parts": lambda x: x.unbind(),
    "values": lambda x: x.values(),
    "fill": lambda x: torch.ones_like(x).fill_(2.0),
    "cat": lambda x: torch.cat([x, x]),
    "is_same_size": lambda x: x.is_same_size(x),
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_strided(name):
    check_equal(OPERATIONS[name](nested("cpu")), OPERATIONS[name](nested("kunlun")))


def test_strided_tensors_are_views_of_their_parts_and_move():
    x = nested("kunlun:1")
    assert x.device == torch.device("kunlun:1")
    x.unbind()[0].fill_(7)
    assert (x[0] == 7).all()
    for other in (x.cpu(), x.to("kunlun:0"), x.cpu().to("kunlun:1")):
        for a, b in zip(x.unbind(), other.unbind(), strict=True):
            assert torch.equal(a.cpu(), b.cpu())
    assert "device='kunlun:1'" in repr(x)


def test_gradients_of_strided_tensors():
    gradients = []
    for device in ("cpu", "kunlun"):
        x = nested(device, requires_grad=True)
        (x * x + x).to_padded_tensor(0.0).sum().backward()
        gradients.append(x.grad)
    check_equal(*gradients)


def test_what_the_cpu_refuses_of_strided_tensors():
    for device in ("cpu", "kunlun"):
        with pytest.raises(RuntimeError, match="currently only supported for the last dimension"):
            nested(device).chunk(2, 0)


def jagged(device):
    return torch.nested.nested_tensor(list(nested("cpu").unbind()), layout=torch.jagged, device=device)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + x,
        lambda x: torch.nn.functional.linear(x, *weights(x)),
        lambda x: torch.nn.functional.layer_norm(x, (3,)),
        lambda x: x.to_padded_tensor(0.0),
        lambda x: x.sum(-1),
        lambda x: x.softmax(-1),
        lambda x: x.mean(1),
        lambda x: x.unbind(),
    ],
)
def test_jagged(operation):
    check_equal(operation(jagged("cpu")), operation(jagged("kunlun")))


def test_attention_over_sequences_of_different_lengths():
    results = []
    for device in ("cpu", "kunlun"):
        torch.manual_seed(0)
        q = torch.nested.nested_tensor(
            [torch.randn(3, 8).tolist(), torch.randn(5, 8).tolist()], layout=torch.jagged, device=device
        ).requires_grad_()
        heads = q.unflatten(-1, [2, 4]).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        out.values().square().sum().backward()
        results.append((out.detach().values().cpu(), q.grad.values().cpu()))
    torch.testing.assert_close(*results)
