"""Modules: convolutions, recurrent networks, attention and normalisation, forward and backward, against the CPU."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from common_move import DEVICE
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def compare(module, *inputs, exactly=True):
    """Outputs and all gradients of a module and of its copy on the device.

    Recurrent networks are only close: torch composes them in another way on the CPU than on any device.
    """
    results = []
    for device in ("cpu", DEVICE):
        moved = copy.deepcopy(module).to(device)
        values = [t.detach().to(device).requires_grad_(t.is_floating_point()) for t in inputs]
        outputs = moved(*values)
        outputs = [t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
        loss = sum((t * t).sum() for t in outputs if t.is_floating_point())
        loss.backward()
        gradients = [p.grad for p in moved.parameters()] + [v.grad for v in values if v.requires_grad]
        buffers = list(moved.buffers())
        for t in (*outputs, *gradients, *buffers):
            assert t.device.type == device
        results.append([t.detach().cpu() for t in (*outputs, *gradients, *buffers)])
    assert len(results[0]) == len(results[1])
    tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-4, "atol": 1e-5}
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, **tolerance)


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


SIZES = {1: (12,), 2: (9, 10), 3: (5, 6, 7)}
OPTIONS = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "dilation": 2, "groups": 2},
    {"kernel_size": 1, "bias": False},
]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_convolution(kind, dimensions, options):
    torch.manual_seed(0)
    module = getattr(nn, f"{kind}{dimensions}d")(4, 6, **options)
    compare(module, drawn(2, 4, *SIZES[dimensions]))
    compare(module, drawn(4, *SIZES[dimensions]))  # without a batch


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_convolution_with_padding_by_name(padding):
    torch.manual_seed(0)
    compare(nn.Conv2d(4, 6, 3, padding=padding), drawn(2, 4, 8, 8))
    compare(nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), drawn(2, 4, 8, 8))


def test_convolution_of_channels_last_and_half_tensors():
    torch.manual_seed(0)
    module = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    x = drawn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    compare(module, x)
    y = copy.deepcopy(module).to(DEVICE)(x.to(DEVICE))
    assert y.is_contiguous(memory_format=torch.channels_last) == module(x).is_contiguous(
        memory_format=torch.channels_last
    )
    half = copy.deepcopy(module).bfloat16()
    torch.testing.assert_close(half.to(DEVICE)(x.bfloat16().to(DEVICE)).cpu(), half.cpu()(x.bfloat16()))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "two ways"])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent(kind, bidirectional, layers):
    torch.manual_seed(0)
    module = getattr(nn, kind)(5, 7, num_layers=layers, bidirectional=bidirectional)
    compare(module, drawn(6, 3, 5), exactly=False)
    compare(module, drawn(6, 5), exactly=False)


def test_recurrent_forms():
    torch.manual_seed(0)
    compare(nn.LSTM(5, 7, proj_size=3), drawn(6, 3, 5), exactly=False)
    compare(nn.LSTM(5, 7, batch_first=True, bias=False), drawn(3, 6, 5), exactly=False)
    compare(nn.RNN(5, 7, nonlinearity="relu"), drawn(6, 3, 5), exactly=False)
    compare(nn.LSTMCell(5, 7), drawn(3, 5), exactly=False)
    compare(nn.GRUCell(5, 7), drawn(3, 5), exactly=False)
    module = nn.GRU(5, 7)
    lengths = torch.tensor([6, 4, 1])
    packed = nn.utils.rnn.pack_padded_sequence(drawn(6, 3, 5), lengths)
    expected, _ = nn.utils.rnn.pad_packed_sequence(module(packed)[0])
    actual, _ = nn.utils.rnn.pad_packed_sequence(copy.deepcopy(module).to(DEVICE)(packed.to(DEVICE))[0])
    torch.testing.assert_close(actual.cpu(), expected)


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)


MODULES = {
    "MultiheadAttention": (lambda: SelfAttention(16, 4, batch_first=True), (drawn(2, 5, 16),)),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
        (drawn(2, 5, 16),),
    ),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(16, 4, 32, 0.0), (drawn(5, 2, 16), drawn(6, 2, 16))),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (drawn(8, 4),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (drawn(3, 4, 5, 5),)),
    "BatchNorm2d, evaluation": (lambda: nn.BatchNorm2d(4).eval(), (drawn(3, 4, 5, 5),)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), (drawn(3, 4, 5, 5),)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (drawn(3, 4, 5),)),
    "LayerNorm": (lambda: nn.LayerNorm((4, 5)), (drawn(3, 4, 5),)),
    "LayerNorm without weight": (lambda: nn.LayerNorm(5, elementwise_affine=False), (drawn(3, 5),)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(5, bias=False), (drawn(3, 5),)),
    "RMSNorm": (lambda: nn.RMSNorm(5), (drawn(3, 5),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 4), (torch.tensor([[1, 2], [9, 9]]),)),
    "Embedding": (lambda: nn.Embedding(10, 4, padding_idx=2), (torch.tensor([[1, 2], [9, 9]]),)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (drawn(2, 3, 6, 6),)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (drawn(2, 3, 5, 6),)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (drawn(2, 3, 4, 4),)),
    "PReLU": (lambda: nn.PReLU(3), (drawn(2, 3, 4),)),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 5), (drawn(6, 3), drawn(6, 4))),
    "Linear chain": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4), nn.Softmax(-1)),
        (drawn(3, 4),),
    ),
}


@pytest.mark.parametrize(("make", "inputs"), MODULES.values(), ids=MODULES.keys())
def test_modules(make, inputs):
    torch.manual_seed(0)
    compare(make(), *inputs)


def test_the_encoders_fast_path():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = drawn(2, 5, 16)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)
        actual = copy.deepcopy(encoder).to(DEVICE)(x.to(DEVICE), src_key_padding_mask=mask.to(DEVICE))
    torch.testing.assert_close(actual.cpu(), expected)


BOOL_MASK = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) > 0.3
BOOL_MASK[..., 0] = True
ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "bool mask": {"attn_mask": BOOL_MASK},
    "float mask": {"attn_mask": drawn(2, 4, 6, 6)},
    "scale": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
    "grouped, causal": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("backend", [None, SDPBackend.MATH], ids=["chosen", "math"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION.keys())
def test_attention(options, dtype, backend):
    heads = 2 if options.get("enable_gqa") else 4
    host = [drawn(2, 4, 6, 8).to(dtype), drawn(2, heads, 6, 8).to(dtype), drawn(2, heads, 6, 8).to(dtype) + 1]
    results = []
    for device in ("cpu", DEVICE):
        query, key, value = (t.detach().to(device).requires_grad_() for t in host)
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        if "attn_mask" in moved and moved["attn_mask"].is_floating_point():
            moved["attn_mask"] = moved["attn_mask"].to(dtype)
        with sdpa_kernel(backend) if backend else contextlib.nullcontext():
            out = F.scaled_dot_product_attention(query, key, value, **moved)
        out.square().sum().backward()
        results.append([out.detach(), query.grad, key.grad, value.grad])
    for want, got in zip(*results, strict=True):
        assert torch.equal(got.cpu(), want)


def test_attention_with_dropout_and_a_mask_that_needs_a_gradient():
    query = drawn(2, 4, 6, 8).to(DEVICE).requires_grad_()
    mask = drawn(2, 4, 6, 6).to(DEVICE).requires_grad_()
    torch.manual_seed(0)
    first = F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=0.5)
    torch.manual_seed(0)
    assert torch.equal(F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=0.5), first)
    assert not torch.equal(F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=0.5), first)
    first.sum().backward()
    assert mask.grad.abs().sum() > 0
    assert query.grad.isfinite().all()


def test_attention_of_other_shapes():
    for shape in ((6, 8), (4, 6, 8), (2, 3, 4, 6, 8)):
        host = drawn(*shape)
        device = host.to(DEVICE)
        expected = F.scaled_dot_product_attention(host, host, host)
        assert torch.equal(F.scaled_dot_product_attention(device, device, device).cpu(), expected)
    query, key = drawn(2, 4, 1, 8), drawn(2, 4, 9, 8)  # one token against a cache
    expected = F.scaled_dot_product_attention(query, key, key)
    assert torch.equal(F.scaled_dot_product_attention(*(t.to(DEVICE) for t in (query, key, key))).cpu(), expected)


def test_state_dicts_cross_devices(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(DEVICE)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    here = torch.load(tmp_path / "state.pt")
    assert here["0.weight"].device == torch.device(DEVICE, 0)
    there = torch.load(tmp_path / "state.pt", map_location="cpu")
    assert torch.equal(there["0.weight"], module[0].weight.cpu())
    assert torch.load(tmp_path / "state.pt", map_location="kunlun:1")["0.weight"].device.index == 1
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("kunlun:1")
    other.load_state_dict(here)
    assert torch.equal(other[0].weight.cpu(), module[0].weight.cpu())
    on_meta = nn.Linear(3, 4, device="meta").to_empty(device=DEVICE)
    assert on_meta.weight.device.type == DEVICE
