"""A chip without a fused kernel: the same tiers and the same policy as for every other operator."""

SETUP = """
import torch
import torch_xpu_kunlun
from torch_xpu_kunlun import ops
from torch_xpu_kunlun.ops import reference

x, weight = torch.randn(3, 8), torch.randn(8)
device = x.to("kunlun"), weight.to("kunlun")
expected = reference.add_rmsnorm(x, x, weight)
torch_xpu_kunlun.reset_operator_statistics()

def check():
    out, total = ops.add_rmsnorm(device[0], device[0], device[1])
    torch.testing.assert_close((out.cpu(), total.cpu()), expected)
    ops.add_rmsnorm_(same := device[0].clone(), residual := device[0].clone(), device[1])
    torch.testing.assert_close((same.cpu(), residual.cpu()), expected)
    statistics = torch_xpu_kunlun.operator_statistics()
    return statistics["host_call_ops"], statistics["fallback_ops"]
"""
WITHOUT = {"KUNLUN_SIM_OPERATORS": "without=kunlun::add_rmsnorm,kunlun::add_rmsnorm_"}
CALLS = '{"kunlun::add_rmsnorm": 1, "kunlun::add_rmsnorm_": 1}'


def test_the_chip_has_the_kernels(check_python):
    check_python(SETUP + "assert check() == ({}, {})")


def test_a_host_addressable_chip_takes_the_hosts_kernel(check_python):
    check_python(SETUP + f"assert check() == ({CALLS}, {{}})", KUNLUN_SIM_HOST_ADDRESSABLE="1", **WITHOUT)


def test_copies_where_the_policy_allows_them(check_python):
    code = f"assert check() == ({{}}, {CALLS})"
    check_python(SETUP + code, KUNLUN_SIM_HOST_ADDRESSABLE="0", KUNLUN_FALLBACK="allow", **WITHOUT)


def test_a_warning_where_the_policy_says_so(run_python):
    code = f"assert check() == ({{}}, {CALLS})"
    done = run_python(SETUP + code, KUNLUN_SIM_HOST_ADDRESSABLE="0", KUNLUN_FALLBACK="warn", **WITHOUT)
    assert done.returncode == 0, done.stderr
    for name in ("add_rmsnorm", "add_rmsnorm_"):
        assert done.stderr.count(f"The operator 'kunlun::{name}' has no kernel on Kunlun XPU (simulated)") == 1


def test_an_error_where_it_does_not(check_python):
    code = """
try:
    check()
except torch_xpu_kunlun.UnsupportedOperatorError as error:
    assert "kunlun::add_rmsnorm" in str(error) and "[3, 8]" in str(error), error
else:
    raise AssertionError("no error")
"""
    check_python(SETUP + code, KUNLUN_SIM_HOST_ADDRESSABLE="0", KUNLUN_FALLBACK="error", **WITHOUT)


def test_copies_of_everything_that_is_written(check_python):
    code = """
key, value, cache = torch.randn(2, 2, 8), torch.randn(2, 2, 8), torch.zeros(2, 3, 2, 4, 8)
slots, table = torch.tensor([5, 2]), torch.randn(9, 8)
a = torch.randn(3, 4, 8), torch.randn(2, 4), torch.randn(2, 8), torch.tensor([2, 0])

def run(module, move):
    k, v, caches, s, t, (lora, y, out, indices) = (
        tuple(map(move, x)) if isinstance(x, tuple) else move(x) for x in (key, value, cache, slots, table, a)
    )
    module.rotary_embedding(s, k, v, 8, t)
    module.reshape_and_cache(k, v, *caches, s)
    module.concat_and_cache_mla(k[:, 0, :4], k[:, 1, 4:], caches[0, :, 0], s + 1)
    module.bgmv_expand(y, lora.transpose(1, 2).contiguous(), out, indices)
    return [x.cpu() for x in (k, v, caches, out)]

torch.testing.assert_close(run(ops, lambda x: x.to("kunlun")), run(reference, torch.clone))
fallback = torch_xpu_kunlun.operator_statistics()["fallback_ops"]
names = "rotary_embedding", "reshape_and_cache", "concat_and_cache_mla", "bgmv_expand"
assert {f"kunlun::{name}" for name in names} <= set(fallback), fallback
"""
    check_python(
        SETUP + code,
        KUNLUN_SIM_HOST_ADDRESSABLE="0",
        KUNLUN_FALLBACK="allow",
        KUNLUN_SIM_OPERATORS="without=kunlun::rotary_embedding,kunlun::reshape_and_cache,kunlun::concat_and_cache_mla,"
        "kunlun::bgmv_expand",
    )
