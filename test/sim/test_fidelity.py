"""What a chip may lack: operators, dtypes, speed. Results stay right, and whoever may not compute elsewhere is told."""

import time

import pytest
import torch

MIB = 1 << 20

REDUCED = """
import torch, torch_xpu_kunlun as extension
counts = extension.operator_statistics
def check(result, expected):
    assert result.device.type == "kunlun" and torch.equal(result.cpu(), expected), (result, expected)
"""


def test_an_operator_that_the_chip_lacks_is_computed_in_stream_order(check_python):
    check_python(
        REDUCED
        + """
a = torch.arange(6.0, device="kunlun").view(2, 3)
check(torch.mm(a, a.t()), torch.mm(a.cpu(), a.cpu().t()))
check((a + a).softmax(1), (a.cpu() * 2).softmax(1))
assert counts()["host_call_ops"] == {"aten::mm.out": 1, "aten::_softmax.out": 1}, counts()
""",
        KUNLUN_SIM_OPERATORS="without=aten::mm,aten::_softmax.out",
        KUNLUN_SIM_HOST_ADDRESSABLE="1",
    )


def test_it_is_refused_where_nobody_else_may_compute(check_python):
    check_python(
        REDUCED
        + """
a = torch.arange(6.0, device="kunlun").view(2, 3)
try:
    torch.mm(a, a.t())
except extension.UnsupportedOperatorError as error:
    for part in ("'aten::mm.out'", "Float[2, 3]", "KUNLUN_FALLBACK", "set_fallback_policy"):
        assert part in str(error), (part, error)
else:
    raise AssertionError("not refused")
check(a + a, a.cpu() * 2)  # the device goes on
extension.set_fallback_policy("allow")
check(torch.mm(a, a.t()), torch.mm(a.cpu(), a.cpu().t()))
assert counts()["fallback_ops"] == {"aten::mm.out": 1}, counts()
""",
        KUNLUN_SIM_OPERATORS="without=aten::mm",
        KUNLUN_SIM_HOST_ADDRESSABLE="0",
        KUNLUN_FALLBACK="error",
    )


def test_a_chip_with_few_operators(check_python):
    check_python(
        REDUCED
        + """
torch.manual_seed(0)
layer = torch.nn.Linear(4, 3).to("kunlun")
x = torch.randn(2, 4).to("kunlun")
loss = layer(x).relu().sum()
loss.backward()
copy = torch.nn.Linear(4, 3)
copy.load_state_dict(layer.state_dict())
copy(x.cpu()).relu().sum().backward()
assert torch.allclose(layer.weight.grad.cpu(), copy.weight.grad)
statistics = counts()
assert statistics["launcher"] > 0 and statistics["fallback"] > 0, statistics
""",
        KUNLUN_SIM_OPERATORS="only=aten::relu,aten::copy_,aten::fill_.Scalar,aten::clamp_min.out",
        KUNLUN_SIM_HOST_ADDRESSABLE="0",
        KUNLUN_FALLBACK="allow",
    )


def test_dtypes_that_the_chip_lacks(check_python):
    check_python(
        REDUCED
        + """
properties = torch.kunlun.get_device_properties()
assert not properties.has_fp64
single = torch.arange(6.0, device="kunlun")
check(single + single, single.cpu() * 2)
before = counts()["launcher"]
double = torch.arange(6.0, dtype=torch.float64).to("kunlun")
check(double + double, double.cpu() * 2)
pairs = torch.view_as_complex(single.view(3, 2))
check(pairs * pairs, pairs.cpu() * pairs.cpu())
assert counts()["launcher"] == before, counts()
assert set(counts()["host_call_ops"]) == {"aten::add.out", "aten::mul.out"}, counts()
""",
        KUNLUN_SIM_DTYPES="without=float64,complex64,complex128,float8_e5m2",
        KUNLUN_SIM_HOST_ADDRESSABLE="1",
    )


def test_a_lacking_dtype_is_named_where_nobody_else_may_compute(check_python):
    check_python(
        REDUCED
        + """
double = torch.arange(6.0, dtype=torch.float64).to("kunlun")
try:
    double + double
except extension.UnsupportedOperatorError as error:
    assert "'aten::add.out'" in str(error) and "Double[6]" in str(error), error
else:
    raise AssertionError("not refused")
assert (torch.ones(3, device="kunlun") + 1).tolist() == [2, 2, 2]
""",
        KUNLUN_SIM_DTYPES="without=float64",
        KUNLUN_SIM_HOST_ADDRESSABLE="0",
        KUNLUN_FALLBACK="error",
    )


# A copy takes at least as long as the limit says; how much longer depends on the machine.
@pytest.mark.parametrize("way", ["to the device", "to the host", "without waiting"])
def test_slow_copies(faults, way):
    host = torch.ones(MIB // 4).pin_memory()
    device = torch.ones(MIB // 4, device="kunlun")
    torch.kunlun.synchronize()
    faults.set_copy_speed(10 * MIB)
    begin = time.monotonic()
    cpu = time.process_time()
    if way == "to the device":
        device.copy_(host)
    elif way == "to the host":
        host.copy_(device)
    else:
        host.copy_(device, non_blocking=True)
    torch.kunlun.synchronize()
    assert time.monotonic() - begin >= 0.1
    assert time.process_time() - cpu < 0.09  # asleep on the way
    faults.set_copy_speed(None)
    assert torch.equal(host, device.cpu())


def test_slow_copies_share_the_way_and_are_seen_by_events(faults):
    streams = [torch.kunlun.Stream(), torch.kunlun.Stream()]
    device = [torch.ones(MIB // 8, device="kunlun") for _ in streams]
    host = [torch.zeros(MIB // 8).pin_memory() for _ in streams]
    torch.kunlun.synchronize()
    faults.set_copy_speed(10 * MIB)
    first, last = (torch.Event("kunlun", enable_timing=True) for _ in range(2))
    first.record()
    for stream, source, target in zip(streams, device, host, strict=True):
        stream.wait_event(first)
        with torch.kunlun.stream(stream):
            target.copy_(source, non_blocking=True)
        torch.kunlun.current_stream().wait_stream(stream)
    last.record()
    last.synchronize()
    assert first.elapsed_time(last) >= 99
    assert all(each.min().item() == 1 for each in host)


def test_a_slow_link_between_devices(faults):
    a = torch.arange(MIB // 4, dtype=torch.float32, device="kunlun:0")
    torch.kunlun.synchronize(0)
    faults.set_link_speed(10 * MIB)
    begin = time.monotonic()
    b = a.to("kunlun:1")
    torch.kunlun.synchronize(1)
    assert time.monotonic() - begin >= 0.1
    begin = time.monotonic()
    c = a.clone()  # inside a device there is no link
    assert torch.equal(a.cpu(), b.cpu())
    assert torch.equal(c.cpu(), b.cpu())


def test_speeds_from_the_environment(check_python):
    check_python(
        """
        import time, torch
        a = torch.ones(1 << 18).to("kunlun:0")
        begin = time.monotonic()
        a.to("kunlun:1").cpu()
        assert time.monotonic() - begin >= 0.2
        torch.kunlun.reset_device(0)
        """,
        KUNLUN_SIM_COPY_SPEED="10M",
        KUNLUN_SIM_LINK_SPEED="10M",
    )


@pytest.mark.parametrize("speed", [0, -5])
def test_a_speed_that_makes_no_sense(faults, speed):
    with pytest.raises(ValueError, match="at least one byte a second"):
        faults.set_copy_speed(speed)
    with pytest.raises(ValueError, match="at least one byte a second"):
        faults.set_link_speed(speed)
