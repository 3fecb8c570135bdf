"""Strides of zero, of dimensions of size one and of none, and memory that is not dense."""

import pytest
import torch

FORMS = {
    "expanded": lambda d: torch.arange(3.0, device=d)[:, None].expand(3, 4),
    "expanded from one": lambda d: torch.tensor([2.0], device=d).expand(3, 4),
    "size one with any stride": lambda d: torch.arange(12.0, device=d).as_strided((1, 3), (7, 2)),
    "size one inside": lambda d: torch.arange(12.0, device=d).as_strided((2, 1, 3), (3, 100, 1)),
    "no elements": lambda d: torch.arange(12.0, device=d).as_strided((0, 3), (5, 9)),
    "gaps": lambda d: torch.arange(24.0, device=d).as_strided((2, 3), (10, 3), 1),
    "overlapping windows": lambda d: torch.arange(8.0, device=d).unfold(0, 3, 1),
    "transposed with gaps": lambda d: torch.arange(40.0, device=d).reshape(5, 8)[::2, 1::3].t(),
    "0-dim in the middle": lambda d: torch.arange(9.0, device=d).as_strided((), (), 4),
}
RUNS = {
    "add": lambda x: x + x,
    "unary": torch.sin,
    "sum": lambda x: x.sum(),
    "sum of the last": lambda x: x.sum(-1),
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
    "to double": lambda x: x.double(),
    "mean of all": lambda x: x.mean() if x.numel() else x.sum(),
    "matmul": lambda x: x @ x.mT if x.dim() > 1 else x * x,
    "cat": lambda x: torch.cat([x, x]) if x.dim() else torch.stack([x, x]),
    "softmax": lambda x: x.softmax(-1),
    "where": lambda x: torch.where(x > 2, x, 0.0),
    "flatten": lambda x: x.flatten(),
    "copy into": lambda x: torch.zeros(x.shape, device=x.device).copy_(x),
    "empty_like": torch.ones_like,
    "index": lambda x: x[..., torch.tensor([0], device=x.device)] if x.numel() and x.dim() else x,
    "sort": lambda x: x.sort(dim=-1, stable=True),
    "round trip": lambda x: x.clone() if x.device.type == "cpu" else x.cpu().to(x.device),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("run", RUNS)
def test_equals_the_cpu(form, run, on_both):
    on_both(lambda device: RUNS[run](FORMS[form](device)))


@pytest.mark.parametrize("form", ["size one with any stride", "size one inside", "gaps", "transposed with gaps"])
def test_written_to(form, on_both):
    def run(device):
        x = FORMS[form](device)
        x.add_(1).copy_(torch.ones(x.shape, device="cpu" if device == "cpu" else "kunlun:1") + x.shape[0])
        return x, x._base if x._base is not None else x

    on_both(run)


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.copy_(x.clone())])
def test_writes_to_expanded_memory_are_refused_alike(write):
    for device in ("cpu", "kunlun"):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single"):
            write(torch.ones(1, device=device).expand(3))
