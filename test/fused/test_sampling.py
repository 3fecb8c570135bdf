"""Sampling from the most likely tokens. All draws are from fixed seeds, so no test depends on luck."""

import pytest
import torch
from common_fused import check_op, to_device

from torch_xpu_kunlun import ops
from torch_xpu_kunlun.ops import reference

NAMES = {
    "top_k_sampling_from_probs": (3,),
    "top_p_sampling_from_probs": (0.6,),
    "top_k_top_p_sampling_from_probs": (5, 0.6),
}


def allowed(name, probs, limits):
    if name == "top_k_sampling_from_probs":
        return reference.kept(probs, limits[0], None)
    if name == "top_p_sampling_from_probs":
        return reference.kept(probs, None, limits[0])
    return reference.kept(probs, *limits)


def draws(name, probs, limits, count, seed=0):
    """`count` tokens for each row of `probs`."""
    rows = probs.to("kunlun").repeat_interleave(count, 0)
    limits = [limit.to("kunlun").repeat_interleave(count, 0) if torch.is_tensor(limit) else limit for limit in limits]
    torch.kunlun.manual_seed(seed)
    return getattr(ops, name)(rows, *limits).view(-1, count).cpu().long()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 5, 31, 32, 100, 1000])
def test_only_the_allowed_and_each_as_often_as_it_is_likely(name, n):
    probs = torch.rand(3, n) ** 3
    limits = NAMES[name]
    target = allowed(name, probs, limits)
    count = 4000
    tokens = draws(name, probs, limits, count)
    frequency = torch.zeros(3, n).scatter_add_(1, tokens, torch.ones(3, count)) / count
    assert not frequency[target == 0].any()
    share = target / target.sum(-1, keepdim=True)
    deviation = (share * (1 - share) / count).sqrt()
    assert ((frequency - share).abs() <= 5 * deviation + 1e-3).all()


def test_limits_of_each_row():
    probs = torch.rand(4, 40)
    top_k, top_p = torch.tensor([1, 3, 40, 1000]), torch.tensor([0.0, 0.5, 1.0, 0.2])
    for name, limits in (
        ("top_k_sampling_from_probs", (top_k,)),
        ("top_k_sampling_from_probs", (top_k.int(),)),
        ("top_p_sampling_from_probs", (top_p,)),
        ("top_k_top_p_sampling_from_probs", (top_k, top_p)),
    ):
        tokens = draws(name, probs, limits, 500)
        found = torch.zeros(4, 40).scatter_(1, tokens, 1)
        target = allowed(name, probs, limits)
        assert not found[target == 0].any()
        assert tokens[0].unique().tolist() == [probs[0].argmax().item()]
        assert len(tokens[1].unique()) > 1


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_of_any_scale(name):
    probs = torch.rand(2, 50)
    expected = draws(name, probs, NAMES[name], 200)
    for scale in (2.0**-100, 2.0**90):
        assert torch.equal(draws(name, probs * scale, NAMES[name], 200), expected)


def test_equal_probabilities_are_kept_together():
    tokens = draws("top_k_sampling_from_probs", torch.tensor([[0.1, 0.2, 0.2, 0.2, 0.0]]), (2,), 400)
    assert tokens.unique().tolist() == [1, 2, 3]
    tokens = draws("top_k_sampling_from_probs", torch.tensor([[0.0, 0.2, 0.0, 0.2, 0.0]]), (4,), 400)
    assert tokens.unique().tolist() == [1, 3]


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_repeats_its_tokens(name):
    probs = torch.rand(2, 50)
    first = draws(name, probs, NAMES[name], 100, seed=1)
    assert torch.equal(draws(name, probs, NAMES[name], 100, seed=1), first)
    assert not torch.equal(draws(name, probs, NAMES[name], 100, seed=2), first)
    # Rows draw numbers of their own, and a second call draws others.
    assert len(first.unique()) > 1
    device = probs.to("kunlun").repeat(50, 1)
    second, third = (getattr(ops, name)(device, *NAMES[name]) for _ in range(2))
    assert not torch.equal(second, third)
    generator = torch.Generator("kunlun")
    a, b = (getattr(ops, name)(device, *NAMES[name], generator=generator.manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b)


def test_rows_of_a_wider_tensor():
    wide = torch.rand(40, 60)
    a = draws("top_k_sampling_from_probs", wide[:, 10:30], (1,), 1)
    assert torch.equal(a[:, 0], wide[:, 10:30].argmax(-1))
    device = wide.to("kunlun")
    assert torch.equal(ops.top_k_sampling_from_probs(device[:, 10:30], 1).cpu().long(), a[:, 0])
    assert torch.equal(ops.top_k_sampling_from_probs(device.t(), 1).cpu().long(), wide.t().argmax(-1))
    assert ops.top_k_sampling_from_probs(device[:0], 1).shape == (0,)


def test_operator_check():
    probs, top_k, top_p = torch.rand(4, 9), torch.full((4,), 1), torch.full((4,), 0.0)
    # The limits leave one token for each row, so that two calls agree.
    check_op(torch.ops.kunlun.top_k_sampling_from_probs.default, probs, top_k)
    check_op(torch.ops.kunlun.top_p_sampling_from_probs.default, probs, top_p)
    check_op(torch.ops.kunlun.top_k_top_p_sampling_from_probs.default, probs, top_k, top_p)


def test_rows_that_cannot_be_drawn_from():
    for row in ([0.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0]):
        ops.top_k_sampling_from_probs(torch.tensor([row], device="kunlun"), 1)
        with pytest.raises(RuntimeError, match="the probabilities of a row must be finite and not all zero"):
            torch.kunlun.synchronize()
    probs = to_device(torch.rand(2, 4))
    ops.top_k_sampling_from_probs(probs, 0)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0 for row 0"):
        torch.kunlun.synchronize()
    ops.top_p_sampling_from_probs(probs, 1.5)
    with pytest.raises(ValueError, match=r"top_p must be from 0 to 1, got 1.5 for row 0"):
        torch.kunlun.synchronize()


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    probs = torch.rand(4, 9, device=device)
    with pytest.raises(RuntimeError, match="probs must be Float, got Half"):
        ops.top_k_sampling_from_probs(probs.half(), 1)
    with pytest.raises(RuntimeError, match=r"top_k must have shape \[4\], got \[3\]"):
        ops.top_k_sampling_from_probs(probs, torch.ones(3, dtype=torch.int, device=device))
    with pytest.raises(RuntimeError, match="top_p must be Float, got Double"):
        ops.top_p_sampling_from_probs(probs, torch.ones(4, dtype=torch.double, device=device))
    with pytest.raises(RuntimeError, match="probs has no columns to choose from"):
        ops.top_p_sampling_from_probs(probs[:, :0], 0.5)
