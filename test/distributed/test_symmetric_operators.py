"""torch's operators and asynchronous tensor parallel functions over symmetric memory."""

import pytest

OPERATORS = """
start()
import common_group
name = dist.group.WORLD.group_name
ops = torch.ops.symm_mem
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32):
    for count in (1, 7, 1000, 6000):
        parts = [common_group.sample(dtype, count, peer) for peer in range(size)]
        half = dtype in (torch.float16, torch.bfloat16)
        total = parts[0].to(torch.float32 if half else dtype, copy=True)
        for part in parts[1:]:
            total += part
        total = total.to(dtype)
        device = torch.device("kunlun", torch.kunlun.current_device())
        x = symm_mem.empty(count + 3, dtype=dtype, device=device)[3:]
        symm_mem.rendezvous(x, name)
        own = parts[rank].to(device)

        x.copy_(own)
        results = [ops.one_shot_all_reduce(x, "sum", name)]
        results.append(ops.one_shot_all_reduce_out(x, "sum", name, torch.empty_like(x)))
        assert torch.equal(x.cpu(), parts[rank])
        x.zero_()
        results.append(ops.one_shot_all_reduce_copy(x, own, "sum", name))
        results.append(ops.one_shot_all_reduce_copy_out(x, own, "sum", name, torch.empty_like(own)))
        results.append(ops.two_shot_all_reduce_out(x, "sum", name, torch.empty_like(own)))
        x.copy_(own)
        results.append(ops.two_shot_all_reduce_(x, "sum", name))
        for result in results:
            assert torch.equal(result.cpu(), total), (dtype, count)

        wide = symm_mem.empty(4, size * count, dtype=dtype, device=device)
        symm_mem.rendezvous(wide, name)
        inputs = [common_group.sample(dtype, 4 * size * count, peer, 1).view(4, -1) for peer in range(size)]
        total = inputs[0].to(torch.float32 if half else dtype, copy=True)
        for part in inputs[1:]:
            total += part
        total = total.to(dtype)
        wide.copy_(inputs[rank])
        out = ops.reduce_scatter_out(wide, name, True, torch.empty(4, count, dtype=dtype, device=device))
        assert torch.equal(out.cpu(), total.chunk(size, 1)[rank])
        out = ops.reduce_scatter_out(wide.view(-1), name, False, torch.empty(4 * count, dtype=dtype, device=device))
        assert torch.equal(out.cpu(), total.view(-1).chunk(size)[rank])

x, memory = make(6)
assert "only \\"sum\\"" in raises(RuntimeError, ops.one_shot_all_reduce, x, "max", name)
assert "symmetric memory" in raises(RuntimeError, ops.one_shot_all_reduce, torch.ones(2, device="kunlun"), "sum", name)
z, _ = make(6, dtype=torch.float8_e4m3fn)
assert "not implemented for" in raises(NotImplementedError, ops.one_shot_all_reduce, z, "sum", name)
odd, _ = make(size * 2 + 1)
assert "divisible" in raises(RuntimeError, ops.reduce_scatter_out, odd, name, False, torch.empty(2, device="kunlun"))

words = torch.zeros(8, dtype=torch.uint32, device="kunlun")
assert _SymmetricMemory.stream_write_value32(words, 3, 7) is not None
_SymmetricMemory.memset32(words, offset=5, val=2**32 - 1, count=2)
assert words.tolist() == [0, 0, 0, 7, 0, 2**32 - 1, 2**32 - 1, 0]
assert "offset" in raises(RuntimeError, _SymmetricMemory.stream_write_value32, words, -1, 0)
assert "do not lie" in raises(RuntimeError, _SymmetricMemory.stream_write_value32, words, 8, 0)
assert "val" in raises(RuntimeError, _SymmetricMemory.memset32, words, 0, 2**32, 1)
assert "uint32" in raises(RuntimeError, _SymmetricMemory.memset32, words.view(torch.int32), 0, 1, 1)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_operators(check_symmetric, size):
    check_symmetric(OPERATORS, size)


ASYNC_TP = """
start()
name = dist.group.WORLD.group_name
ops = torch.ops.symm_mem
torch.manual_seed(0)
def same(a, b):
    half = b.dtype == torch.bfloat16
    torch.testing.assert_close(a.cpu(), b, rtol=0.02 if half else 1e-5, atol=0.1 if half else 1e-4)
for dtype in (torch.float32, torch.bfloat16):
    a = torch.randn(size, 2 * size, 3 * size, 16 * size).to(dtype)
    bs = [torch.randn(16 * size, 4 * size).to(dtype) for _ in range(2)]
    for dim in (0, 1, 2, 3):
        shard = a.chunk(size, dim)[rank].contiguous().kunlun()
        whole, products = ops.fused_all_gather_matmul(shard, [b.kunlun() for b in bs], dim, name)
        same(whole, a)
        for b, product in zip(bs, products):
            same(product, a @ b)
        whole, products = ops.fused_all_gather_matmul(shard, [bs[0].kunlun()], dim, name, return_A=False)
        assert whole is None
        same(products[0], a @ bs[0])
    # Each rank has its part of the inner dimension.
    inner, outer = a.chunk(size, -1)[rank].contiguous().kunlun(), bs[0].chunk(size, 0)[rank].contiguous().kunlun()
    for dim in (0, 1, 2, 3):
        for kind, scale in (("sum", 1), ("avg", size)):
            part = ops.fused_matmul_reduce_scatter(inner, outer, kind, dim, name)
            expected = (a.float() @ bs[0].float() / scale).to(dtype).chunk(size, dim)[rank]
            assert part.is_contiguous()
            same(part, expected)

    # Collectives that run aside; with the input in symmetric memory or not.
    wait = torch.ops._c10d_functional.wait_tensor
    parts = [torch.randn(2 * size, 5, generator=torch.Generator().manual_seed(peer)).to(dtype) for peer in range(size)]
    for empty in (symm_mem.empty, torch.empty):
        place = empty(2 * size, 5, dtype=dtype, device=torch.device("kunlun", torch.kunlun.current_device()))
        place.copy_(parts[rank])
        same(wait(ops._low_contention_all_gather(place, name)), torch.cat(parts))
        for kind in ("sum", "avg"):
            total = sum(part.float() for part in parts) / (size if kind == "avg" else 1)
            same(wait(ops._low_contention_reduce_scatter(place, kind, name)), total.to(dtype).chunk(size)[rank])
assert "sum or avg" in raises(ValueError, ops._low_contention_reduce_scatter, place, "max", name)
assert "not divisible" in raises(ValueError, ops.fused_matmul_reduce_scatter, inner[:1], outer, "sum", 0, name)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 3])
def test_products_that_overlap_with_their_exchange(check_symmetric, size):
    check_symmetric(ASYNC_TP, size)


def test_scaled_products(check_symmetric):
    check_symmetric(
        """
start()
name = dist.group.WORLD.group_name
ops = torch.ops.symm_mem
torch.manual_seed(0)
a, b = torch.randn(32, 64).to(torch.float8_e4m3fn), torch.randn(16, 64).to(torch.float8_e4m3fn).t()
one = torch.tensor(1.0, device="kunlun")
expected = a.float() @ b.float()
shard = a.chunk(size)[rank].contiguous().kunlun()
whole, (product,) = ops.fused_all_gather_scaled_matmul(
    shard, [b.kunlun()], one, [one], 0, name, [None], [None], [torch.bfloat16], [False]
)
assert torch.equal(whole.cpu().float(), a.float())
torch.testing.assert_close(product.cpu().float(), expected, rtol=0.01, atol=0.01)
part = ops.fused_scaled_matmul_reduce_scatter(
    a.kunlun(), b.kunlun(), one, one, "sum", 0, 0, name, [32, 16], None, None, torch.bfloat16
)
torch.testing.assert_close(part.cpu().float(), size * expected.chunk(size)[rank], rtol=0.01, atol=0.01)
dist.destroy_process_group()
"""
    )
