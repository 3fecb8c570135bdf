"""Autograd: its own threads, streams, hooks, checkpoints, higher derivatives, and linear's own autograd kernel."""

import threading

import pytest
import torch
import torch.nn.functional as F
from common_move import DEVICE
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.gradcheck import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


def double(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(DEVICE).requires_grad_()


def norm(x, w, b):
    return F.layer_norm(x, (4,), w[0], b[0])


CHECKED = {
    "linear": lambda x, w, b: F.linear(x, w, b[0]).tanh(),
    "matmul, softmax": lambda x, w, b: (x @ w.t()).softmax(-1) * b,
    "layer_norm": norm,
    "gelu, silu": lambda x, w, b: F.gelu(x) * F.silu(w[:3]) + b[:3],
    "indexing": lambda x, w, b: x[:, [0, 2]] * w[[1, 1, 3], :2] + b[:3, :2],
    "embedding": lambda x, w, b: F.embedding(torch.tensor([0, 3, 3], device=DEVICE), w) * x[:3],
    "where, cat": lambda x, w, b: torch.where(x > 0, x, w[:3]) @ torch.cat([w, b]).t(),
    "cumsum, sort": lambda x, w, b: x.cumsum(1).sort(1).values + w[:3],
    "boxed: inverse": lambda x, w, b: torch.linalg.inv(w + 5 * torch.eye(4, device=DEVICE, dtype=w.dtype)),
    "boxed: convolution": lambda x, w, b: F.conv1d(x[None], w[:2, :3, None].expand(2, 3, 2), b[0, :2]),
}


@pytest.mark.parametrize("function", CHECKED.values(), ids=CHECKED.keys())
def test_numerically(function):
    inputs = double(3, 4), double(4, 4, seed=1), double(4, 4, seed=2)
    if function is CHECKED["matmul, softmax"]:
        inputs = (*inputs[:2], double(3, 4, seed=2))
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


LINEAR_SHAPES = [((3, 4), True), ((2, 3, 4), True), ((4,), True), ((3, 4), False), ((0, 4), True)]


@pytest.mark.parametrize(("shape", "has_bias"), LINEAR_SHAPES)
def test_linear(shape, has_bias):
    generator = torch.Generator().manual_seed(0)
    host = [torch.randn(s, generator=generator) for s in (shape, (5, 4), (5,))]
    results = []
    for device in ("cpu", DEVICE):
        x, w, b = (t.to(device).requires_grad_() for t in host)
        b = b if has_bias else None
        y = F.linear(x, w, b)
        assert y.requires_grad
        inputs = [x, w, *([b] if has_bias else [])]
        gradients = torch.autograd.grad(y.square().sum(), inputs)
        with torch.no_grad():
            silent = F.linear(x, w, b)
        assert not silent.requires_grad
        only_input = torch.autograd.grad(F.linear(x, w.detach(), b).sum(), x)[0]
        results.append([t.cpu() for t in (y.detach(), silent, only_input, *gradients)])
    for want, got in zip(*results, strict=True):
        assert torch.equal(want, got)


def test_linear_forward_mode():
    generator = torch.Generator().manual_seed(0)
    host = [torch.randn(s, generator=generator) for s in ((3, 4), (5, 4), (3, 4))]
    tangents = []
    for device in ("cpu", DEVICE):
        x, w, tangent = (t.to(device) for t in host)
        with torch.no_grad(), forward_ad.dual_level():
            y = F.linear(forward_ad.make_dual(x, tangent), w)
            tangents.append(forward_ad.unpack_dual(y).tangent.cpu())
    assert torch.equal(*tangents)


def test_linear_under_vmap_and_functional_gradients():
    x, w, b = (torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in ((6, 3, 4), (5, 4), (5,)))
    expected = torch.vmap(F.linear, (0, None, None))(x, w, b)
    moved = [t.to(DEVICE) for t in (x, w, b)]
    assert torch.equal(torch.vmap(F.linear, (0, None, None))(*moved).cpu(), expected)

    def loss(weight, x, bias):
        return F.linear(x, weight, bias).square().sum()

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0, None))
    torch.testing.assert_close(per_sample(moved[1], moved[0], moved[2]).cpu(), per_sample(w, x, b))
    torch.testing.assert_close(
        torch.func.jacrev(loss)(*(moved[i] for i in (1, 0, 2))).cpu(), torch.func.grad(loss)(w, x, b)
    )


ARITHMETIC = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - 2 * y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "numbers": lambda x, y: (x * 2 + 1) / 3 - y,
    "linear": F.linear,
}


@pytest.mark.parametrize("function", ARITHMETIC.values(), ids=ARITHMETIC.keys())
def test_arithmetic_under_function_transforms(function):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 4, 4, dtype=torch.float64, generator=generator)

    def without_gradients(a):
        with torch.no_grad():
            b = function(a, a)
        return function(a, b)

    transformed = [
        lambda x, y: torch.func.jvp(lambda a: function(a, y), (x,), (torch.ones_like(x),))[1],
        lambda x, y: torch.func.grad(lambda a: without_gradients(a).sum())(x),
        lambda x, y: torch.func.hessian(lambda a: function(a, y).square().sum())(x),
        lambda x, y: torch.func.vmap(torch.func.grad(lambda a, b: function(a, b).sum()))(x[:, None], y[:, None]),
        lambda x, y: torch.func.functionalize(lambda a: function(a, a).add_(1))(x),
    ]
    for transform in transformed:
        torch.testing.assert_close(transform(x.to(DEVICE), y.to(DEVICE)).cpu(), transform(x, y))


def test_arithmetic_is_seen_by_modes_and_takes_fake_tensors():
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    x = torch.ones(2, 2, device=DEVICE)
    with Mode():
        ((x + x) * x - 1) / 2
        F.linear(x, x)
    assert seen == ["add", "mul", "sub", "div", "t", "mm"]
    with FakeTensorMode():
        fake = torch.empty(2, 3, device=DEVICE)
        for result in (fake + fake, fake * 2, F.linear(fake, fake)):
            assert isinstance(result, FakeTensor)
            assert result.device == torch.device(DEVICE, 0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_training(backend):
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, device=DEVICE)

    def function(x):
        return (layer(x) * 2 + x).sin().sum()

    expected = torch.autograd.grad(function(x), layer.parameters())
    actual = torch.autograd.grad(torch.compile(function, backend=backend)(x), layer.parameters())
    torch.testing.assert_close(actual, expected)


def test_graphs_are_freed_or_retained():
    x = double(4)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert torch.equal(x.grad, 4 * x.detach())
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    assert torch.autograd.grad((x * 3).sum(), x)[0].tolist() == [3] * 4


def test_in_place_changes_are_noticed():
    x = double(4)
    y = x.exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)
    view = (x * 1)[1:3]
    view.mul_(5)
    assert torch.autograd.grad(view._base.sum(), x)[0].tolist() == [1, 5, 5, 1]


def test_hooks():
    x = double(3)
    seen = []
    x.register_hook(lambda grad: seen.append(grad.device) or grad * 2)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    (x * 3).sum().backward()
    assert seen[0] == torch.device(DEVICE, 0)
    assert seen[1].tolist() == x.grad.tolist() == [6] * 3
    module = torch.nn.Linear(3, 2).to(DEVICE)
    module.register_full_backward_hook(lambda _, inputs, outputs: seen.append(outputs[0].sum().item()))
    module(torch.ones(1, 3, device=DEVICE, requires_grad=True)).sum().backward()
    assert seen[-1] == 2


def test_hooks_that_raise_leave_the_process_usable():
    def fail(grad):
        raise KeyError("from the hook")

    x = double(3)
    x.register_hook(fail)
    with pytest.raises(KeyError, match="from the hook"):
        x.sum().backward()
    y = double(3)
    y.sum().backward()
    assert y.grad.tolist() == [1] * 3


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_repeats_the_random_numbers(use_reentrant):
    def block(x, w):
        return F.dropout(F.linear(x, w).relu(), 0.5)

    gradients = []
    for wrap in (lambda f, *args: f(*args), lambda f, *args: checkpoint(f, *args, use_reentrant=use_reentrant)):
        torch.manual_seed(5)
        x, w = double(8, 16), double(16, 16, seed=1)
        wrap(block, x, w).sum().backward()
        gradients.append((x.grad, w.grad))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1], gradients[1][1])
    assert (gradients[0][0] != 0).any()


def test_saved_tensors_on_the_host():
    x = double(64)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x.exp() * x.sin()).sum()
    y.backward()
    expected = x.detach().exp() * (x.detach().sin() + x.detach().cos())
    torch.testing.assert_close(x.grad, expected)


def test_custom_functions():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            assert grad.device.type == DEVICE
            return grad * 3 * ctx.saved_tensors[0] ** 2

    assert gradcheck(Cube.apply, double(4))
    assert gradgradcheck(Cube.apply, double(4))


def test_the_backward_pass_runs_on_the_streams_of_the_forward_pass():
    side = torch.kunlun.Stream()
    streams = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            streams.append((torch.kunlun.current_stream(), threading.current_thread()))
            return grad * 2

    x = double(1 << 14)
    with torch.kunlun.stream(side):
        y = Note.apply(x)
        for _ in range(20):
            y = y * 1
    torch.kunlun.current_stream().wait_stream(side)
    loss = (y * 3).sum()
    loss.backward()
    assert streams[0][0] == side
    assert (x.grad == 6).all()  # accumulated in order, although on another stream


def test_two_devices_in_one_graph():
    x = torch.ones(4, device="kunlun:0", requires_grad=True)
    w = torch.full((4,), 3.0, device="kunlun:1", requires_grad=True)
    y = ((x * 2).to("kunlun:1") * w).to("kunlun:0").sum() + (x.cpu() * 5).sum().to(DEVICE)
    y.backward()
    assert x.grad.tolist() == [11] * 4
    assert x.grad.device == x.device
    assert w.grad.tolist() == [2] * 4
    assert w.grad.device == w.device


def test_backward_passes_of_several_threads():
    results = {}

    def work(seed):
        with torch.kunlun.stream(torch.kunlun.Stream()):
            x = torch.full((32, 32), float(seed), device=DEVICE, requires_grad=True)
            for _ in range(10):
                loss = (x @ x).sum() + x.exp().cumsum(1)[:, -1].sum() * 0
                loss.backward()
            results[seed] = x.grad.unique().tolist()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {seed: [10 * 64.0 * seed] for seed in range(1, 5)}


def test_an_error_of_the_chip_in_the_backward_pass_is_raised():
    class Fail(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad[torch.tensor([9], device=DEVICE)].expand(3)

    x = double(3)
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        Fail.apply(x).sum().backward()
        torch.kunlun.synchronize()
    y = double(3)
    y.sum().backward()
    assert y.grad.tolist() == [1] * 3


def test_anomaly_mode():
    x = torch.zeros(2, device=DEVICE, requires_grad=True)
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match="returned nan values"):
            (x.sqrt() * 0).sum().backward()
