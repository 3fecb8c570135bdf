"""Quantised tensors: made on the device or moved there, per tensor and per channel, as far as the CPU goes."""

import copy
import pickle

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:.*quantize", "ignore:.*TypedStorage", "ignore:torch.ao.quantization is")

X = torch.linspace(-2, 2, 12).reshape(4, 3)


def per_tensor(device):
    return torch.quantize_per_tensor(X.to(device), 0.1, 3, torch.quint8)


def per_channel(device):
    scales, zero_points = torch.tensor([0.1, 0.2, 0.3], device=device), torch.tensor([0, 1, 2], device=device)
    return torch.quantize_per_channel(X.to(device), scales, zero_points, 1, torch.qint8)


def check_equal(want, got):
    assert want.is_quantized == got.is_quantized
    if want.is_quantized:
        assert want.qscheme() == got.qscheme()
        for part in (torch.int_repr, torch.dequantize):
            torch.testing.assert_close(part(got).cpu(), part(want), rtol=0, atol=0)
            torch.testing.assert_close(part(got.cpu()), part(want), rtol=0, atol=0)
    else:
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


ANY = {
    "itself": lambda q: q,
    "clone": lambda q: q.clone(),
    "slice": lambda q: q[1:],
    "view": lambda q: q.view(2, 2, 3) if q.qscheme() == torch.per_tensor_affine else q.view(4, 3),
    "equal": lambda q: q == q,
    "copy of quantised": lambda q: torch.empty_like(q).copy_(q),
    "copy of floats": lambda q: q.clone().copy_(torch.ones(4, 3, device=q.device)),
    "copy of floats from the host": lambda q: q.clone().copy_(torch.ones(4, 3)),
    "pickle": lambda q: pickle.loads(pickle.dumps(q)),
    "deepcopy": copy.deepcopy,
    "other device": lambda q: q.to("kunlun:1").to("kunlun:0") if q.device.type == "kunlun" else q,
}
PER_TENSOR = {
    "relu": lambda q: q.relu(),
    "transposed": lambda q: q.t().contiguous(),
    "max": lambda q: q.max(),
    "cat": lambda q: torch.cat([q, q]),
    "sort": lambda q: q.sort()[0],
    "pool": lambda q: torch.nn.functional.max_pool1d(q.view(1, 4, 3), 2),
    "upsample": lambda q: torch.nn.functional.interpolate(q.view(1, 1, 4, 3), scale_factor=2),
    "index": lambda q: q[torch.tensor([2, 0], device=q.device)],
    "fill": lambda q: q.clone().fill_(1.0),
}
CASES = [(make, name) for make in (per_tensor, per_channel) for name in ANY] + [(per_tensor, n) for n in PER_TENSOR]


@pytest.mark.parametrize(("make", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("where", ["made on the device", "moved to the device"])
def test_equals_the_cpu(make, name, where):
    operation = (ANY | PER_TENSOR)[name]
    want = operation(make("cpu"))
    quantised = make("kunlun") if where == "made on the device" else make("cpu").to("kunlun")
    assert quantised.device.type == "kunlun"
    check_equal(want, operation(quantised))


def test_parameters():
    q, c = per_tensor("kunlun"), per_channel("kunlun")
    assert (q.q_scale(), q.q_zero_point(), q.qscheme()) == (0.1, 3, torch.per_tensor_affine)
    assert c.q_per_channel_axis() == 1
    assert c.q_per_channel_scales().device.type == "kunlun"
    assert c.q_per_channel_zero_points().tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="kPerTensorAffine"):
        c.q_scale()
    assert "quantization_scheme=torch.per_tensor_affine," in repr(q)


def test_an_empty_one_on_a_device_of_choice():
    q = torch._empty_affine_quantized([3], scale=0.5, zero_point=1, dtype=torch.qint8, device="kunlun:1").fill_(1.0)
    assert q.device == torch.device("kunlun:1")
    assert q.int_repr().tolist() == [3, 3, 3]


def test_what_cannot_be_copied():
    with pytest.raises(RuntimeError, match="please use dequantize"):
        torch.empty(4, 3, device="kunlun").copy_(per_tensor("kunlun"))
    with pytest.raises(RuntimeError, match="same shape"):
        per_tensor("kunlun").copy_(torch.ones(3))
    with pytest.raises(RuntimeError, match="same qscheme"):
        per_tensor("kunlun").copy_(per_channel("kunlun"))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_integer_matrix_products_and_fake_quantisation(dtype):
    a, b = torch.arange(32 * 32).reshape(32, 32).to(torch.int8), torch.ones(32, 32, dtype=torch.int8)
    assert torch.equal(torch._int_mm(a.to("kunlun"), b.to("kunlun")).cpu(), torch._int_mm(a, b))
    low, high = (-128, 127) if dtype is torch.int8 else (0, 255)
    want = torch.fake_quantize_per_tensor_affine(X, 0.1, 0, low, high)
    assert torch.equal(torch.fake_quantize_per_tensor_affine(X.to("kunlun"), 0.1, 0, low, high).cpu(), want)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.conv, self.linear = torch.nn.Conv2d(2, 3, 3), torch.nn.Linear(27, 4)
        self.sums = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        x = self.conv(self.quant(x)).relu()
        return self.dequant(self.linear(self.sums.add(x, x).flatten(1)))


@pytest.fixture(params=[name for name in torch.backends.quantized.supported_engines if name != "none"])
def engine(request):
    previous = torch.backends.quantized.engine
    torch.backends.quantized.engine = request.param
    yield request.param
    torch.backends.quantized.engine = previous


def test_a_module_that_was_quantised_on_the_cpu(engine):
    torch.manual_seed(0)
    model, x = Small().eval(), torch.randn(2, 2, 5, 5)
    model.qconfig = torch.ao.quantization.get_default_qconfig(engine)
    prepared = torch.ao.quantization.prepare(model)
    prepared(x)
    quantised = torch.ao.quantization.convert(prepared)
    want = quantised(x)
    moved = copy.deepcopy(quantised).to("kunlun")
    for _ in range(2):  # some engines pack the weights again when they are used first
        got = moved(x.to("kunlun"))
        assert got.device.type == "kunlun"
        assert torch.equal(got.cpu(), want)
    assert torch.equal(moved.to("cpu")(x), want)


@pytest.mark.parametrize("kind", [torch.nn.Linear, torch.nn.LSTM])
def test_a_module_whose_weights_were_quantised_on_the_cpu(kind):
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4)
    quantised = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(kind(4, 5)).eval(), {kind})
    want = quantised(x)
    got = quantised.to("kunlun")(x.to("kunlun"))
    torch.utils._pytree.tree_map(lambda a, b: torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0), got, want)


def test_weights_are_packed_on_the_cpu():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, device="kunlun"))
    with pytest.raises(NotImplementedError, match=r"'quantized::linear_prepack' packs weights.*the CPU only"):
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})


def test_dynamically_quantised_weights_by_hand():
    """The form in which engines keep int8 weights: integers and a scale, multiplied back."""
    weight = torch.linspace(-1, 1, 12).reshape(3, 4)
    scale = weight.abs().amax(1, keepdim=True) / 127
    integers = torch.round(weight / scale).to(torch.int8)
    x = torch.linspace(0, 1, 8).reshape(2, 4)
    want = x @ (integers.float() * scale).t()
    got = x.to("kunlun") @ (integers.to("kunlun").float() * scale.to("kunlun")).t()
    assert torch.equal(got.cpu(), want)
