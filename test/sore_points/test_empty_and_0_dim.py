"""Tensors without elements and without dimensions."""

import pytest
import torch

RUNS = {
    "sum": lambda x: x.sum(),
    "sum of a dimension": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "prod": lambda x: x.prod(),
    "any, all": lambda x: [(x > 0).any(), (x > 0).all()],
    "add": lambda x: x + x,
    "relu": torch.relu,
    "copy": lambda x: x.clone().copy_(x),
    "cpu": lambda x: x.to(torch.float16),
    "fill": lambda x: x.clone().fill_(3),
    "cat": lambda x: torch.cat([x.reshape(-1), torch.ones(2, device=x.device)]),
    "stack": lambda x: torch.stack([x, x]),
    "nonzero": lambda x: x.nonzero(),
    "sort": lambda x: x.sort(),
    "cumsum": lambda x: x.cumsum(0),
    "where": lambda x: torch.where(x > 0, x, 2.0),
    "softmax": lambda x: x.softmax(0),
    "masked_select": lambda x: x.masked_select(x > 5),
    "norm": torch.linalg.vector_norm,
    "sum to size": lambda x: x.sum_to_size(x.shape),
    "unique": lambda x: x.unique(),
    "view": lambda x: x.view(-1),
    "expand": lambda x: x.expand(2, *x.shape),
    "random": lambda x: torch.rand_like(x) * 0,
    "foreach": lambda x: torch._foreach_add([x, x], 1),
    "gradient": lambda x: torch.autograd.grad((x.requires_grad_() * 2).sum(), x),
    "tolist": lambda x: x.tolist(),
}


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("name", RUNS)
def test_equals_the_cpu(name, shape, on_both):
    on_both(lambda device: RUNS[name](torch.ones(shape, device=device)))


@pytest.mark.parametrize(
    "run",
    [
        lambda d: torch.empty(0, 4, device=d) @ torch.empty(4, 3, device=d),
        lambda d: torch.empty(3, 0, device=d) @ torch.empty(0, 2, device=d),
        lambda d: torch.nn.functional.linear(torch.empty(0, 4, device=d), torch.ones(2, 4, device=d)),
        lambda d: torch.nn.functional.linear(torch.empty(2, 0, device=d), torch.ones(3, 0, device=d)),
        lambda d: torch.bmm(torch.empty(0, 2, 3, device=d), torch.empty(0, 3, 4, device=d)),
        lambda d: torch.nn.functional.embedding(torch.empty(0, dtype=torch.long, device=d), torch.ones(3, 2, device=d)),
        lambda d: torch.nn.functional.conv2d(torch.empty(0, 1, 4, 4, device=d), torch.ones(2, 1, 3, 3, device=d)),
        lambda d: torch.nn.functional.layer_norm(torch.empty(0, 3, device=d), (3,)),
        lambda d: torch.empty(2, 0, device=d).max(0),
        lambda d: torch.ones(3, device=d)[torch.empty(0, dtype=torch.long, device=d)],
        lambda d: torch.ones(3, device=d).index_put_([torch.arange(0, device=d)], torch.ones(0, device=d)),
        lambda d: torch.arange(0, device=d),
        lambda d: torch.tensor(3.0, device=d)[None].squeeze(),
        lambda d: torch.tensor(3.0, device=d)[...],
        lambda d: torch.zeros(5, device=d).scatter_(0, torch.empty(0, dtype=torch.long, device=d), 1.0),
    ],
)  # fmt: skip
def test_operators_of_several_tensors(run, on_both):
    on_both(run)


@pytest.mark.parametrize("run", [lambda x: x.max(), lambda x: x.argmin(), lambda x: x.item(), lambda x: x.mode()])
def test_what_has_no_answer_is_refused(run):
    for device in ("cpu", "kunlun"):
        with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
            run(torch.empty(0, device=device))
        if device == "cpu":
            expected = type(caught.value)
        else:
            assert type(caught.value) is expected


def test_empty_tensors_keep_their_device_and_take_no_memory():
    before = torch.kunlun.memory_allocated(1)
    x = torch.empty(0, 5, device="kunlun:1")
    assert (x.device, x[:, :2].clone().device, x.cpu().to("kunlun:1").shape) == (x.device, x.device, (0, 5))
    assert torch.kunlun.memory_allocated(1) == before
