"""Random work of two threads on two streams of two devices each: every value is the CPU's."""

import pytest
import torch

from tools import stress_device


def test_no_wrong_value():
    assert stress_device.run(seconds=10) > 0


def test_a_wrong_value_is_found(monkeypatch):
    wrong = lambda a, b: a + (1 if a.device.type == "kunlun" else 0)  # noqa: E731
    monkeypatch.setattr(stress_device, "OPERATIONS", {"wrong": wrong})
    with pytest.raises(
        stress_device.Mismatch, match=r"values differ from the CPU's, by 1 at most, after \['wrong on kunlun:"
    ):
        stress_device.run(seconds=10)
    torch.kunlun.synchronize()
