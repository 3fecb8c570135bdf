"""Kernels that use all of the chip's cores: several threads on both sides give the same numbers."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch
torch.manual_seed(0)
torch.set_num_threads(2)
import torch_xpu_kunlun

CASES = {
    "mm": (lambda a, b: a @ b, (300, 400), (400, 500)),
    "bmm": (torch.bmm, (8, 64, 96), (8, 96, 64)),
    "softmax": (lambda a: a.softmax(-1), (64, 4096)),
    "sum": (lambda a: a.sum(), (512, 1024)),
    "sum of rows": (lambda a: a.sum(0), (1024, 512)),
    "layer_norm": (lambda a: torch.nn.functional.layer_norm(a, (1024,)), (256, 1024)),
    "pointwise": (lambda a, b: torch.nn.functional.gelu(a) * b + 1, (512, 1024), (512, 1024)),
    "conv2d": (torch.nn.functional.conv2d, (4, 16, 32, 32), (32, 16, 3, 3)),
    "attention": (torch.nn.functional.scaled_dot_product_attention, (2, 8, 128, 64), (2, 8, 128, 64), (2, 8, 128, 64)),
    "nonzero": (torch.nonzero, (512, 512)),
}
for name, (function, *shapes) in CASES.items():
    inputs = [torch.randn(shape) for shape in shapes]
    expected = function(*inputs)
    actual = function(*(x.to("kunlun") for x in inputs)).cpu()
    assert torch.equal(actual, expected), (name, (actual - expected).abs().max())

# Large kernels of several streams take turns at the cores, and none waits for ever.
a = torch.randn(512, 512, device="kunlun")
torch.kunlun.synchronize()
results = []
for _ in range(6):
    with torch.kunlun.stream(torch.kunlun.Stream()):
        x = a
        for _ in range(10):
            x = torch.tanh(x @ a)
        results.append(x)
torch.kunlun.synchronize()
assert all(torch.equal(results[0], r) for r in results)
print("equal")
"""


@pytest.mark.parametrize("threads", ["0", "2"])
def test_two_threads_equal_the_cpus_two_threads(threads):
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "KUNLUN_SIM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"
