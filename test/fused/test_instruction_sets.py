"""The simulated chip's fused kernels for older processors compute the same."""

import pathlib

import pytest
from common_process import run_new_python

TEST = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_kernels_of_other_instruction_sets(capability):
    """torch's own variable chooses them, as it chooses the CPU's kernels."""
    code = f"""
import sys
sys.path.insert(0, {str(TEST)!r})
sys.path.insert(0, {str(TEST / "fused")!r})
import torch
from common_fused import check
from test_attention import TOLERANCE, packed, paged
from test_rotary import cache

assert torch.backends.cpu.get_cpu_capability() == {capability.upper()!r}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x, residual = torch.randn(2, 5, 70).to(dtype)
    check("add_rmsnorm", dtype, x, residual, torch.randn(70))
    check("silu_and_mul", dtype, x)
    check("quick_gelu", dtype, x)
    check("rotary_embedding", dtype, torch.arange(5), x, None, 14, cache(9, 14))
    attention = {{"tolerance": TOLERANCE[dtype]}}
    check("prefill_attention", dtype, *packed(dtype, (5, 70), (5, 90), 6, 2, 40), **attention)
    check("paged_attention", dtype, *paged(dtype, (5, 70), 6, 2, 40), **attention)
print("same")
"""
    run = run_new_python(code, ATEN_CPU_CAPABILITY=capability)
    assert run.stdout.strip() == "same", run.stderr
