"""Any operator with a CPU kernel: aliasing, resizing, lists, warnings.

They run in the boxed tier, on the device's own memory; on a chip whose memory the host cannot reach they are computed
on copies, and all of this holds there too.
"""

import warnings

import pytest
import torch
from common_move import DEVICE

import torch_xpu_kunlun as extension

TIER = "boxed" if torch.kunlun.get_device_properties(0).is_host_addressable else "fallback"


@pytest.fixture(autouse=True)
def counted():
    """Every test really goes through the tier, and nothing is copied where that is not needed."""
    extension.reset_operator_statistics()
    yield
    statistics = extension.operator_statistics()
    assert statistics[TIER] > 0
    assert statistics[TIER] == sum(statistics[f"{TIER}_ops"].values())
    assert statistics["boxed" if TIER == "fallback" else "fallback"] == 0


def arange(*shape, **options):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32, device=DEVICE, **options).view(shape)


def test_shapes_that_depend_on_the_data():
    x = torch.tensor([[3, 0, 3], [0, 5, 0]], device=DEVICE)
    assert torch.nonzero(x).tolist() == [[0, 0], [0, 2], [1, 1]]
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    assert (values.tolist(), counts.tolist()) == ([0, 3, 5], [3, 2, 1])
    assert torch.equal(values[inverse], x)
    assert x[x > 0].tolist() == [3, 3, 5]
    assert torch.masked_select(x, x == 0).numel() == 3
    assert torch.bincount(x.flatten()).tolist() == [3, 0, 0, 2, 0, 1]
    assert torch.repeat_interleave(x[0], torch.tensor([2, 0, 1], device=DEVICE)).tolist() == [3, 3, 3]
    assert torch.nonzero(torch.zeros(0, device=DEVICE)).shape == (0, 1)
    for result in (values, inverse, torch.nonzero(x)):
        assert result.device == x.device


def test_results_are_ordinary_device_memory():
    before = torch.kunlun.memory_allocated()
    x = arange(1 << 16)
    result = torch.nonzero(x >= 0)
    assert result.untyped_storage().device == torch.device(DEVICE, 0)
    assert torch.kunlun.memory_allocated() - before >= (1 << 16) * 12
    result.resize_(1 << 17, 1).zero_()
    assert (result + 1).sum().item() == 1 << 17
    del result, x
    torch.kunlun.synchronize()
    assert torch.kunlun.memory_allocated() == before


def test_returned_views_share_the_storage():
    library = torch.library.Library("kunlun_boxed", "DEF")
    library.define("row(Tensor(a) self, int index) -> Tensor(a)")
    library.define("halves(Tensor(a) self) -> (Tensor(a), Tensor(a))")
    library.define("same(Tensor(a!) self) -> Tensor(a!)")
    library.impl("row", lambda self, index: self[index], "CPU")
    library.impl("halves", lambda self: (self[:, :1], self[:, 1:]), "CPU")
    library.impl("same", lambda self: self.add_(1), "CPU")
    x = arange(3, 4)
    row = torch.ops.kunlun_boxed.row(x, 1)
    assert row.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    row.fill_(-1)
    assert x[1].tolist() == [-1] * 4
    left, right = torch.ops.kunlun_boxed.halves(x)
    left.zero_()
    right.fill_(7)
    assert x.tolist() == [[0, 7, 7, 7]] * 3
    assert torch.ops.kunlun_boxed.same(x) is x
    assert x.tolist() == [[1, 8, 8, 8]] * 3


def test_out_is_resized_and_its_memory_moves():
    x = arange(1000)
    out = torch.empty(0, dtype=torch.int64, device=DEVICE)
    storage = out.untyped_storage()
    assert torch.nonzero(x, out=out) is out
    assert out.shape == (999, 1)
    assert out.untyped_storage().data_ptr() == storage.data_ptr() != 0
    assert storage.nbytes() >= 999 * 8
    assert out.sum().item() == 999 * 1000 // 2
    view = torch.zeros(4, 4, device=DEVICE)
    values, indices = torch.kthvalue(
        arange(4, 4), 2, out=(view[:, 1], torch.empty(4, dtype=torch.int64, device=DEVICE))
    )
    assert view.tolist() == [[0, v, 0, 0] for v in (1, 5, 9, 13)]
    assert values.data_ptr() == view[:, 1].data_ptr()
    assert indices.tolist() == [1] * 4
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.kthvalue(arange(4, 4), 2, out=(torch.empty(3, device=DEVICE), indices))


def test_in_place_on_a_view():
    base = arange(4, 6)
    view = base.t()[1::2, :2]
    expected = base.cpu()
    view.put_(torch.tensor([0, 3], device=DEVICE), torch.tensor([-1.0, -2.0], device=DEVICE))
    expected.t()[1::2, :2].put_(torch.tensor([0, 3]), torch.tensor([-1.0, -2.0]))
    assert torch.equal(base.cpu(), expected)
    view.renorm_(2, 0, 1.0)
    expected.t()[1::2, :2].renorm_(2, 0, 1.0)
    assert torch.equal(base.cpu(), expected)


def test_arguments_that_are_one_tensor_or_overlap_stay_so():
    x = arange(4) + 1
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        x.put_(torch.tensor([0], device=DEVICE), x[3:])  # the kernel sees that source and target are one storage
    library = torch.library.Library("kunlun_alias", "DEF")
    library.define("aliased(Tensor a, Tensor b, Tensor c) -> bool")
    library.impl(
        "aliased", lambda a, b, c: a is b and c.untyped_storage().data_ptr() == a.untyped_storage().data_ptr(), "CPU"
    )
    assert torch.ops.kunlun_alias.aliased(x, x, x[1:])
    assert not torch.ops.kunlun_alias.aliased(x, x, x.clone())


def test_lists_of_tensors():
    tensors = [arange(n + 1) for n in range(4)]
    assert [t.tolist() for t in torch._foreach_add(tensors, 1)] == [(t + 1).tolist() for t in tensors]
    torch._foreach_mul_(tensors, tensors)
    assert tensors[3].tolist() == [0, 1, 4, 9]
    norms = torch._foreach_norm(tensors)
    assert norms[2].item() == torch.tensor([0.0, 1, 4]).norm().item()
    assert torch.block_diag(*tensors[:2]).shape == (2, 3)
    assert torch.cartesian_prod(tensors[1], tensors[1]).shape == (4, 2)
    library = torch.library.Library("kunlun_lists", "DEF")
    library.define("sums(Tensor[] all, Tensor?[] some) -> Tensor[]")
    library.impl("sums", lambda all, some: [t.sum() for t in all] + [t for t in some if t is not None], "CPU")
    total, given = torch.ops.kunlun_lists.sums([tensors[3]], [None, tensors[1]])
    assert total.item() == 14
    assert given.data_ptr() == tensors[1].data_ptr()
    assert torch.unique(given).tolist() == [0, 1]


def test_generators():
    probabilities = torch.full((64,), 0.5, device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(7)
    first = torch.poisson(probabilities * 9, generator).tolist()
    assert torch.poisson(probabilities * 9, generator).tolist() != first
    assert torch.poisson(probabilities * 9, generator.manual_seed(7)).tolist() == first
    torch.manual_seed(7)
    default = torch.multinomial(probabilities, 8).tolist()
    torch.manual_seed(7)
    assert torch.multinomial(probabilities, 8).tolist() == default
    with pytest.raises(RuntimeError, match=r"Expected a 'kunlun:0' generator device but found 'cpu'"):
        torch.poisson(probabilities, torch.Generator("cpu"))


def test_conjugate_and_negative_bits():
    host = torch.tensor([[1 + 2j, 3 - 1j], [2j, 1 + 1j]])
    device = host.to(DEVICE)
    for view in (torch.conj, torch._neg_view, torch.adjoint, lambda t: torch._neg_view(t.mT.conj())):
        assert torch.equal(torch.linalg.inv(view(device)).cpu(), torch.linalg.inv(view(host)))
        assert torch.equal(torch.nonzero(view(device)).cpu(), torch.nonzero(view(host)))
        assert torch.equal(torch.fft.fft(view(device)).cpu(), torch.fft.fft(view(host)))
    assert torch.equal(torch.kthvalue(device.conj().imag, 1).values.cpu(), torch.kthvalue(host.conj().imag, 1).values)


@pytest.mark.usefixtures("warn_always")
def test_warnings_reach_the_caller_as_python_warnings():
    x = arange(4, 4)
    with pytest.warns(UserWarning, match="non-contiguous"):
        torch.searchsorted(x.t()[0], x.t()[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="was resized"):
            torch.kthvalue(x, 1, out=(torch.empty(3, device=DEVICE), torch.empty(3, dtype=torch.int64, device=DEVICE)))
        assert torch.unique(x).numel() == 16


def test_kernels_see_whether_a_gradient_is_needed():
    library = torch.library.Library("kunlun_modes", "DEF")
    library.define("modes(Tensor self) -> bool[]")
    library.impl(
        "modes", lambda self: [self.requires_grad, torch.is_grad_enabled(), torch.is_inference_mode_enabled()], "CPU"
    )
    x = arange(3)
    (x + x).sum().item()  # the chip's thread has run a launched kernel before
    modes = torch.ops.kunlun_modes.modes
    assert modes(x) == [False, True, False]
    assert modes(x.requires_grad_()) == [True, True, False]
    with torch.no_grad():
        assert modes(x) == [False, False, False]
    with torch.inference_mode():
        assert modes(x)[1:] == [False, True]
    assert modes(x * 2) == [True, True, False]


def test_exceptions_of_custom_operators_keep_their_type():
    library = torch.library.Library("kunlun_raise", "DEF")
    library.define("fails(Tensor self, str kind) -> Tensor")

    def fails(self, kind):
        raise {"key": KeyError("no such key"), "zero": ZeroDivisionError("by zero")}[kind]

    library.impl("fails", fails, "CPU")
    with pytest.raises(KeyError, match="no such key"):
        torch.ops.kunlun_raise.fails(arange(3), "key")
    with pytest.raises(ZeroDivisionError, match="by zero"):
        torch.ops.kunlun_raise.fails(arange(3), "zero")
    assert torch.unique(arange(3)).numel() == 3


def test_the_order_with_launched_work():
    x = torch.zeros(1 << 15, device=DEVICE)
    for _ in range(100):
        x += 1
    assert torch.unique(x).tolist() == [100]
    side = torch.kunlun.Stream()
    with torch.kunlun.stream(side):
        y = torch.zeros(1 << 15, device=DEVICE)
        for _ in range(100):
            y += 1
        assert torch.unique(y).tolist() == [100]


ROUTED = """
import torch, torch_xpu_kunlun as extension
x = torch.ones(4, device="kunlun")
"""


def test_a_launched_operator_can_be_routed_here(check_python, counted):
    torch.unique(arange(1))  # for the fixture
    check_python(
        ROUTED
        + """
extension._C._route_to_boxed_tier("aten::add.Tensor")
extension.reset_operator_statistics()
assert (x + x).tolist() == [2] * 4
tier = "boxed" if torch.kunlun.get_device_properties().is_host_addressable else "fallback"
assert extension.operator_statistics()[f"{tier}_ops"] == {"aten::add.Tensor": 1}
y = torch.ones(3, 1, requires_grad=True, device="kunlun")
(y + x).sum().backward()
assert y.grad.tolist() == [[4]] * 3
try:
    extension._C._route_to_boxed_tier("aten::no_such")
except ValueError as error:
    assert "aten::no_such" in str(error)
else:
    raise AssertionError("not raised")
"""
    )


def test_small_calls_one_after_the_other_see_their_own_arguments(check_python):
    torch.unique(arange(1))  # for the fixture
    # The tensors that the CPU's kernel gets are kept for the next call, whose arguments differ in everything.
    check_python(
        ROUTED
        + """
extension._C._route_to_boxed_tier("aten::sub.Tensor")
base = torch.arange(24, dtype=torch.float64)
memory = base.to("kunlun")
pairs = lambda t: [
    (t, t), (t[2:4], t[3:5]), (t.view(4, 6).t(), t.view(6, 4)), (t[::2].int(), t[1::2].to(torch.uint8)),
    (t[3], t), (t[:0], t[:0]), (t[5], torch.tensor(2.5)), (t[:3].half(), torch.tensor(7)),
    (t.view(2, 12)[:, :1], t[:5]),
    (torch.complex(t, t).conj(), t), (torch.complex(t, t).conj().imag, t), (t.to(torch.bool)[:2].int(), 3), (t, 1.5),
]
for _ in range(3):
    for here, there in zip(pairs(memory), pairs(base)):
        result, expected = torch.sub(*here), torch.sub(*there)
        assert (result.dtype, result.shape, result.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert torch.equal(result.cpu(), expected), there
        result.fill_(9)  # results are nobody's but their holder's
assert torch.equal(memory.cpu(), base)
try:
    memory - torch.ones(2)
except RuntimeError as error:
    assert "same device" in str(error), error
else:
    raise AssertionError("not refused")
try:
    memory - memory[:5]
except RuntimeError as error:
    assert "must match" in str(error), error
else:
    raise AssertionError("not refused")
assert (memory - memory).count_nonzero().item() == 0
"""
    )


# What moves or makes storages is no kernel; layer_norm's kernel on the chip expects outputs of known shape.
NOT_ROUTED = {
    "_copy_from", "_copy_from_and_resize", "_efficientzerotensor", "_has_compatible_shallow_copy_type",
    "_local_scalar_dense", "copy_", "empty", "empty_strided", "is_set_to", "native_layer_norm",
    "native_layer_norm_backward", "record_stream", "resize_", "set_",
}  # fmt: skip


@pytest.mark.full
def test_the_whole_test_bed_through_the_boxed_tier(check_python, pytestconfig):
    torch.unique(arange(1))  # for the fixture
    folder = pytestconfig.rootpath / "test"
    check_python(
        ROUTED
        + f"""
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {str(folder)!r})
from common_op_db import OPS, compare_with_cpu
for name in torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"):
    launched = name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    base, _, overload = name.removeprefix("aten::").partition(".")
    if launched and not overload.endswith("out") and base not in {NOT_ROUTED}:
        extension._C._route_to_boxed_tier(name)
extension.reset_operator_statistics()
failed = {{}}
for op in OPS:
    try:
        compare_with_cpu(op, op.sample_inputs("cpu", torch.float32))
    except Exception as error:
        failed[op.formatted_name] = str(error)[:500]
assert not failed, failed
statistics = extension.operator_statistics()
assert statistics["boxed"] > 4 * statistics["launcher"], statistics
"""
    )


def test_windows_that_torch_makes_by_device():
    for arguments in ((8,), (8, False), (8, True, 5.0)):
        expected = torch.kaiser_window(*arguments)
        actual = torch.kaiser_window(*arguments, device="kunlun")
        assert actual.device.type == "kunlun"
        assert torch.equal(actual.cpu(), expected)


def test_memory_set_aside_for_a_result_is_used_once():
    # The kernel allocates several blocks of its input's size; none of them may be another.
    x = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    image = torch.arange(144, dtype=torch.float32).reshape(1, 1, 12, 12)
    weight = torch.arange(9, dtype=torch.float32).reshape(1, 1, 3, 3)
    for _ in range(20):
        values, indices = torch.kthvalue(x.to("kunlun"), 3)
        assert torch.equal(values.cpu(), torch.kthvalue(x, 3)[0])
        moved = torch.conv_transpose2d(image.to("kunlun"), weight.to("kunlun"))
        assert torch.equal(moved.cpu(), torch.conv_transpose2d(image, weight))
        assert indices.shape == (8,)


def test_mode_into_given_tensors():
    # torch's composite kernel serves only the devices that it names.
    x = torch.tensor([[1, 2, 2], [3, 3, 1]])
    out = torch.empty(0, dtype=torch.int64, device=DEVICE), torch.empty(2, dtype=torch.int64, device=DEVICE)
    assert torch.mode(x.to(DEVICE), out=out)[0] is out[0]
    for given, expected in zip(out, torch.mode(x), strict=True):
        assert torch.equal(given.cpu(), expected)
