"""torch's tools on kunlun tensors: printing, comparing, profiling, timing, dispatch traces, safetensors, numpy."""

import pytest
import torch

DEVICE = "device='kunlun:0'"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.arange(3), f"tensor([0, 1, 2], {DEVICE})"),
        (lambda: torch.tensor(1.5), f"tensor(1.5000, {DEVICE})"),
        (lambda: torch.tensor([True, False]), f"tensor([ True, False], {DEVICE})"),
        (lambda: torch.empty(0, 3), f"tensor([], {DEVICE}, size=(0, 3))"),
        (lambda: torch.tensor([1 + 2j]).conj(), f"tensor([1.-2.j], {DEVICE})"),
        (lambda: torch.ones(2, dtype=torch.float16), f"tensor([1., 1.], {DEVICE}, dtype=torch.float16)"),
        (lambda: torch.ones(2, requires_grad=True), f"tensor([1., 1.], {DEVICE}, requires_grad=True)"),
        (
            lambda: torch.nn.Parameter(torch.ones(1)),
            f"Parameter containing:\ntensor([1.], {DEVICE}, requires_grad=True)",
        ),
        (lambda: torch.ones(2, requires_grad=True) * 2, f"tensor([2., 2.], {DEVICE}, grad_fn=<MulBackward0>)"),
        (lambda: torch.arange(2000), f"tensor([   0,    1,    2,  ..., 1997, 1998, 1999], {DEVICE})"),
    ],
)
def test_printing(make, text):
    with torch.device("kunlun"):
        assert repr(make()) == text


def test_numpy_is_refused_with_the_words_that_cuda_uses():
    with pytest.raises(TypeError, match=r"can't convert kunlun:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        torch.ones(2, device="kunlun").numpy()
    assert torch.ones(2, device="kunlun").numpy(force=True).tolist() == [1.0, 1.0]


def test_assert_close():
    a, b = torch.ones(2, device="kunlun"), torch.tensor([1.0, 1.5])
    torch.testing.assert_close(a, a.clone())
    with pytest.raises(AssertionError, match="The values for attribute 'device' do not match: kunlun:0 != cpu"):
        torch.testing.assert_close(a, torch.ones(2))
    torch.testing.assert_close(a, torch.ones(2), check_device=False)
    with pytest.raises(AssertionError, match=r"Mismatched elements: 1 / 2 \(50.0%\)"):
        torch.testing.assert_close(a, b.to("kunlun"))
    with pytest.raises(AssertionError, match="do not match"):
        torch.testing.assert_close(a, torch.ones(2, device="kunlun:1"))


def test_the_profiler_shows_operators_and_device_memory():
    from torch.profiler import profile, record_function

    x = torch.ones(1000, device="kunlun")
    with profile(profile_memory=True, record_shapes=True) as profiler, record_function("part of the program"):
        y = (x @ x).relu() + torch.ones(1, device="kunlun")
    names = {event.key: event for event in profiler.key_averages()}
    assert {"aten::dot", "aten::relu", "aten::add", "part of the program"} <= set(names)
    assert names["aten::relu"].count == 1
    assert names["aten::add"].device_memory_usage == 512, "allocations of the device are counted, in whole blocks"
    assert [1000] in next(event for event in profiler.events() if event.name == "aten::dot").input_shapes
    assert y.item() == 1001.0


def test_the_timer_of_torch():
    from torch.utils.benchmark import Timer

    measurement = Timer("x + 1", globals={"x": torch.ones(3, device="kunlun")}).timeit(10)
    assert measurement.median > 0


def test_the_dispatchers_trace_names_the_device():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **kwargs or {})

    with Recorder() as recorder:
        torch.ones(2, device="kunlun").add_(1).sum()
    assert recorder.seen == ["aten.ones.default", "aten.add_.Tensor", "aten.sum.default"]
    assert "PrivateUse1: registered" in torch._C._dispatch_dump("aten::add_.Tensor")


def test_safetensors(tmp_path):
    """safetensors 0.8 knows no device by the name kunlun; a number is the device of torch's accelerator."""
    safetensors = pytest.importorskip("safetensors", reason="https://pypi.org/project/safetensors is not installed")
    from safetensors.torch import load_file, load_model, save_file, save_model

    path = tmp_path / "weights.safetensors"
    weights = {
        "a": torch.randn(3, 4, device="kunlun"),
        "b": torch.arange(5, device="kunlun:1"),
        "c": torch.randn(2, device="kunlun").to(torch.bfloat16),
    }
    save_file(weights, path)
    for index in range(2):
        loaded = load_file(path, device=index)
        for name, tensor in weights.items():
            assert loaded[name].device == torch.device("kunlun", index)
            assert torch.equal(loaded[name].cpu(), tensor.cpu())
    with safetensors.safe_open(path, framework="pt", device=1) as file:
        assert file.get_tensor("a").device == torch.device("kunlun:1")
        part = file.get_slice("a")[1:, :2]
        assert part.device == torch.device("kunlun:1")
        assert torch.equal(part.cpu(), weights["a"][1:, :2].cpu())

    model, again = torch.nn.Linear(3, 4).kunlun(), torch.nn.Linear(3, 4).kunlun()
    save_model(model, tmp_path / "model.safetensors")
    load_model(again, tmp_path / "model.safetensors", device=0)
    assert torch.equal(model.weight, again.weight)
