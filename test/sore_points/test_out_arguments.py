"""out= that must grow or shrink, that overlaps with an input, that is a view, or has another dtype or device."""

import pytest
import torch

OPERATORS = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "sum": lambda x, out: torch.sum(x, 0, keepdim=True, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.empty(0, dtype=torch.long, device=x.device)))[0],
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, torch.tensor([1, 0, 1], device=x.device), out=out),
    "where": lambda x, out: torch.where(x > 1, x, -x, out=out),
    "nonzero": lambda x, out: torch.nonzero(x, out=out.to(torch.long)),
    "masked_select": lambda x, out: torch.masked_select(x, x > 2, out=out),
    "linalg.inv": lambda x, out: torch.linalg.inv(x + torch.eye(3, device=x.device) * 9, out=out),
    "gather": lambda x, out: torch.gather(x, 1, torch.zeros(3, 2, dtype=torch.long, device=x.device), out=out),
}


def x_on(device):
    return torch.arange(9.0, device=device).reshape(3, 3)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("error:An output with one or more elements was resized")
def test_an_empty_out_grows_without_a_warning(name, on_both):
    def run(device):
        out = torch.empty(0, device=device)
        result = OPERATORS[name](x_on(device), out)
        return [result, out] if name != "nonzero" else [result]

    on_both(run)


@pytest.mark.parametrize("name", ["add", "mm", "sum", "cat", "cumsum", "where", "index_select"])
def test_an_out_of_the_wrong_shape_is_resized_with_a_warning(name, on_both):
    def run(device):
        out = torch.full((2, 7), -1.0, device=device)
        with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
            OPERATORS[name](x_on(device), out)
        return out

    on_both(run)


@pytest.mark.parametrize("name", ["add", "mm", "cumsum", "where", "index_select", "linalg.inv"])
def test_an_out_that_is_a_view_writes_through_to_its_base(name, on_both):
    def run(device):
        base = torch.full((5, 8), -1.0, device=device)
        for view in (base[1:4, 2:8:2], base.t()[3:6, 1:4]):
            assert OPERATORS[name](x_on(device), view) is view
        return base

    on_both(run)


@pytest.mark.parametrize("name", ["add", "where"])
def test_an_out_that_is_the_input(name, on_both):
    def run(device):
        x = x_on(device)
        return OPERATORS[name](x, x)

    on_both(run)


def test_partial_overlap_is_refused():
    for device in ("cpu", "kunlun"):
        x = torch.arange(6.0, device=device)
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
            torch.add(x[:-1], 1, out=x[1:])
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            torch.add(x, 1, out=torch.zeros(1, device=device).expand(6))
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_dtypes_of_out(on_both):
    on_both(
        lambda device: torch.add(torch.ones(2, dtype=torch.int32, device=device), 1, out=torch.empty(2, device=device))
    )
    for device in ("cpu", "kunlun"):
        with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Int"):
            torch.add(torch.ones(2, device=device), 1, out=torch.empty(2, dtype=torch.int32, device=device))


def test_an_out_on_another_device_is_refused():
    for out in (torch.empty(2), torch.empty(2, device="kunlun:1")):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.add(torch.ones(2, device="kunlun"), 1, out=out)


def test_a_view_as_out_that_would_have_to_grow_gets_memory_within_its_storage(on_both):
    def run(device):
        base = torch.full((6,), -1.0, device=device)
        view = base[2:2]
        torch.add(torch.ones(3, device=device), 1, out=view)
        return base, view

    on_both(run)
