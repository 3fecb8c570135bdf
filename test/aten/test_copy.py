"""Copies: every dtype, layout and direction, within a device, between devices, between host and device."""

import pytest
import torch
from common_move import DEVICE, Mover

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip
NUMBERS = [dtype for dtype in DTYPES if not str(dtype).startswith("torch.float8")]


def sample(dtype=torch.float32, *shape):
    shape = shape or (3, 4)
    count = torch.Size(shape).numel()
    values = torch.arange(count).reshape(shape) % 100
    if dtype.is_complex:
        return torch.complex(values.float(), -values.float() - 1).to(dtype)
    return values.to(dtype)


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements, in order."""
    host = tensor.cpu().contiguous().resolve_conj().resolve_neg()
    return bytes(host.untyped_storage())[host.storage_offset() * host.element_size() :][: host.nbytes]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_there_and_back(dtype):
    host = sample(dtype)
    device = host.to(DEVICE)
    assert device.dtype is dtype
    assert device.device == torch.device(DEVICE, 0)
    assert raw(device) == raw(host)
    assert raw(device.clone()) == raw(host)
    assert raw(device.to("kunlun:1")) == raw(host)
    assert raw(device.t().contiguous()) == raw(host.t().contiguous())


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_conversion_is_the_cpus(source):
    host = sample(source)
    device = host.to(DEVICE)
    for target in DTYPES:
        if source.is_complex and not target.is_complex:
            continue  # the CPU warns, tested below
        try:
            expected = host.to(target)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                device.to(target).cpu()
            continue
        assert raw(device.to(target)) == raw(expected), target
        assert raw(host.to(DEVICE, target)) == raw(expected), target
        assert raw(device.to("cpu", target)) == raw(expected), target
        assert raw(device.to("kunlun:1", target)) == raw(expected), target


@pytest.mark.usefixtures("warn_always")
def test_complex_to_real_warns():
    with pytest.warns(UserWarning, match="Casting complex values to real discards the imaginary part"):
        real = sample(torch.complex64).to(DEVICE).to(torch.float32)
    assert real.tolist() == sample().tolist()


VIEWS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "offset": lambda t: t[1:, 1:, 2:],
    "steps": lambda t: t[::2, :, ::3],
    "flipped order": lambda t: t.permute(2, 0, 1),
    "one column": lambda t: t[:, :, 1],
    "expanded": lambda t: t[:, :1].expand(4, 5, 6),
    "diagonal": lambda t: t.diagonal(dim1=1, dim2=2),
    "overlapping windows": lambda t: t.unfold(2, 3, 1),
    "0-dim": lambda t: t[1, 2, 3],
    "empty": lambda t: t[:, 2:2],
    "channels last": lambda t: t.view(1, 4, 5, 6).contiguous(memory_format=torch.channels_last),
}
ROUTES = {
    "host to device": ("cpu", DEVICE),
    "device to host": (DEVICE, "cpu"),
    "within a device": (DEVICE, DEVICE),
    "between devices": (DEVICE, "kunlun:1"),
    "back between devices": ("kunlun:1", DEVICE),
}


def move(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """With storage, offset and strides."""
    return tensor if device == "cpu" else Mover(device)(tensor)


@pytest.mark.parametrize(("start", "end"), ROUTES.values(), ids=ROUTES.keys())
@pytest.mark.parametrize("target_view", VIEWS.keys())
@pytest.mark.parametrize("view", VIEWS.keys())
def test_from_any_view_into_any_view(view, target_view, start, end):
    source = VIEWS[view](sample(torch.float32, 4, 5, 6))
    target = VIEWS[target_view](torch.full((4, 5, 6), -1.0))
    if target_view in ("expanded", "overlapping windows") or source.shape != target.shape:
        target = torch.full((*source.shape, 2), -1.0)[..., 1]  # a view with gaps
        if target_view != "steps":
            target = target.contiguous()
    for dtype in (torch.float32, torch.float64):
        written = target.to(dtype, copy=True) if target.is_contiguous() else target.clone().to(dtype)
        expected = written.clone().copy_(source)
        actual = move(written, end).copy_(move(source, start))
        assert actual.device.type == torch.device(end).type
        assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize(("start", "end"), ROUTES.values(), ids=ROUTES.keys())
def test_nothing_beside_the_view_is_written(start, end):
    base = move(torch.zeros(6, 6), end)
    base[1:5:2, 2:4].copy_(move(torch.ones(2, 2), start))
    expected = torch.zeros(6, 6)
    expected[1:5:2, 2:4] = 1
    assert torch.equal(base.cpu(), expected)


@pytest.mark.parametrize(("start", "end"), ROUTES.values(), ids=ROUTES.keys())
def test_broadcast(start, end):
    target = move(torch.zeros(3, 4), end)
    target.copy_(move(torch.arange(4.0), start))
    assert target.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("count", [1, 4097, (1 << 20) + 3, (1 << 22) + 1])
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non-blocking"])
def test_sizes_and_host_memory(count, pinned, non_blocking):
    host = (torch.arange(count) % 251).to(torch.uint8)
    source = host.pin_memory() if pinned else host.clone()
    assert source.is_pinned() == pinned
    device = source.to(DEVICE, non_blocking=non_blocking)
    if not (pinned and non_blocking):
        source.zero_()  # the copy has been made
    back = torch.empty(count, dtype=torch.uint8, pin_memory=pinned)
    back.copy_(device, non_blocking=non_blocking)
    torch.kunlun.synchronize()
    assert torch.equal(back, host)


def test_pageable_memory_may_be_reused_at_once_even_when_non_blocking():
    device = torch.empty(1 << 20, dtype=torch.int32, device=DEVICE)
    host = torch.empty(1 << 20, dtype=torch.int32)
    for number in range(5):
        host.fill_(number)
        device.copy_(host, non_blocking=True)
        host.fill_(-1)
        assert device[:1].item() == number
        assert (device == number).all()


def test_pinned_memory_is_kept_until_the_stream_has_passed():
    device = torch.empty(1 << 20, dtype=torch.int32, device=DEVICE)
    for number in range(20):
        device.copy_(torch.full((1 << 20,), number, dtype=torch.int32).pin_memory(), non_blocking=True)
    assert (device == 19).all()


def test_views_with_pending_conjugate_and_negative():
    host = sample(torch.complex64)
    device = host.to(DEVICE)
    for view in (
        torch.conj,
        torch._neg_view,
        lambda t: t.conj().imag,
        lambda t: torch._neg_view(t.conj()),
    ):
        assert torch.equal(view(device).cpu(), view(host).resolve_conj().resolve_neg())
        assert torch.equal(view(device).clone().cpu(), view(host).clone())
        assert torch.equal(view(device).to("kunlun:1").cpu(), view(host))
        target = torch.empty(3, 4, dtype=view(host).dtype, device=DEVICE)
        assert torch.equal(target.copy_(view(device)).cpu(), view(host).resolve_conj().resolve_neg())
        assert torch.equal(target.copy_(view(host)).cpu(), view(host).resolve_conj().resolve_neg())
    into = torch.zeros(3, 4, dtype=torch.complex64, device=DEVICE)
    into.conj().copy_(device)
    assert torch.equal(into.cpu(), host.conj().resolve_conj())


def test_streams_and_devices_keep_their_order():
    side = torch.kunlun.Stream()
    with torch.kunlun.stream(side):
        x = torch.ones(1 << 16, device=DEVICE)
        for _ in range(50):
            x = x + 1
        other = x.to("kunlun:1")  # follows the side stream
        y = other * 2
    assert y.sum().item() == 102 * (1 << 16)
    other.zero_()
    x.copy_(other)
    side.synchronize()
    torch.kunlun.synchronize()
    assert x.sum().item() == 0


def test_the_layout_is_kept():
    host = sample(torch.float32, 2, 3, 4, 5)
    last = host.to(memory_format=torch.channels_last)
    assert last.to(DEVICE).stride() == last.stride()
    assert last.to(DEVICE).cpu().stride() == last.stride()
    assert host.to(DEVICE, memory_format=torch.channels_last).stride() == last.stride()
    assert host.to(DEVICE).to("kunlun:1", memory_format=torch.channels_last).stride() == last.stride()
    assert host.transpose(1, 3).to(DEVICE).stride() == host.transpose(1, 3).stride()


def test_what_is_not_copied():
    device = sample().to(DEVICE)
    assert device.to(DEVICE) is device
    assert device.to("kunlun:0", torch.float32) is device
    assert device.to(DEVICE, copy=True) is not device
    assert device.to("meta").device.type == "meta"
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
        torch.empty(3, device="meta").to(DEVICE)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(1, device=DEVICE).expand(3).copy_(torch.ones(3))


def test_a_copy_onto_itself_does_nothing():
    rows = torch.arange(4.0, device=DEVICE).expand(3, 4)
    rows.copy_(rows)
    rows[1:].copy_(rows[:-1])  # the same elements, since all rows are one
    assert torch.equal(rows.cpu(), torch.arange(4.0).expand(3, 4))


def test_modules_are_moved_in_place_and_stay_tied():
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weight = first.weight
    before = weight.detach().clone()
    model.to(DEVICE)
    assert model[0].weight is weight
    assert model[1].weight is weight
    model(torch.ones(1, 3, device=DEVICE)).sum().backward()
    optimizer.step()  # was made before the move
    assert not torch.equal(model[1].weight.cpu(), before)
    model.to("kunlun:1").cpu()
    assert model[0].weight is weight
    assert weight.device.type == "cpu"


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view, lambda t: torch._neg_view(t.conj())])
@pytest.mark.parametrize("start", ["cpu", DEVICE, "kunlun:1"])
@pytest.mark.parametrize("end", ["cpu", DEVICE])
def test_into_a_transposed_destination_with_pending_bits(view, start, end):
    """The order of the destination in memory is not the order of the block that crosses."""
    source = sample(torch.complex64)
    want = torch.zeros(4, 3, dtype=torch.complex64).t()
    view(want).copy_(source)
    got = torch.zeros(4, 3, dtype=torch.complex64, device=end).t()
    view(got).copy_(source.to(start))
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("write", [lambda t: t.fill_(3), lambda t: t.zero_()])
def test_filling_elements_that_share_memory(write):
    base = torch.ones(2, device=DEVICE)
    expanded = write(base[:1].expand(5))
    assert torch.equal(expanded.cpu(), write(torch.ones(1).expand(5)))
    assert base[1].item() == 1.0


def test_filling_from_a_tensor_is_a_copy_and_refuses_elements_that_share_memory():
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single"):
            torch.ones(1, device=device).expand(5).fill_(torch.tensor(2, device=device))


@pytest.mark.parametrize("start", ["cpu", DEVICE, "kunlun:1"])
@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_a_pending_negation_survives_a_conversion(start, shape):
    """torch's CPU kernel forgets it, so the expectation is spelt out."""
    ones = torch.ones(shape, dtype=torch.float16, device=start)
    target = torch.zeros(shape, device=DEVICE)
    target.copy_(torch._neg_view(ones))
    assert (target == -1).all()
    torch._neg_view(target).copy_(ones + 1)
    assert (target == -2).all()
