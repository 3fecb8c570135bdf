"""Random numbers: from a seed and an offset per device; repeatable, independent, and of the right distribution."""

import math

import pytest
import torch
import torch.nn.functional as F
from common_move import DEVICE

COUNT = 20_000


def empty(count=COUNT, **options):
    return torch.empty(count, device=DEVICE, **options)


DRAWS = {
    "rand": lambda **g: torch.rand(64, device=DEVICE, **g),
    "randn": lambda **g: torch.randn(64, device=DEVICE, **g),
    "randint": lambda **g: torch.randint(1000, (64,), device=DEVICE, **g),
    "randperm": lambda **g: torch.randperm(64, device=DEVICE, **g),
    "uniform_": lambda **g: empty(64).uniform_(1, 2, **g),
    "normal_": lambda **g: empty(64).normal_(1, 2, **g),
    "random_": lambda **g: empty(64, dtype=torch.int64).random_(**g),
    "random_ to": lambda **g: empty(64, dtype=torch.int32).random_(1 << 20, **g),
    "random_ from": lambda **g: empty(64, dtype=torch.int64).random_(-(1 << 20), 1 << 20, **g),
    "bernoulli_": lambda **g: empty(64).bernoulli_(0.5, **g),
    "bernoulli": lambda **g: torch.bernoulli(torch.full((64,), 0.5, device=DEVICE), **g),
    "exponential_": lambda **g: empty(64).exponential_(2, **g),
    "cauchy_": lambda **g: empty(64).cauchy_(1, 2, **g),
    "log_normal_": lambda **g: empty(64).log_normal_(0, 1, **g),
    "geometric_": lambda **g: empty(64).geometric_(0.1, **g),
    "normal of tensors": lambda **g: torch.normal(torch.zeros(64, device=DEVICE), torch.ones(64, device=DEVICE), **g),
    "multinomial": lambda **g: torch.multinomial(torch.ones(64, device=DEVICE), 32, **g),
    "poisson": lambda **g: torch.poisson(torch.full((64,), 50.0, device=DEVICE), **g),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_from_the_seed(draw):
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)
    torch.kunlun.manual_seed(4)
    assert not torch.equal(draw(), first)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_from_a_generator_of_ones_own(draw):
    generator = torch.Generator(DEVICE).manual_seed(3)
    torch.manual_seed(0)
    state = torch.kunlun.get_rng_state()
    first = draw(generator=generator)
    assert torch.equal(torch.kunlun.get_rng_state(), state)  # the default generator was not asked
    assert not torch.equal(draw(generator=generator), first)
    assert torch.equal(draw(generator=generator.manual_seed(3)), first)
    torch.manual_seed(3)
    assert torch.equal(draw(), first)  # only seed and offset count


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_generator_of_another_device_is_refused(draw):
    with pytest.raises(RuntimeError, match=r"Expected a 'kunlun:0' generator device but found 'cpu'"):
        draw(generator=torch.Generator("cpu"))
    with pytest.raises(RuntimeError, match="kunlun:1"):
        draw(generator=torch.Generator("kunlun:1"))


def test_the_state():
    torch.manual_seed(11)
    state = torch.kunlun.get_rng_state()
    assert state.numel() == 16
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    assert int.from_bytes(bytes(state[:8].tolist()), "little") == 11
    first = torch.rand(100, device=DEVICE)
    assert not torch.equal(torch.kunlun.get_rng_state(), state)
    torch.kunlun.set_rng_state(state)
    assert torch.equal(torch.rand(100, device=DEVICE), first)
    copy = torch.Generator(DEVICE)
    copy.set_state(state)
    assert torch.equal(torch.rand(100, device=DEVICE, generator=copy), first)
    assert copy.initial_seed() == 11
    with pytest.raises(ValueError, match="has 16 bytes, got 8"):
        torch.kunlun.set_rng_state(state[:8])


def test_devices_have_states_of_their_own():
    torch.manual_seed(1)
    first = torch.rand(8, device="kunlun:0")
    other = torch.rand(8, device="kunlun:1")
    assert torch.equal(first.cpu(), other.cpu())  # the same seed
    state = torch.kunlun.get_rng_state(1)
    torch.rand(8, device="kunlun:0")
    assert torch.equal(torch.kunlun.get_rng_state(1), state)


def test_fork_rng():
    torch.manual_seed(1)
    expected = torch.rand(8, device=DEVICE)
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type=DEVICE):
        torch.rand(100, device=DEVICE)
    assert torch.equal(torch.rand(8, device=DEVICE), expected)


def test_the_host_s_numbers_are_not_touched():
    torch.manual_seed(1)
    expected = torch.rand(8)
    torch.manual_seed(1)
    for draw in DRAWS.values():
        draw()
    assert torch.equal(torch.rand(8), expected)


# name -> (draw, mean, standard deviation)
MOMENTS = {
    "uniform": (lambda: empty().uniform_(-1, 3), 1, 4 / math.sqrt(12)),
    "normal": (lambda: empty().normal_(2, 3), 2, 3),
    "normal, odd": (lambda: torch.randn(COUNT + 1, device=DEVICE), 0, 1),
    "normal, strided": (lambda: torch.empty(100, 400, device=DEVICE)[:, ::2].normal_(5, 2), 5, 2),
    "bernoulli": (lambda: empty().bernoulli_(0.3), 0.3, math.sqrt(0.21)),
    "bernoulli of a tensor": (lambda: torch.bernoulli(torch.full((COUNT,), 0.3, device=DEVICE)), 0.3, math.sqrt(0.21)),
    "exponential": (lambda: empty().exponential_(0.5), 2, 2),
    "log_normal": (lambda: empty().log_normal_(0, 0.5), math.exp(0.125), math.exp(0.125) * math.sqrt(math.expm1(0.25))),
    "geometric": (lambda: empty().geometric_(0.25), 4, math.sqrt(0.75) / 0.25),
    "randint": (lambda: torch.randint(-10, 11, (COUNT,), device=DEVICE).float(), 0, math.sqrt((21**2 - 1) / 12)),
    "poisson": (lambda: torch.poisson(torch.full((COUNT,), 9.0, device=DEVICE)), 9, 3),
}


@pytest.mark.parametrize(("draw", "mean", "deviation"), MOMENTS.values(), ids=MOMENTS.keys())
def test_moments(draw, mean, deviation):
    torch.manual_seed(0)
    values = draw().double().flatten()
    # Six standard errors of the mean; the deviation of heavy tails is known less well.
    assert abs(values.mean().item() - mean) < 6 * deviation / math.sqrt(values.numel())
    assert abs(values.std().item() / deviation - 1) < 0.1


def test_ranges():
    torch.manual_seed(0)
    values = torch.rand(COUNT, device=DEVICE)
    assert values.min() >= 0
    assert values.max() < 1
    assert values.unique().numel() > COUNT * 0.99
    half = torch.rand(COUNT, device=DEVICE, dtype=torch.bfloat16)
    assert half.max() < 1
    whole = torch.randint(3, 7, (COUNT,), device=DEVICE)
    assert whole.unique().tolist() == [3, 4, 5, 6]
    assert (empty().cauchy_(0, 1).median().abs() < 0.1).item()
    bits = empty(dtype=torch.uint8).random_()
    assert bits.unique().numel() == 256


@pytest.mark.parametrize("count", [0, 1, 5, 10_000])
def test_randperm(count):
    values = torch.randperm(count, device=DEVICE)
    assert values.dtype == torch.int64
    assert torch.equal(values.sort().values.cpu(), torch.arange(count))
    if count > 100:
        assert not torch.equal(values.cpu(), torch.arange(count))


def test_dropout():
    torch.manual_seed(0)
    x = torch.ones(100, 200, device=DEVICE, requires_grad=True)
    y = F.dropout(x, 0.25)
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.02
    assert torch.equal(y[kept].unique().cpu(), torch.tensor([1 / 0.75]))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # the backward pass uses the same mask
    assert torch.equal(F.dropout(x, 0.25, training=False), x)
    assert (F.dropout(x, 1.0) == 0).all()
    assert torch.equal(F.dropout(x, 0.0), x)
    assert not torch.equal(F.dropout(x, 0.25), y)
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(x, 1.5)


def test_the_gradient_of_dropout_of_whole_numbers_is_the_cpus():
    grad, mask = torch.arange(6).reshape(2, 3), torch.tensor([[True, False, True], [False, True, True]])
    want = torch.ops.aten.native_dropout_backward(grad, mask, 1.5)
    got = torch.ops.aten.native_dropout_backward(grad.to(DEVICE), mask.to(DEVICE), 1.5)
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


def test_initialisers_and_distributions_run_on_the_device():
    layer = torch.nn.Linear(64, 64, device=DEVICE)
    torch.nn.init.kaiming_normal_(layer.weight)
    torch.nn.init.trunc_normal_(layer.weight, std=0.5, a=-1, b=1)
    assert layer.weight.abs().max() <= 1
    torch.nn.init.orthogonal_(layer.weight)
    torch.testing.assert_close(layer.weight @ layer.weight.T, torch.eye(64, device=DEVICE), atol=1e-4, rtol=0)
    concentration = torch.full((1000,), 3.0, device=DEVICE)
    samples = torch.distributions.Gamma(concentration, 1.0).rsample()
    assert abs(samples.mean().item() - 3) < 0.5
    assert torch.distributions.Categorical(torch.ones(4, device=DEVICE)).sample((10,)).device.type == DEVICE
