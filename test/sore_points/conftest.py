"""What users of other out-of-tree devices have suffered from, one file for each sore point.

Those that a topic of its own covers are tested there: conjugate and negative views in test/features/test_complex.py and
test/aten/test_copy.py, inference mode and parameters of moved modules in test/features/test_modules_and_devices.py,
copies from meta in test/features/test_fake_and_meta.py, device lists in test/features/test_device_lists.py, streams,
events and processes in test/device.
"""

import pytest
import torch

import torch_xpu_kunlun  # noqa: F401 - registers the device


@pytest.fixture(autouse=True)
def clean_state():
    """Nothing may be left pending, and the current device never leaks."""
    yield
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)
    assert torch.kunlun.current_device() == 0


@pytest.fixture
def on_both():
    """Runs a function of a device on both and compares: values bit for bit, shapes, strides, offsets, dtypes."""

    def run(function, device="kunlun"):
        want, got = function("cpu"), function(device)
        for a, b in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got), strict=True):
            if not isinstance(a, torch.Tensor):
                assert a == b
                continue
            assert b.device == torch.empty(0, device=device).device
            assert (a.shape, a.stride(), a.storage_offset(), a.dtype) == (
                b.shape,
                b.stride(),
                b.storage_offset(),
                b.dtype,
            )
            torch.testing.assert_close(b.cpu(), a, rtol=0, atol=0, equal_nan=True)
        return got

    return run
