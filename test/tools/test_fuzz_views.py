"""The fuzzer of views and writes: a short run is equal to the CPU, and a difference is noticed and can be repeated."""

import pytest
import torch

import torch_xpu_kunlun  # noqa: F401 - registers the device
from tools import fuzz_views


def test_a_short_run_is_equal_to_the_cpu():
    assert fuzz_views.fuzz(chains=400, seed=0) > 2000


@pytest.mark.full
def test_a_long_run_is_equal_to_the_cpu():
    assert fuzz_views.fuzz(chains=20_000, seed=1_000_000) > 100_000


def test_a_chain_follows_from_its_seed():
    assert fuzz_views.Chain(5).run().log == fuzz_views.Chain(5).run().log
    assert fuzz_views.Chain(5).run().log != fuzz_views.Chain(6).run().log


def test_a_difference_is_noticed_with_the_steps_that_led_to_it():
    chain = fuzz_views.Chain(5)
    chain.pairs[0].kunlun = chain.pairs[0].kunlun.clone()
    chain.pairs[0].cpu.resize_(3).fill_(1)
    chain.pairs[0].kunlun.resize_(3).fill_(0)
    with pytest.raises(fuzz_views.Mismatch, match=r"seed 5: t0 is\n(.|\n)*on kunlun\nt0 = torch\."):
        chain.check()


def test_a_difference_beside_a_view_is_noticed():
    chain = fuzz_views.Chain(0)
    cpu, kunlun = torch.zeros(4), torch.tensor([0.0, 0.0, 0.0, 1.0], device="kunlun")
    pair = fuzz_views.Pair(cpu[:2], kunlun[:2])
    chain.pairs, chain.roots = [pair], [pair]
    with pytest.raises(fuzz_views.Mismatch, match="the storage of t0 differs"):
        chain.check()


def test_a_refusal_on_one_side_only_is_noticed():
    chain = fuzz_views.Chain(0)

    def call(tensor, side):
        if side == "kunlun":
            raise IndexError("no such row")

    with pytest.raises(fuzz_views.Mismatch, match="the CPU gave no error, kunlun gave IndexError"):
        chain.both("call", chain.pairs[0], call)
