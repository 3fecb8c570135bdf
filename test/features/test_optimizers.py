"""Optimizers, one tensor at a time, in lists and fused, and the scaling of gradients: the CPU's numbers."""

import pytest
import torch

FUSED = ["SGD", "Adam", "AdamW", "Adagrad"]
IN_LISTS = [*FUSED, "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
OPTIONS = {"SGD": {"momentum": 0.9, "nesterov": True}, "Rprop": {}, "Adagrad": {"lr_decay": 0.1}}


def net(device):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers).to(device)


def batch(device, step):
    return (torch.arange(24.0).reshape(3, 8) / 24 + step).to(device)


def train(device, name, **mode):
    model = net(device)
    options = {"weight_decay": 0.01} if name != "Rprop" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options | OPTIONS.get(name, {}) | mode)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(device, step)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def check_equal(models):
    for (name, want), got in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert got.device.type == "kunlun"
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


CASES = [(name, mode) for name in IN_LISTS for mode in ({"foreach": True}, {"foreach": False})]
CASES += [(name, {"fused": True}) for name in FUSED]
CASES += [(name, {"fused": True, "maximize": True}) for name in FUSED]
CASES += [("Adam", {"fused": True, "amsgrad": True}), ("AdamW", {"foreach": True, "amsgrad": True})]


@pytest.mark.parametrize(("name", "mode"), CASES, ids=str)
def test_a_step_gives_the_cpus_numbers(name, mode):
    check_equal([train(device, name, **mode)[0] for device in ("cpu", "kunlun")])


def test_lists_are_the_default_as_on_cuda():
    from torch.optim.optimizer import _default_to_fused_or_foreach
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices, _get_fused_kernels_supported_devices

    assert "kunlun" in _get_foreach_kernels_supported_devices()
    assert "kunlun" in _get_fused_kernels_supported_devices()
    _, foreach = _default_to_fused_or_foreach(
        [torch.nn.Parameter(torch.ones(2, device="kunlun"))], differentiable=False
    )
    assert foreach


@pytest.mark.parametrize("mode", [{"fused": True}, {"foreach": True}], ids=str)
def test_the_state_goes_through_a_checkpoint_to_the_cpu_and_back(mode, tmp_path):
    model, optimizer = train("kunlun", "AdamW", **mode)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "checkpoint.pt")

    resumed = []
    for device in ("cpu", "kunlun"):
        other = net(device)
        again = torch.optim.AdamW(other.parameters(), **mode)
        weights, state = torch.load(tmp_path / "checkpoint.pt", map_location=device)
        other.load_state_dict(weights)
        again.load_state_dict(state)
        assert {tensor.device.type for tensor in again.state[other[0].weight].values()} <= {device, "cpu"}
        other(batch(device, 9)).square().mean().backward()
        again.step()
        resumed.append(other)
    check_equal(resumed)


def test_sparse_gradients():
    models = []
    for device in ("cpu", "kunlun"):
        torch.manual_seed(0)
        model = torch.nn.Embedding(10, 3, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        for rows in ([1, 2, 1], [5, 2, 9]):
            optimizer.zero_grad()
            model(torch.tensor(rows, device=device)).square().sum().backward()
            assert model.weight.grad.is_sparse
            optimizer.step()
        models.append(model)
    check_equal(models)


def train_scaled(device, make_scaler, **mode):
    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **mode)
    scaler = make_scaler(device)
    scales = []
    for step in range(6):
        data = batch(device, step)
        if step == 2:
            data[0, 0] = torch.inf
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(model(data).square().mean()).backward()
        if "fused" not in mode:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        unchanged = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert unchanged == (step == 2), "a step is skipped when a gradient is infinite, and only then"
    return model, scales


@pytest.mark.parametrize("mode", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_steps_with_infinite_gradients_are_skipped(mode):
    def scaler(device):
        return torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)

    (cpu, cpu_scales), (kunlun, kunlun_scales) = (train_scaled(d, scaler, **mode) for d in ("cpu", "kunlun"))
    assert cpu_scales == kunlun_scales == [4.0, 8.0, 4.0, 4.0, 8.0, 8.0]
    check_equal([cpu, kunlun])


def test_the_scaler_of_the_module():
    _, scales = train_scaled("kunlun", lambda _: torch.kunlun.amp.GradScaler(init_scale=4.0, growth_interval=2))
    assert scales == [4.0, 8.0, 4.0, 4.0, 8.0, 8.0]


def test_the_scalers_state_can_be_saved():
    scaler = torch.amp.GradScaler("kunlun", init_scale=4.0)
    scaler.scale(torch.ones((), device="kunlun"))
    other = torch.amp.GradScaler("kunlun")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 4.0
    assert scaler.scale(torch.ones(2, device="kunlun")).tolist() == [4.0, 4.0]


def test_a_step_without_gradients_is_refused():
    scaler = torch.amp.GradScaler("kunlun")
    optimizer = torch.optim.SGD(net("kunlun").parameters(), lr=0.1)
    scaler.scale(torch.ones((), device="kunlun"))
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(optimizer)
