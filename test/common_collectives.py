"""Every collective, every dtype and every reduction against what one process computes. Run by ranks, see below."""

from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist
from common_batches import Batches
from common_group import ALL_DTYPES, COMPLEX, COUNTS, FLOAT8, FLOATS, INTEGERS, sample
from torch.distributed import ReduceOp

LOGICAL = {
    ReduceOp.SUM: torch.logical_or,
    ReduceOp.MAX: torch.logical_or,
    ReduceOp.BOR: torch.logical_or,
    ReduceOp.PRODUCT: torch.logical_and,
    ReduceOp.MIN: torch.logical_and,
    ReduceOp.BAND: torch.logical_and,
    ReduceOp.BXOR: torch.logical_xor,
}
ARITHMETIC = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}
BITWISE = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    if dtype in FLOAT8 or dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    if dtype == torch.complex32:
        return torch.complex64
    # Integers are small here; torch lacks kernels for most unsigned ones.
    return torch.int64 if dtype in INTEGERS else dtype


def combine(op, inputs: list[torch.Tensor]) -> torch.Tensor:
    """In rank order, halves in float32, rounded once: what every rank must get to the last bit."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        return reduce(LOGICAL[op], inputs)
    function = ARITHMETIC.get(op) or BITWISE[op]
    total = reduce(function, [x.to(accumulator(dtype)) for x in inputs])
    if op == ReduceOp.AVG:
        mode = "trunc" if dtype in INTEGERS else None
        total = torch.div(total, len(inputs), rounding_mode=mode)
    return total.to(dtype)


def reductions(dtype: torch.dtype) -> list:
    if dtype == torch.bool:
        return list(LOGICAL)
    if dtype in INTEGERS:
        return [*ARITHMETIC, *BITWISE]
    if dtype in COMPLEX:
        return [ReduceOp.SUM, ReduceOp.AVG]
    return list(ARITHMETIC)


class Collectives(Batches):
    def samples(self, dtype, count, seed=0):
        return [sample(dtype, count, rank, seed) for rank in range(self.world_size)]

    def test_all_reduce(self):
        for dtype in ALL_DTYPES:
            for op in reductions(dtype):
                for count in COUNTS:
                    inputs = self.samples(dtype, count)
                    x = inputs[self.rank].to(self.device)
                    if dtype in COMPLEX:
                        # dist.all_reduce sends real numbers; here the backend gets complex ones.
                        opts = dist.AllreduceOptions()
                        opts.reduceOp = op
                        self.backend.allreduce([x], opts).wait()
                    else:
                        dist.all_reduce(x, op)
                    self.same(x, combine(op, inputs))

    def test_extreme_integers(self):
        for dtype in INTEGERS:
            limits = torch.iinfo(dtype)
            values = [limits.min, limits.max, limits.max - 1, limits.min + 1]
            for op, choose in ((ReduceOp.MIN, min), (ReduceOp.MAX, max)):
                mine = values[self.rank :] + values[: self.rank]
                x = torch.tensor(mine, dtype=dtype).to(self.device)
                dist.all_reduce(x, op)
                columns = zip(*(values[r:] + values[:r] for r in range(self.world_size)), strict=True)
                assert x.cpu().tolist() == [choose(column) for column in columns], (dtype, op)

    def test_nan_and_infinity(self):
        for dtype in (*FLOATS, torch.float8_e5m2):
            for op in (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX):
                x = torch.tensor([float("nan"), float("inf"), 1.0]).to(dtype).to(self.device)
                if self.rank == 1:
                    x = torch.tensor([1.0, 2.0, float("nan")]).to(dtype).to(self.device)
                dist.all_reduce(x, op)
                result = x.cpu().float()
                assert result[[0, 2]].isnan().all(), (dtype, op, result)
                assert result[1] == (2.0 if op == ReduceOp.MIN else float("inf")), (dtype, op, result)

    def test_premul_sum(self):
        for dtype in FLOATS:
            inputs = self.samples(dtype, 5000)
            wide = [x.to(accumulator(dtype)) * (rank + 2) for rank, x in enumerate(inputs)]
            expected = reduce(torch.add, wide).to(dtype)
            for factor in (float(self.rank + 2), torch.tensor([self.rank + 2.0], dtype=dtype).to(self.device)):
                x = inputs[self.rank].to(self.device)
                dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
                self.same(x, expected)

    def test_reduce(self):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for count in COUNTS:
                for root in range(self.world_size):
                    inputs = self.samples(dtype, count, seed=root)
                    x = inputs[self.rank].to(self.device)
                    dist.reduce(x, root)
                    self.same(x, combine(ReduceOp.SUM, inputs) if self.rank == root else inputs[self.rank])

    def test_broadcast(self):
        for dtype in ALL_DTYPES:
            for count in COUNTS:
                for root in range(self.world_size):
                    inputs = self.samples(dtype, count, seed=root)
                    x = inputs[self.rank].to(self.device)
                    dist.broadcast(x, root)
                    self.same(x, inputs[root])

    def test_all_gather(self):
        for dtype in ALL_DTYPES:
            for count in COUNTS:
                inputs = self.samples(dtype, count)
                mine = inputs[self.rank].to(self.device)
                whole = torch.empty(count * self.world_size, dtype=dtype, device=self.device)
                dist.all_gather_into_tensor(whole, mine)
                self.same(whole, torch.cat(inputs))
                parts = [torch.empty_like(mine) for _ in inputs]
                dist.all_gather(parts, mine)
                for part, expected in zip(parts, inputs, strict=True):
                    self.same(part, expected)
        # In place, into the chunks of one tensor.
        whole = torch.zeros(self.world_size * 9000, device=self.device)
        chunks = list(whole.chunk(self.world_size))
        chunks[self.rank].fill_(self.rank + 1.0)
        dist.all_gather(chunks, chunks[self.rank])
        self.same(whole, torch.arange(1.0, self.world_size + 1).repeat_interleave(9000))

    def test_all_gather_of_different_sizes(self):
        for scale in (1, 5000):
            inputs = [sample(torch.float32, (rank + 1) * scale, rank) for rank in range(self.world_size)]
            parts = [torch.empty_like(x, device=self.device) for x in inputs]
            dist.all_gather(parts, inputs[self.rank].to(self.device))
            for part, expected in zip(parts, inputs, strict=True):
                self.same(part, expected)

    def test_reduce_scatter(self):
        for dtype in (*FLOATS, torch.int32, torch.bool):
            for op in (ReduceOp.SUM, ReduceOp.MAX):
                for count in COUNTS:
                    inputs = self.samples(dtype, count * self.world_size)
                    expected = combine(op, inputs).chunk(self.world_size)[self.rank] if count else inputs[0][:0]
                    mine = inputs[self.rank].to(self.device)
                    x = torch.empty(count, dtype=dtype, device=self.device)
                    dist.reduce_scatter_tensor(x, mine, op)
                    self.same(x, expected)
                    x.zero_()
                    dist.reduce_scatter(
                        x, [mine[i * count : (i + 1) * count].clone() for i in range(self.world_size)], op
                    )
                    self.same(x, expected)

    def test_reduce_scatter_of_different_sizes(self):
        sizes = [3 * (rank + 1) for rank in range(self.world_size)]
        inputs = [torch.full((sum(sizes),), rank + 1.0).split(sizes) for rank in range(self.world_size)]
        x = torch.empty(sizes[self.rank], device=self.device)
        dist.reduce_scatter(x, [part.to(self.device) for part in inputs[self.rank]])
        self.same(x, torch.full((sizes[self.rank],), sum(range(1, self.world_size + 1)), dtype=torch.float32))

    def test_all_to_all(self):
        n = self.world_size
        for dtype in (torch.float32, torch.int8, torch.complex64):
            for rows in (1, 4000):
                inputs = [sample(dtype, n * rows * 3, rank).view(n * rows, 3) for rank in range(n)]
                expected = [x.chunk(n)[self.rank] for x in inputs]
                mine = inputs[self.rank].to(self.device)
                x = torch.empty_like(mine)
                dist.all_to_all_single(x, mine)
                self.same(x, torch.cat(expected))
                parts = [torch.empty_like(part, device=self.device) for part in expected]
                dist.all_to_all(parts, [part.contiguous() for part in mine.chunk(n)])
                for part, wanted in zip(parts, expected, strict=True):
                    self.same(part, wanted)

    def test_all_to_all_of_different_sizes(self):
        n = self.world_size
        # Rank i sends i + j rows to rank j : none from 0 to 0.
        splits = [[i + j for j in range(n)] for i in range(n)]
        inputs = [sample(torch.float32, 2 * sum(splits[i]), i).view(-1, 2) for i in range(n)]
        receive = [splits[i][self.rank] for i in range(n)]
        x = torch.empty(sum(receive), 2, device=self.device)
        dist.all_to_all_single(x, inputs[self.rank].to(self.device), receive, splits[self.rank])
        self.same(x, torch.cat([inputs[i].split(splits[i])[self.rank] for i in range(n)]))

    def test_gather_and_scatter(self):
        for count in COUNTS:
            for root in range(self.world_size):
                inputs = self.samples(torch.float32, count)
                mine = inputs[self.rank].to(self.device)
                parts = [torch.empty_like(mine) for _ in inputs] if self.rank == root else None
                dist.gather(mine, parts, dst=root)
                x = torch.empty_like(mine)
                dist.scatter(x, parts, src=root)
                self.same(x, inputs[self.rank])

    def test_coalesced(self):
        inputs = [self.samples(torch.float32, count, seed=count) for count in (3, 9000)]
        tensors = [x[self.rank].to(self.device) for x in inputs]
        with dist._coalescing_manager(device=self.device):
            for x in tensors:
                dist.all_reduce(x)
        for x, of_ranks in zip(tensors, inputs, strict=True):
            self.same(x, combine(ReduceOp.SUM, of_ranks))
        outputs = [torch.empty(x[0].numel() * self.world_size, device=self.device) for x in inputs]
        with dist._coalescing_manager(device=self.device, async_ops=True) as manager:
            for output, of_ranks in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, of_ranks[self.rank].to(self.device))
        manager.wait()
        for output, of_ranks in zip(outputs, inputs, strict=True):
            self.same(output, torch.cat(of_ranks))

    def test_objects(self):
        objects = [None] * self.world_size
        dist.all_gather_object(objects, {"rank": self.rank, "text": "x" * self.rank})
        assert [x["rank"] for x in objects] == list(range(self.world_size))
        given = [{"a": self.rank}, self.rank]
        dist.broadcast_object_list(given, src=1)
        assert given == [{"a": 1}, 1]

    def test_functional(self):
        from torch.distributed import _functional_collectives as functional

        x = torch.full((5,), self.rank + 1.0, device=self.device)
        total = self.world_size * (self.world_size + 1) / 2
        assert functional.all_reduce(x, "sum", dist.group.WORLD).tolist() == [total] * 5
        gathered = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        assert gathered.tolist() == [r + 1.0 for r in range(self.world_size) for _ in range(5)]
        scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD)
        assert scattered.tolist() == [(self.rank + 1.0) * self.world_size] * 5

    def test_asynchronous(self):
        inputs = self.samples(torch.float32, 100000)
        x = inputs[self.rank].to(self.device)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        doubled = x * 2
        self.same(doubled, combine(ReduceOp.SUM, inputs) * 2)
        torch.kunlun.synchronize()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0].data_ptr() == x.data_ptr()

    def test_memory_of_a_dropped_tensor_is_kept(self):
        expected = float(sum(range(1, self.world_size + 1)))
        works, results = [], []
        for _ in range(20):
            x = torch.full((50000,), self.rank + 1.0, device=self.device)
            results.append(torch.empty(50000 * self.world_size, device=self.device))
            works.append(dist.all_gather_into_tensor(results[-1], x, async_op=True))
            del x
            torch.full((50000,), -1.0, device=self.device)  # would land in the same memory
        for work, result in zip(works, results, strict=True):
            work.wait()
            assert result.view(self.world_size, -1)[:, 0].sum().item() == expected

    def test_future(self):
        x = torch.full((1000,), self.rank + 1.0, device=self.device)
        future = dist.all_reduce(x, async_op=True).get_future()
        total = float(sum(range(1, self.world_size + 1)))
        assert future.then(lambda f: f.value()[0] / total).wait().cpu().unique().tolist() == [1.0]

    def test_point_to_point(self):
        n = self.world_size
        for count in COUNTS:
            mine = sample(torch.float32, count, self.rank).to(self.device)
            x = torch.empty_like(mine)
            after, before = (self.rank + 1) % n, (self.rank - 1) % n
            for order in ("send first", "recv first"):
                operations = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, x, before)]
                if order == "recv first":
                    operations.reverse()
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
                self.same(x, sample(torch.float32, count, before))
                x.zero_()
        # Without a batch, both directions at once.
        peer = self.rank ^ 1
        mine = torch.full((30000,), float(self.rank), device=self.device)
        x = torch.empty_like(mine)
        sent = dist.isend(mine, peer)
        received = dist.irecv(x, peer)
        sent.wait()
        received.wait()
        self.same(x, torch.full((30000,), float(peer)))

    def test_send_to_itself(self):
        mine = torch.arange(10.0, device=self.device)
        x = torch.empty_like(mine)
        operations = [dist.P2POp(dist.isend, mine, self.rank), dist.P2POp(dist.irecv, x, self.rank)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        self.same(x, torch.arange(10.0))

    def test_receive_from_any_source(self):
        if self.rank == 0:
            sources = set()
            for _ in range(self.world_size - 1):
                x = torch.empty(3, device=self.device)
                source = dist.recv(x)
                assert x.tolist() == [float(source)] * 3
                sources.add(source)
            assert sources == set(range(1, self.world_size))
        else:
            dist.send(torch.full((3,), float(self.rank), device=self.device), 0)

    def test_groups(self):
        pair = dist.new_group([0, 1])
        if self.rank < 2:
            x = torch.ones(4, device=self.device)
            dist.all_reduce(x, group=pair)
            assert x.tolist() == [2.0] * 4
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("kunlun", (self.world_size // 2, 2), mesh_dim_names=("a", "b"))
        x = torch.full((4,), float(self.rank), device=self.device)
        dist.all_reduce(x, group=mesh.get_group("b"))
        first = self.rank // 2 * 2
        assert x.tolist() == [2.0 * first + 1] * 4

    def test_two_groups_in_opposite_order(self):
        first, second = dist.new_group(), dist.new_group()
        for group in (first, second):
            dist.barrier(group)  # makes the communicators, which all ranks do in the same order
        a, b = (torch.full((40000,), self.rank + 1.0, device=self.device) for _ in range(2))
        order = [(first, a), (second, b)] if self.rank == 0 else [(second, b), (first, a)]
        for work in [dist.all_reduce(x, group=group, async_op=True) for group, x in order]:
            work.wait()
        total = float(sum(range(1, self.world_size + 1)))
        assert a.unique().tolist() == [total]
        assert b.unique().tolist() == [total]

    def test_barriers(self):
        dist.barrier()
        dist.barrier(async_op=True).wait()
        self.backend.monitored_barrier(timeout=timedelta(seconds=20))

    def test_halves_are_rounded_once(self):
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.randn(100000, generator=generator).bfloat16() for _ in range(self.world_size)]
        x = inputs[self.rank].to(self.device)
        dist.all_reduce(x)
        exact = torch.stack([y.double() for y in inputs]).sum(0)
        unit = torch.ldexp(torch.ones((), dtype=torch.float64), torch.frexp(exact).exponent.clamp(min=-125) - 8)
        assert ((x.cpu().double() - exact).abs() / unit).max() <= 0.51
