"""The current device never leaks, and never decides where the result of an operator lies."""

import pytest
import torch
from common_move import Mover, move_kwargs
from common_op_db import OPS, name_of, same, tolerance_of, uses_randomness

OTHER = "kunlun:1"
MAKERS = [
    lambda: torch.arange(5, device=OTHER),
    lambda: torch.hann_window(8, device=OTHER),
    lambda: torch.kaiser_window(8, device=OTHER),
    lambda: torch.randperm(6, device=OTHER),
    lambda: torch.linspace(0, 1, 5, device=OTHER),
    lambda: torch.logspace(0, 1, 5, device=OTHER),
    lambda: torch.eye(3, device=OTHER),
    lambda: torch.tril_indices(3, 3, device=OTHER),
    lambda: torch.randint(0, 9, (4,), device=OTHER),
    lambda: torch.empty_strided((2, 2), (1, 2), device=OTHER),
    lambda: torch.ones(3, device=OTHER).resize_(9),
    lambda: torch.ones(3, device=OTHER).new_zeros(4),
    lambda: torch.ones(3).to(OTHER),
    lambda: torch.ones(3, device="kunlun:0").to(OTHER),
    lambda: torch.tensor([1.0, 2.0], device=OTHER),
    lambda: torch.full((2,), 3, device=OTHER),
    lambda: torch.ones(4, device=OTHER).sort(descending=True)[0],
    lambda: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=OTHER).to_dense(),
    lambda: torch.empty(0, device=OTHER).set_(torch.ones(4, device=OTHER).untyped_storage()),
    lambda: torch.complex(torch.ones(2, device=OTHER), torch.ones(2, device=OTHER)),
    lambda: torch.fft.fft(torch.ones(8, device=OTHER)),
    lambda: torch.nn.functional.dropout(torch.ones(8, device=OTHER)),
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_made_on_another_device_lies_there(make):
    make()  # whatever is cached is made now
    before = [torch.kunlun.memory_allocated(index) for index in range(2)]
    result = make()
    grown = [torch.kunlun.memory_allocated(index) - was for index, was in enumerate(before)]
    assert result.device == torch.device(OTHER)
    assert result.untyped_storage().device == torch.device(OTHER)
    assert grown[0] == 0
    assert grown[1] > 0
    assert torch.kunlun.current_device() == 0


def check(op) -> None:
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=False)):
        if number == 3:
            break
        mover = Mover(OTHER)
        args = sample.args if op.name == "tensor_split" else mover(sample.args)
        got = op(mover(sample.input), *args, **move_kwargs(sample.kwargs, mover))
        assert torch.kunlun.current_device() == 0
        for leaf in torch.utils._pytree.tree_leaves(got):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "kunlun":
                assert leaf.device == torch.device(OTHER), name_of(op)
                if leaf.layout is torch.strided:
                    assert leaf.untyped_storage().device == torch.device(OTHER), name_of(op)
        if not uses_randomness(op, sample):
            want = op(sample.input, *sample.args, **sample.kwargs)
            assert same(want, got, values=True, tolerance=tolerance_of(op)) is None, name_of(op)


PART = OPS[::10]  # all of them in the whole sweep


@pytest.mark.filterwarnings("ignore")
def test_operators_of_the_test_bed_stay_on_the_device_of_their_arguments():
    for op in PART:
        check(op)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_operators_of_the_test_bed_stay_on_the_device_of_their_arguments_in_the_whole_sweep():
    for op in OPS:
        check(op)


def test_the_backward_pass_on_another_device():
    x = torch.randn(4, 4, device=OTHER, requires_grad=True)
    torch.nn.Linear(4, 4, device=OTHER)(x).relu().sum().backward()
    assert x.grad.device == torch.device(OTHER)
    assert torch.kunlun.current_device() == 0


def test_an_error_does_not_leave_the_device_behind():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        torch.ones(2, 3, device=OTHER) @ torch.ones(2, 3, device=OTHER)
    with pytest.raises(IndexError):
        torch.ones(3, device=OTHER)[torch.tensor([7], device=OTHER)]
        torch.kunlun.synchronize(1)
    assert torch.kunlun.current_device() == 0
    with pytest.raises(torch.OutOfMemoryError), torch.kunlun.device(1):
        torch.empty(1 << 42, device=OTHER)
    assert torch.kunlun.current_device() == 0


def test_a_stream_of_another_device_brings_its_device_for_the_block_alone():
    with torch.kunlun.stream(torch.kunlun.Stream(1)):
        assert torch.kunlun.current_device() == 1
        assert torch.empty(1, device="kunlun").device.index == 1
    assert torch.empty(1, device="kunlun").device.index == 0
