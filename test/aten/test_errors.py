"""Bad input: torch's own exception with a clear text; afterwards the same process and device compute right."""

import pytest
import torch
import torch.nn.functional as F
from common_move import DEVICE
from common_op_db import move, name_of
from torch.testing._internal.common_methods_invocations import op_db

TWO_DEVICES = r"Expected all tensors to be on the same device, but found at least two devices, kunlun:0 and "


@pytest.fixture(autouse=True)
def computes_afterwards():
    yield
    x = torch.arange(6, device=DEVICE, dtype=torch.float32).view(2, 3)
    assert (x @ x.T).tolist() == [[5, 14], [14, 50]]
    assert x.cumsum(1).tolist() == [[0, 1, 3], [3, 7, 12]]
    assert torch.unique(x > 2).tolist() == [False, True]


def make(device=DEVICE, *shape, **options):
    return torch.ones(shape or (4, 4), device=device, **options)


def indices(device=DEVICE, *values):
    return torch.tensor(values or (0, 1), device=device)


# ---- tensors on different devices: `a` is on kunlun:0, `b` elsewhere ----

MIXED = {
    "add": lambda a, b: a + b,
    "add swapped": lambda a, b: b + a,
    "add in place": lambda a, b: a.add_(b),
    "add to 0-dim": lambda a, b: a[0, 0] + b,
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "mm": lambda a, b: a @ b,
    "mm swapped": lambda a, b: b @ a,
    "linear": F.linear,
    "linear swapped": lambda a, b: F.linear(b, a),
    "cat": lambda a, b: torch.cat([a, b]),
    "cat swapped": lambda a, b: torch.cat([b, a]),
    "stack": lambda a, b: torch.stack([a, b]),
    "index_select": lambda a, b: a.index_select(0, b[0].long()),
    "index_select swapped": lambda a, b: b.index_select(0, a[0].long()),
    "gather": lambda a, b: a.gather(0, b.long()),
    "scatter": lambda a, b: a.scatter(0, b.long(), a),
    "index_put": lambda a, b: a.index_put_((a[0].long(),), b),
    "embedding": lambda a, b: F.embedding(b.long(), a),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "where, the condition": lambda a, b: torch.where(b > 0, a, a),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1.0),
    "layer_norm": lambda a, b: F.layer_norm(a, (4,), b[0], b[0]),
    "conv1d": lambda a, b: F.conv1d(a[None], b[None, :, :].expand(1, 4, 4)),
    "softmax backward": lambda a, b: torch.ops.aten._softmax_backward_data(a, b, 1, torch.float32),
    "boxed: cdist": torch.cdist,
    "boxed: searchsorted": lambda a, b: torch.searchsorted(a[0], b[0]),
    "boxed: out": lambda a, b: torch.nonzero(a, out=b.long()),
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
    "out": lambda a, b: torch.sin(a, out=b),
}


@pytest.mark.parametrize("other", ["cpu", "kunlun:1"])
@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED.keys())
def test_tensors_on_different_devices(call, other):
    with pytest.raises(RuntimeError, match="device") as caught:
        call(make(), make(other))
    text = str(caught.value)
    assert "kunlun:0" in text
    assert other in text


def test_the_text_about_devices():
    with pytest.raises(RuntimeError, match=TWO_DEVICES + "cpu!"):
        make() + make("cpu")
    with pytest.raises(RuntimeError, match=TWO_DEVICES + "kunlun:1!"):
        make() @ make("kunlun:1")
    with pytest.raises(RuntimeError, match=r"in a call of aten::_cdist_forward; only 0-dim CPU tensors may be mixed"):
        torch.cdist(make(), make("cpu"))


def test_0_dim_cpu_tensors_mix_and_0_dim_tensors_of_another_device_do_not():
    a = make()
    assert (a + torch.tensor(2.0)).tolist() == [[3.0] * 4] * 4
    assert torch.where(a > 0, torch.tensor(5.0), a).tolist() == [[5.0] * 4] * 4
    assert torch.searchsorted(torch.arange(3.0, device=DEVICE), torch.tensor(1.5)).item() == 2
    assert torch.bucketize(torch.tensor(1.5), torch.arange(3.0, device=DEVICE)).item() == 2
    scalar = torch.tensor(2.0)
    result = a + scalar
    scalar.fill_(100)  # its value was taken at the call
    assert result.tolist() == [[3.0] * 4] * 4
    with pytest.raises(RuntimeError, match=TWO_DEVICES + "kunlun:1!"):
        a + torch.tensor(1.0, device="kunlun:1")


def test_the_parts_of_a_sparse_tensor():
    with pytest.raises(RuntimeError, match=TWO_DEVICES + "kunlun:1! .indices and values of a sparse tensor"):
        torch.ops.aten._sparse_coo_tensor_unsafe(indices()[None], make("kunlun:1")[0, :2], (4,))


def test_indices():
    assert make()[indices("cpu")].shape == (2, 4)  # as on CUDA, indices may lie on the host
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        make("cpu")[indices()]
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        make()[indices("kunlun:1")]


# ---- shapes and dtypes: raised at the call ----

AT_THE_CALL = {
    "broadcast": (lambda a: a + make(DEVICE, 3, 3), RuntimeError, r"size of tensor a \(4\) must match"),
    "in place": (lambda a: a[0].clone().add_(a), RuntimeError, "doesn't match the broadcast shape"),
    "mm shapes": (lambda a: a @ make(DEVICE, 3, 3), RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
    "mm dtypes": (lambda a: a @ a.double(), RuntimeError, "same dtype, but got: float != double"),
    "bmm dtypes": (lambda a: torch.bmm(a[None], a[None].half()), RuntimeError, "same dtype"),
    "addmm dtypes": (lambda a: torch.addmm(a, a, a.double()), RuntimeError, "same dtype"),
    "linear dtypes": (lambda a: F.linear(a, a.bfloat16()), RuntimeError, "same dtype"),
    "layer_norm dtypes": (lambda a: F.layer_norm(a, (4,), a[0].double()), RuntimeError, "dtype of the input"),
    "cross dtypes": (lambda a: torch.linalg.cross(a[:, :3], a[:, :3].double()), RuntimeError, "same dtype"),
    "cat shapes": (lambda a: torch.cat([a, make(DEVICE, 3, 3)]), RuntimeError, "Sizes of tensors must match"),
    "dimension": (lambda a: a.sum(7), IndexError, "Dimension out of range"),
    "softmax dimension": (lambda a: torch.softmax(a, 5), IndexError, "Dimension out of range"),
    "mean of integers": (lambda a: a.long().mean(), RuntimeError, "Input dtype must be either a floating"),
    "integer division in place": (lambda a: a.long().div_(2), RuntimeError, "can't be cast to the desired output type"),
    "view": (lambda a: a.view(3, 3), RuntimeError, "invalid for input of size 16"),
    "too many indices": (lambda a: a[(indices(),) * 3], IndexError, "too many indices"),
    "float indices": (lambda a: a[a[0]], IndexError, "tensors used as indices must be long, int, byte or bool"),
    "index_put dtypes": (lambda a: a.index_put_((indices(),), a[:2].long()), RuntimeError, "dtypes match"),
    "index_put shapes": (lambda a: a.index_put_((indices(),), a[:3]), RuntimeError, "cannot be broadcast"),
    "embedding of floats": (lambda a: F.embedding(a, a), RuntimeError, "scalar types: Long, Int"),
    "masked_fill mask": (lambda a: a.masked_fill_(a, 1), RuntimeError, "boolean masks"),
    "where condition": (lambda a: torch.where(a, a, a), RuntimeError, "boolean tensor"),
    "item of many": (lambda a: a.item(), RuntimeError, "16 elements cannot be converted to Scalar"),
    "copy of another shape": (lambda a: a.copy_(make(DEVICE, 3, 3)), RuntimeError, "broadcast shape"),
    "copy from meta": (lambda a: a.copy_(make("meta")), NotImplementedError, "no data"),
    "out dtype": (lambda a: torch.add(a, a, out=a.long()), RuntimeError, "can't be cast to the desired output"),
    "mm out dtype": (lambda a: torch.mm(a, a, out=a.double()), RuntimeError, "out tensor to have dtype float"),
    "mm out device": (lambda a: torch.mm(a, a, out=make("cpu")), RuntimeError, "out tensor to have device kunlun:0"),
    "boxed out dtype": (lambda a: torch.kthvalue(a, 1, out=(a.int()[0], indices())), RuntimeError, "same type"),
    "out that overlaps itself": (
        lambda a: torch.sin(a, out=a[:1].expand(4, 4)),
        RuntimeError,
        "single memory location",
    ),
    "random range": (lambda a: a.uniform_(2, 1), RuntimeError, "from=2"),
    "attention": (lambda a: F.scaled_dot_product_attention(a, a.double(), a), RuntimeError, "same dtype"),
}


@pytest.mark.parametrize(("call", "error", "text"), AT_THE_CALL.values(), ids=AT_THE_CALL.keys())
def test_raised_at_the_call(call, error, text):
    with pytest.raises(error, match=text):
        call(make())


def test_nothing_is_written_when_a_call_is_refused():
    a = make()
    with pytest.raises(RuntimeError):
        a.add_(make("cpu"))
    with pytest.raises(RuntimeError):
        torch.mm(a, a.double(), out=a)
    assert a.tolist() == [[1.0] * 4] * 4


# ---- what only the contents tell: raised at the latest at the next synchronisation, with the CPU's type ----

BY_CONTENT = {
    "aten::index_select": lambda a, i: F.embedding(i, a),
    "aten::gather": lambda a, i: a.gather(0, i.view(1, 2)),
    "aten::index.Tensor_out": lambda a, i: a[i],
    "aten::_index_put_impl_": lambda a, i: a.index_put_((i,), a[:2]),
    "aten::nll_loss_forward": lambda a, i: F.cross_entropy(a[:2], i),
    "aten::scatter": lambda a, i: a.scatter(0, i.view(1, 2), 1.0),
    "aten::index_add": lambda a, i: a.index_add(0, i, a[:2]),
}
OUT_OF_RANGE = (1, 9)


@pytest.mark.parametrize(("operator", "call"), BY_CONTENT.items(), ids=BY_CONTENT.keys())
def test_out_of_range_index(operator, call):
    with pytest.raises((IndexError, RuntimeError)) as on_cpu:
        call(make("cpu"), indices("cpu", *OUT_OF_RANGE))
    a, bad = make(), indices(DEVICE, *OUT_OF_RANGE)
    call(a, bad)  # launched; the chip finds the index
    with pytest.raises(on_cpu.type) as caught:
        torch.kunlun.synchronize()
    assert caught.type is on_cpu.type
    text = str(caught.value)
    assert str(on_cpu.value).splitlines()[0] in text
    assert operator in text
    assert "device kunlun:0, work item " in text
    torch.kunlun.synchronize()  # it was reported once


READS = {
    "item": lambda result: result.sum().item(),
    "to the host": lambda result: result.cpu(),
    "tolist": lambda result: result.tolist(),
    "print": repr,
    "a boxed operator": torch.unique,
    "stream": lambda result: torch.kunlun.current_stream().synchronize(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_where_an_asynchronous_error_is_raised(read):
    result = make()[indices(DEVICE, *OUT_OF_RANGE)]
    with pytest.raises(IndexError, match=r"index 9 is out of bounds.*aten::index\.Tensor_out"):
        read(result)


def test_a_division_by_zero():
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError \(aten::floor_divide.out"):
        indices() // torch.zeros(2, dtype=torch.int64, device=DEVICE)
        torch.kunlun.synchronize()


def test_a_later_launch_raises_or_the_synchronisation_does():
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        make()[indices(DEVICE, *OUT_OF_RANGE)]
        for _ in range(10_000):
            make()
        torch.kunlun.synchronize()


# Raised by the kernel although the contents of the arguments do not matter: late, but raised.
LATE = {"gather", "scatter", "scatter_add", "masked_fill", "multinomial", "nn.functional.gelu"}
WITH_ERRORS = [op for op in op_db if op.error_inputs_func is not None]


@pytest.mark.parametrize("op", WITH_ERRORS, ids=name_of)
def test_the_wrong_inputs_of_the_test_bed(op):
    """The same exception, with the same words, as on the CPU."""
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        try:
            value, args, kwargs = move(op, sample)
        except NotImplementedError:
            continue  # meta tensors stay where they are
        try:
            op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:  # compared below
            expected = error
        else:
            continue  # wrong on other devices only
        with pytest.raises(type(expected)) as caught:
            op(value, *args, **kwargs)
            if op.name in LATE:
                torch.kunlun.synchronize()
        assert type(caught.value) is type(expected)
        first_words = str(expected).splitlines()[0][:25]
        assert str(caught.value).startswith(first_words)


def test_the_boxed_tier_raises_at_the_call():
    with pytest.raises(IndexError, match="out of range"):
        make().take(indices(DEVICE, 99, 0))
    with pytest.raises(torch._C._LinAlgError, match="not positive-definite"):
        torch.linalg.cholesky(-make())
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(-indices())


def test_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4\.00 TiB|Tried to allocate 4096\.00 GiB"):
        torch.empty(1 << 42, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match=r"capacity of .* allocated by torch .* reserved"):
        make(DEVICE, 1 << 20, 1).expand(1 << 20, 1 << 20) * 2
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.cdist(make(DEVICE, 1 << 18, 2), make(DEVICE, 1 << 18, 2))  # boxed: the kernel allocates
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.repeat_interleave(make(DEVICE, 1 << 20), 1 << 20)


def test_launch_blocking_raises_at_the_call(check_python):
    printed = check_python(
        """
        import torch
        a = torch.ones(4, 4, device="kunlun")
        bad = torch.tensor([1, 9], device="kunlun")
        for call in (lambda: a[bad], lambda: a.gather(0, bad.view(1, 2)), lambda: a.take(bad + 99)):
            try:
                call()
            except (IndexError, RuntimeError) as error:
                print(type(error).__name__)
            print((a + 1).sum().item())
        """,
        KUNLUN_LAUNCH_BLOCKING="1",
    )
    assert printed.split() == ["IndexError", "32.0", "RuntimeError", "32.0", "IndexError", "32.0"]


@pytest.mark.parametrize("shape", [(), (10,), (1, 10), (5, 1), (3, 10)], ids=str)
def test_an_outer_product_in_place_does_not_grow_its_tensor(shape):
    messages = []
    for device in ("cpu", DEVICE):
        x = torch.ones(shape, device=device)
        with pytest.raises(RuntimeError) as caught:
            x.addr_(torch.ones(5, device=device), torch.ones(10, device=device))
        messages.append(str(caught.value))
        assert x.shape == shape
    assert messages[0] == messages[1]
