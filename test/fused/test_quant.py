"""int8 quantisation and products, and weights of four bits in the layouts of AWQ and GPTQ."""

import pytest
import torch
from common_fused import check, check_op, to_device

from torch_xpu_kunlun import ops

# Long sums in another order than the reference's.
SUMS = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


def int8(*shape):
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def words(*shape):
    """Random int32, sign bit included."""
    return torch.randint(-(2**31), 2**31, shape).int()


@pytest.mark.parametrize("name", ["quant2d", "dynamic_scaled_int8_quant"])
@pytest.mark.parametrize("shape", [(1,), (7, 33), (2, 3, 100), (40, 512), (0, 8)], ids=str)
def test_quantisation(dtype, name, shape):
    x = torch.randn(shape).to(dtype)
    check(name, dtype, x, tolerance={"rtol": 1e-6, "atol": 0})
    check(
        name, dtype, x.expand(2, *shape).transpose(0, -2 if len(shape) > 1 else 0), tolerance={"rtol": 1e-6, "atol": 0}
    )


def test_quantising_zeros_and_back(dtype):
    x = torch.randn(4, 50).to(dtype)
    x[1] = 0
    quantized, scale = ops.dynamic_scaled_int8_quant(x.to("kunlun"))
    assert not quantized[1].any()
    assert quantized.abs().amax(-1).tolist() == [127, 0, 127, 127]
    error = (quantized.float() * scale).cpu() - x.float()
    assert (error.abs() <= scale.cpu() * 0.5001).all()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 33, 100), (40, 64, 512), (0, 4, 8), (17, 3, 4096)], ids=str)
def test_int8_products(dtype, sizes):
    m, n, k = sizes
    x, weight = int8(m, k), int8(n, k)
    for scales in ((torch.rand(m, 1), torch.rand(n)), (torch.rand(1), torch.rand(()))):
        check("cutlass_scaled_mm", dtype, x, weight.t(), *scales, dtype)
        check("cutlass_scaled_mm", dtype, x, weight.t().contiguous(), *scales, dtype, torch.randn(n).to(dtype))
        check("gemm_I8_I8_bf16_nt", torch.bfloat16, x, scales[0], weight, scales[1])


def test_sums_are_exact_integers():
    x = torch.full((1, 2**16 + 1), 127, dtype=torch.int8)
    one = torch.ones(1)
    out = ops.cutlass_scaled_mm(*to_device((x, x.t(), one, one)), torch.float32)
    assert out.item() == float(torch.tensor(127 * 127 * (2**16 + 1), dtype=torch.float32))


@pytest.mark.parametrize("sizes", [(1, 8, 8, 1), (5, 64, 24, 4), (33, 256, 136, 2), (3, 384, 64, 3)], ids=str)
def test_awq(dtype, sizes):
    tokens, depth, columns, groups = sizes
    qweight, qzeros = words(depth, columns // 8), words(groups, columns // 8)
    scales = (torch.rand(groups, columns) / 8).to(dtype)
    check("awq_dequantize", dtype, qweight, scales, qzeros)
    check("awq_gemm", dtype, torch.randn(tokens, depth).to(dtype) / 8, qweight, scales, qzeros, tolerance=SUMS[dtype])
    check(
        "awq_gemm",
        dtype,
        torch.randn(2 * tokens, depth).to(dtype)[::2] / 8,
        qweight,
        scales,
        qzeros,
        tolerance=SUMS[dtype],
    )


def test_order_of_an_awq_word():
    word = torch.tensor([[0x76543210]], dtype=torch.int32, device="kunlun")
    scales = torch.ones(1, 8, device="kunlun")
    assert ops.awq_dequantize(word, scales, torch.zeros_like(word)).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]


@pytest.mark.parametrize("sizes", [(1, 8, 8, 1), (5, 64, 24, 4), (33, 256, 136, 2)], ids=str)
def test_gptq(dtype, sizes):
    tokens, depth, columns, groups = sizes
    x = torch.randn(tokens, depth).to(dtype) / 8
    args = x, words(depth // 8, columns), words(groups, columns // 8), (torch.rand(groups, columns) / 8).to(dtype)
    check("gptq_gemm", dtype, *args, tolerance=SUMS[dtype])
    check("gptq_gemm", dtype, *args, torch.randint(0, groups, (depth,)).int(), tolerance=SUMS[dtype])


def test_order_of_a_gptq_word():
    word = torch.tensor([0x76543210], dtype=torch.int32).expand(8)[None].to("kunlun")
    zeros = torch.full((1, 1), -1, dtype=torch.int32, device="kunlun")  # fifteen, stored less one
    out = ops.gptq_gemm(torch.eye(8, device="kunlun"), word, zeros, torch.ones(1, 8, device="kunlun"))
    assert out[:, 0].tolist() == [value - 16 for value in range(8)]


def test_groups_out_of_range():
    x, words_, zeros, scales = to_device((torch.randn(1, 8), words(1, 8), words(2, 1), torch.ones(2, 8)))
    ops.gptq_gemm(x, words_, zeros, scales, torch.full((8,), 2, device="kunlun"))
    with pytest.raises(IndexError, match="group 2 of row 0 is out of the range of 2 groups"):
        torch.kunlun.synchronize()


def test_operator_check(dtype):
    x = torch.randn(5, 16).to(dtype)
    check_op(torch.ops.kunlun.quant2d.default, x)
    check_op(torch.ops.kunlun.dynamic_scaled_int8_quant.default, x)
    args = int8(3, 16), torch.rand(3, 1), int8(4, 16), torch.rand(4)
    check_op(torch.ops.kunlun.gemm_I8_I8_bf16_nt.default, *args)
    a, scale_a, b, scale_b = args
    check_op(torch.ops.kunlun.cutlass_scaled_mm.default, a, b.t(), scale_a, scale_b, dtype, torch.randn(4).to(dtype))
    qweight, qzeros, scales = words(16, 3), words(2, 3), torch.rand(2, 24).to(dtype)
    check_op(torch.ops.kunlun.awq_dequantize.default, qweight, scales, qzeros)
    check_op(torch.ops.kunlun.awq_gemm.default, x, qweight, scales, qzeros)
    check_op(torch.ops.kunlun.gptq_gemm.default, x, words(2, 24), qzeros, scales, torch.randint(0, 2, (16,)))


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    a, b, one = int8(3, 8).to(device), int8(8, 4).to(device), torch.ones(1, device=device)
    with pytest.raises(RuntimeError, match="b must have size 8 in dimension 0"):
        ops.cutlass_scaled_mm(a, b[:4], one, one, torch.float32)
    with pytest.raises(RuntimeError, match="x must be Char, got Int"):
        ops.cutlass_scaled_mm(a.int(), b, one, one, torch.float32)
    with pytest.raises(RuntimeError, match=r"scale_b must hold one number or 4, got shape \[3\]"):
        ops.cutlass_scaled_mm(a, b, one, one.expand(3), torch.float32)
    with pytest.raises(RuntimeError, match="out_dtype must be float32, float16 or bfloat16, got Double"):
        ops.cutlass_scaled_mm(a, b, one, one, torch.float64)
    qweight, qzeros = words(16, 3).to(device), words(2, 3).to(device)
    scales = torch.rand(2, 24, device=device)
    with pytest.raises(RuntimeError, match="16 rows do not split into 3 groups"):
        ops.awq_dequantize(qweight, torch.rand(3, 24, device=device), words(3, 3).to(device))
    with pytest.raises(RuntimeError, match=r"qzeros must have shape \[2, 3\], got \[1, 3\]"):
        ops.awq_dequantize(qweight, scales, qzeros[:1])
    with pytest.raises(RuntimeError, match="x must be Float, got Half"):
        ops.awq_gemm(torch.rand(2, 16, device=device).half(), qweight, scales, qzeros)
    with pytest.raises(RuntimeError, match="qweight must have size 24 in dimension 1"):
        ops.gptq_gemm(torch.rand(2, 16, device=device), qweight[:2], qzeros, scales)


def test_quantised_products_are_close_to_the_real_ones(dtype):
    x, weight = torch.randn(9, 256).to(dtype), torch.randn(40, 256).to(dtype)
    (xq, x_max), (wq, w_max) = (ops.quant2d(t.to("kunlun")) for t in (x, weight))
    out = ops.gemm_I8_I8_bf16_nt(xq, x_max, wq, w_max)
    expected = x.float() @ weight.float().t()
    assert (out.cpu().float() - expected).abs().max() < 0.05 * expected.abs().max()
