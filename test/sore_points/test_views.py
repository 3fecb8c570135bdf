"""Storage offset or stride lost in views, and in copies into views."""

import pytest
import torch

VIEWS = {
    "offset": lambda x: x[1:],
    "step": lambda x: x[:, ::2],
    "column": lambda x: x[:, 1],
    "transposed": lambda x: x.t(),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (5, 2), 3),
    "view of a view": lambda x: x[1:].t()[1:, 1:],
    "narrow and flatten": lambda x: x.narrow(0, 1, 2).flatten(),
    "reinterpreted": lambda x: x[1:, :2].view(torch.int32) if x.dtype is torch.float32 else x[1:, :2],
    "half of each": lambda x: x[1:].view(torch.int16)[:, 1::2],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split([1, 3])[1],
    "unbind": lambda x: x.unbind(1)[2],
}


def base(device):
    return torch.arange(24.0, device=device).reshape(4, 6).clone()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_where_the_cpus_is(name, on_both):
    on_both(lambda device: VIEWS[name](base(device)))
    x = base("kunlun")
    view = VIEWS[name](x)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x_cpu = base("cpu")
    assert (view._base is x) == (VIEWS[name](x_cpu)._base is x_cpu)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("way", ["from the device", "from the host", "from the other device", "converted", "broadcast"])
def test_a_copy_into_a_view_changes_what_lies_under_it_and_nothing_else(name, way, on_both):
    def run(device):
        x = base(device)
        view = VIEWS[name](x)
        if name == "unfold":
            view = view[::2]  # the windows overlap
        source = torch.arange(float(view.numel())).reshape(view.shape) + 100
        if way == "converted":
            source = source.to(torch.float64)
        if way == "broadcast":
            source = source.reshape(-1)[:1].reshape([1] * view.dim())
        target = {"from the host": "cpu", "from the other device": "kunlun:1"}.get(way, device)
        view.copy_(source.to(target if device != "cpu" else "cpu"))
        return x

    on_both(run)


@pytest.mark.parametrize("name", VIEWS)
def test_in_place_operators_on_a_view(name, on_both):
    def run(device):
        x = base(device)
        view = VIEWS[name](x)
        (view[::2] if name == "unfold" else view).add_(1).mul_(2)
        return x

    on_both(run)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_crosses_to_the_host_and_the_other_device(name):
    want, view = VIEWS[name](base("cpu")), VIEWS[name](base("kunlun"))
    for moved in (view.cpu(), view.to("kunlun:1"), view.clone(), view.contiguous()):
        assert torch.equal(moved.cpu(), want)
    assert view.cpu().stride() == want.clone().stride()
    assert view.contiguous().stride() == want.contiguous().stride()
