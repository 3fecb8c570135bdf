"""torch.use_deterministic_algorithms: kunlun repeats every number, so it refuses what the CPU refuses and no more.

torch raises its complaint either in code that all devices share (put_, max_unpool) or in CUDA's kernels (scatter_add,
bilinear interpolation, cumsum). The simulated chip runs the CPU's kernels and adds up in the CPU's order, so CUDA's
own complaints do not apply here; those that all devices share do.
"""

import pytest
import torch

import torch_xpu_kunlun


@pytest.fixture(autouse=True)
def deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def indices(device):
    return torch.tensor([0, 0, 1], device=device)


def backward_of_interpolation(device):
    x = torch.arange(9.0).reshape(1, 1, 3, 3).to(device).requires_grad_()
    torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear").square().sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "run",
    [
        lambda d: torch.zeros(4, device=d).index_add_(0, indices(d), torch.rand(3).to(d)),
        lambda d: torch.zeros(4, device=d).scatter_add_(0, indices(d), torch.ones(3, device=d)),
        lambda d: torch.zeros(4, device=d).index_put_((indices(d),), torch.ones(3, device=d), accumulate=True),
        lambda d: torch.bincount(indices(d), torch.ones(3, device=d)),
        lambda d: torch.ones(3, device=d).cumsum(0),
        lambda d: torch.ones(3, device=d).median(0)[1],
        backward_of_interpolation,
    ],
)
def test_what_the_cpu_allows(run):
    torch.manual_seed(0)
    want = run("cpu")
    torch.manual_seed(0)
    assert torch.equal(run("kunlun").cpu(), want)


@pytest.mark.parametrize(
    "run",
    [
        lambda d: torch.zeros(4, device=d).put_(indices(d), torch.ones(3, device=d)),
        lambda d: torch.nn.functional.max_unpool1d(
            torch.ones(1, 1, 2, device=d), torch.tensor([[[0, 2]]], device=d), 2
        ),
    ],
)
def test_what_every_device_refuses(run):
    for device in ("cpu", "kunlun"):
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            run(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="does not have a deterministic implementation"):
        run("kunlun")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.cfloat])
@pytest.mark.parametrize(
    "make",
    [
        lambda **k: torch.empty(5, **k),
        lambda **k: torch.empty_strided((2, 2), (3, 1), **k),
        lambda **k: torch.ones(3, **k).new_empty(4),
        lambda **k: torch.empty_like(torch.ones(3, **k)),
        lambda **k: torch.arange(4, device=k["device"]).to(k["dtype"]).resize_(9),
    ],
)
def test_uninitialised_memory_is_filled(make, dtype):
    """With NaN or the largest number, so that a read of it shows."""
    for index in range(torch.kunlun.device_count()):
        got = make(dtype=dtype, device=f"kunlun:{index}")
        assert torch.equal(
            torch.view_as_real(got).isnan().cpu() if dtype.is_complex else got.nan_to_num(7.0).cpu(),
            torch.view_as_real(make(dtype=dtype, device="cpu")).isnan()
            if dtype.is_complex
            else make(dtype=dtype, device="cpu").nan_to_num(7.0),
        )


def test_filling_can_be_switched_off():
    torch.empty(1, device="kunlun")
    try:
        for fills in (True, False):
            torch.utils.deterministic.fill_uninitialized_memory = fills
            torch_xpu_kunlun.reset_operator_statistics()
            torch.empty(1 << 10, device="kunlun")
            assert torch_xpu_kunlun.operator_statistics()["launcher"] == fills
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_uninitialised_memory_of_every_integer_is_filled_with_its_largest_number():
    # That of uint64 is one that no int64 holds.
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64):
        x = torch.empty(3, dtype=dtype, device="kunlun")
        assert x.tolist() == [torch.iinfo(dtype).max] * 3


def test_fill_with_a_number_that_only_uint64_holds():
    largest = 2**64 - 1
    x = torch.zeros(4, dtype=torch.uint64, device="kunlun")
    assert torch.full_like(x, largest).tolist() == [largest] * 4
    assert torch.zeros(2, device="kunlun").fill_(largest).tolist() == [2.0**64] * 2
    for dtype in (torch.int64, torch.uint8, torch.float16):
        with pytest.raises(RuntimeError, match="without overflow"):
            torch.zeros(2, dtype=dtype, device="kunlun").fill_(largest)
