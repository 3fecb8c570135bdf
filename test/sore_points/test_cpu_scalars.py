"""Wrapped numbers and 0-dim tensors of the host among device tensors."""

import pytest
import torch

VALUES = [2, 2.5, True, torch.tensor(2), torch.tensor(2.5), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True)]
DTYPES = [torch.float32, torch.float16, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_and_the_dtype_of_the_result(value, dtype, on_both):
    def run(device):
        x = torch.arange(4, device=device).to(dtype)
        same = torch.as_tensor(value, device=device).to(dtype)
        return [x * value, value * x, x + value, torch.maximum(x, same), x > value]

    on_both(run)


@pytest.mark.parametrize(
    "run",
    [
        lambda x, s: x.add(s, alpha=s.item()),
        lambda x, s: torch.where(x > 1, x, s),
        lambda x, s: x.clone().add_(s),
        lambda x, s: x.clone().fill_(s),
        lambda x, s: x.masked_fill(x > 1, s),
        torch.pow,
        lambda x, s: torch.pow(s, x),
        lambda x, s: x.clone().index_fill_(0, torch.tensor([1], device=x.device), s),
        lambda x, s: torch.addcmul(x, x, x, value=s.item()),
        lambda x, s: x.clone().__setitem__(0, s),
        lambda x, s: torch.full_like(x, s.item()),
        lambda x, s: torch.lerp(x, x + 1, s.item()),
    ],
)
def test_a_0_dim_tensor_of_the_host_is_taken_by_value(run, on_both):
    on_both(lambda device: run(torch.arange(4.0, device=device), torch.tensor(1.5)))


def test_the_value_is_that_of_the_call():
    """The chip computes later; the host may have changed its scalar by then."""
    x, scalar = torch.ones(1 << 20, device="kunlun"), torch.tensor(1.0)
    results = []
    for number in range(20):
        scalar.fill_(number)
        results.append(x * scalar)
    scalar.fill_(-1)
    assert [result[-1].item() for result in results] == list(range(20))


def test_0_dim_tensors_of_the_device_promote_as_on_the_cpu(on_both):
    def run(device):
        zero_dim = torch.tensor(2.5, dtype=torch.float64, device=device)
        return [torch.ones(2, device=device) * zero_dim, torch.ones(2, dtype=torch.int32, device=device) * zero_dim]

    on_both(run)


def test_tensors_of_the_host_with_dimensions_are_refused():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(1, device="kunlun") + torch.ones(1)
