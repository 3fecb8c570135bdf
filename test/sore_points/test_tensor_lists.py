"""Operators that write into lists of tensors."""

import pytest
import torch


def tensors(device):
    base = torch.arange(12.0, device=device)
    return base, [base[:4], base[4:8].view(2, 2).t(), torch.ones(3, device=device), torch.empty(0, device=device)]


@pytest.mark.parametrize(
    "write",
    [
        lambda ts: torch._foreach_add_(ts, 1),
        lambda ts: torch._foreach_mul_(ts, [1.0, 2.0, 3.0, 4.0]),
        lambda ts: torch._foreach_add_(ts, [t.clone() for t in ts], alpha=2),
        torch._foreach_zero_,
        lambda ts: torch._foreach_copy_(ts, [t + 5 for t in ts]),
        lambda ts: torch._foreach_addcmul_(ts, [t + 1 for t in ts], [t + 2 for t in ts], value=0.5),
        lambda ts: torch._foreach_clamp_min_(ts, 3.0),
        lambda ts: torch._foreach_lerp_(ts, [t + 1 for t in ts], 0.25),
        lambda ts: torch._foreach_mul_(ts, torch.tensor(3.0, device=ts[0].device)),
        lambda ts: torch._foreach_copy_(ts, [t.cpu() + 7 for t in ts]),
        torch._foreach_sqrt_,
    ],
)  # fmt: skip
def test_views_of_one_storage_are_written_through(write, on_both):
    def run(device):
        base, members = tensors(device)
        versions = [t._version for t in members]
        write(members)
        assert all(t._version > v for t, v in zip(members, versions, strict=True))
        return base, members

    on_both(run)


def test_a_tensor_twice_in_a_list(on_both):
    def run(device):
        x = torch.ones(3, device=device)
        torch._foreach_add_([x, x], 1)
        return x

    on_both(run)


def test_lists_as_results_and_outputs(on_both):
    def run(device):
        x = torch.arange(12.0, device=device).reshape(3, 4)
        outs = [torch.empty(0, device=device), torch.empty(0, device=device)]
        torch.split_with_sizes_copy(x, [1, 3], 1, out=outs)
        return [
            outs,
            torch.unbind_copy(x),
            torch._foreach_norm(list(x)),
            x.tensor_split(3, 1),
            torch._foreach_max(list(x)),
        ]

    on_both(run)


def test_lists_of_two_devices():
    lists = [torch.ones(2, device="kunlun:0"), torch.ones(2, device="kunlun:1"), torch.ones(2)]
    torch._foreach_add_(lists, 1)
    assert [t.tolist() for t in lists] == [[2.0, 2.0]] * 3
    assert [t.device.type for t in lists] == ["kunlun", "kunlun", "cpu"]


def test_gradients_clipped_in_a_list(on_both):
    def run(device):
        parameters = [torch.ones(n, device=device).requires_grad_() for n in (2, 3, 4)]
        sum((p * n).sum() for n, p in enumerate(parameters, 1)).backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        torch.nn.utils.clip_grad_value_(parameters, 0.2, foreach=True)
        return [norm, [p.grad for p in parameters]]

    on_both(run)
