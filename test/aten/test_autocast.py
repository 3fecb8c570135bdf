"""Autocast: torch's own lists of operators, what they compute in, and that the casts are all there is to it."""

import pytest
import torch
import torch.nn.functional as F
from common_move import DEVICE
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils._pytree import tree_flatten, tree_map

HALVES = [torch.float16, torch.bfloat16]
NOT_HERE = {"cudnn_convolution", "cudnn_convolution_transpose"}  # CUDA's own


@pytest.fixture(scope="module")
def lists():
    torch.manual_seed(0)
    return AutocastTestLists(DEVICE)


def entries(lists, *names):
    for name in names:
        for entry in getattr(lists, name):
            if entry[0] not in NOT_HERE:
                yield entry[0], entry[1] if isinstance(entry[1], tuple) else entry[1:], entry[2:]


def cast(value, dtype):
    def one(leaf):
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return tree_map(one, value)


def find(name):
    for module in (torch, torch._C._nn, torch._C._linalg):
        if hasattr(module, name):
            return getattr(module, name)
    return getattr(torch.Tensor, name)


def check(name, args, kwargs, dtype, run_as):
    """Inside autocast the operator gives what it gives outside of it for arguments that were cast by hand."""
    function = find(name)
    with torch.autocast(DEVICE, dtype=dtype):
        result = function(*args, **kwargs)
        with torch.autocast(DEVICE, enabled=False):
            expected = function(*cast(args, run_as), **kwargs)
    for want, got in zip(tree_flatten(expected)[0], tree_flatten(result)[0], strict=True):
        if isinstance(want, torch.Tensor):
            assert want.dtype == got.dtype == run_as, name
            assert torch.equal(want, got), name
        else:
            assert want == got, name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_in_lower_precision(lists, dtype):
    seen = 0
    for name, args, rest in entries(lists, "torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16"):
        if name == "einsum":
            a = torch.randn(2, 3, 4, 5, device=DEVICE)
            check(name, ("bkhd,bqhd->bqkh", a, a), {}, dtype, dtype)
            continue
        check(name, args, rest[0] if rest and isinstance(rest[0], dict) else {}, dtype, dtype)
        seen += 1
    assert seen > 25


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_in_float32(lists, dtype):
    seen = 0
    for name, args, rest in entries(lists, "torch_fp32", "nn_fp32", "methods_fp32"):
        kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
        check(name, cast(args, dtype), kwargs, dtype, torch.float32)
        seen += 1
    assert seen > 50


def test_promoted_to_the_widest(lists):
    for name, args, _ in entries(lists, "torch_need_autocast_promote"):
        check(name, args, {}, torch.float16, torch.float32)


def test_promotion_that_torch_itself_does(lists):
    for name, args, rest in entries(lists, "torch_expect_builtin_promote"):
        with torch.autocast(DEVICE, dtype=torch.float16):
            result = find(name)(*args)
        assert not isinstance(result, torch.Tensor) or result.dtype == rest[0], name


def test_binary_cross_entropy_is_refused():
    x = torch.rand(4, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.float16):
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, x)
        with torch.autocast(DEVICE, enabled=False):
            F.binary_cross_entropy(x, x)
        assert F.binary_cross_entropy_with_logits(x, x).dtype == torch.float32


def test_nested_contexts_and_devices():
    a = torch.ones(4, 4, device=DEVICE)
    assert not torch.is_autocast_enabled(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert torch.get_autocast_dtype(DEVICE) is torch.bfloat16
        assert (a @ a).dtype is torch.bfloat16
        assert (a.cpu() @ a.cpu()).dtype is torch.float32  # the host's autocast is another one
        with torch.autocast(DEVICE, dtype=torch.float16):
            assert (a @ a).dtype is torch.float16
            with torch.autocast(DEVICE, enabled=False):
                assert (a @ a).dtype is torch.float32
        assert (a @ a).dtype is torch.bfloat16
        assert (a.double() @ a.double()).dtype is torch.float64  # only float32 is lowered
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype is torch.float32
    assert (a @ a).dtype is torch.float32
    with torch.kunlun.amp.autocast():
        assert (a @ a).dtype is torch.float16


def test_a_dtype_that_is_not_supported_is_refused():
    with pytest.warns(UserWarning, match="not supported"):
        context = torch.autocast(DEVICE, dtype=torch.int32)
    with context:
        assert (torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2, device=DEVICE)).dtype is torch.float32


def test_cast_weights_are_kept_for_the_context():
    x = torch.randn(4, 8, device=DEVICE)
    layer = torch.nn.Linear(8, 8, device=DEVICE)

    def copies(cache_enabled):
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            found = 0

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                self.found += function is torch.ops.aten._to_copy.default
                return function(*args, **(kwargs or {}))

        with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=cache_enabled), Count() as count:
            for _ in range(3):
                layer(x)
        return count.found

    assert copies(cache_enabled=True) == 3 + 2  # the input each time, weight and bias once
    assert copies(cache_enabled=False) == 3 * 3


def test_custom_functions():
    class Multiply(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=DEVICE)
        def forward(ctx, a, b):
            assert torch.is_autocast_enabled(DEVICE)
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type=DEVICE)
        def backward(ctx, grad):
            assert torch.is_autocast_enabled(DEVICE)
            assert torch.get_autocast_dtype(DEVICE) is torch.bfloat16
            a, b = ctx.saved_tensors
            return grad @ b.t(), a.t() @ grad

    class InFloat32(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=DEVICE, cast_inputs=torch.float32)
        def forward(ctx, a):
            assert not torch.is_autocast_enabled(DEVICE)
            assert a.dtype is torch.float32
            return a * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=DEVICE)
        def backward(ctx, grad):
            return grad * 2

    a = torch.randn(4, 4, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        y = Multiply.apply(a, a)
        assert y.dtype is torch.bfloat16
        z = InFloat32.apply(y)
        assert z.dtype is torch.float32
    z.sum().backward()
    assert a.grad.dtype is torch.float32
    assert a.grad.isfinite().all()


def test_training_with_scaled_gradients():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    x = torch.randn(64, 8, device=DEVICE)
    target = x.sum(1, keepdim=True)
    losses = []
    for step in range(20):
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = F.mse_loss(model(x), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step == 5:
            model[0].weight.grad[0, 0] = float("inf")
            before = model[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        if step == 5:
            assert torch.equal(model[0].weight, before)  # the step was left out
            assert scaler.get_scale() == 2.0**9
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
