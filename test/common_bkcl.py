"""What every rank runs over the vendor's library of collectives, or rather over its stand-in."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from common_batches import Batches
from common_group import ALL_DTYPES, COMPLEX, FLOAT8, FLOATS, sample

COUNTS = [0, 1, 7, 3001]
EXACT = [torch.uint8, torch.int32, torch.int64]
SUM, AVG, PRODUCT, MIN, MAX = (getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"))
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
COMBINE = {SUM: torch.add, AVG: torch.add, PRODUCT: torch.mul, MIN: torch.minimum, MAX: torch.maximum}

# What it cannot reduce, and what the error advises.
REFUSED = [
    *[(dtype, SUM, "convert the tensor to int32") for dtype in (torch.int8, torch.int16, torch.uint16)],
    (torch.int8, MIN, "convert the tensor to int32"),
    (torch.uint32, MAX, "convert the tensor to int64"),
    (torch.uint64, MIN, "convert the tensor to int64"),
    (torch.int32, AVG, "reduce with SUM and divide by the number of ranks"),
    (torch.bool, dist.ReduceOp.BXOR, "take the result modulo 2"),
    *[(torch.int64, op, "gather the tensors and combine them") for op in BITS],
    *[(dtype, SUM, "convert the tensor to bfloat16") for dtype in FLOAT8],
    (torch.float32, dist._make_nccl_premul_sum(2.0), "multiply the tensor by the factor and reduce with SUM"),
]


def reduced(dtype: torch.dtype, count: int, op, size: int) -> torch.Tensor:
    """What one process computes, wide and rounded once."""
    parts = [sample(dtype, count, rank) for rank in range(size)]
    if dtype == torch.bool:
        return torch.stack(parts).all(0) if op in (PRODUCT, MIN) else torch.stack(parts).any(0)
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
    total = parts[0].to(wide.get(dtype, dtype))
    for part in parts[1:]:
        total = COMBINE[op](total, part.to(total.dtype))
    if op == AVG:
        total = total / size
    return total.to(dtype)


class BkclCollectives(Batches):
    """Each method is a test; see GroupTest."""

    def on_device(self, dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
        return sample(dtype, count, self.rank, seed).to(self.device)

    def cases(self):
        for dtype in ALL_DTYPES:
            for count in COUNTS:
                yield dtype, count, [sample(dtype, count, rank) for rank in range(self.world_size)]

    def joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """torch.cat, which some dtypes do not have."""
        joined = torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype)
        at = 0
        for part in parts:
            joined[at : at + part.numel()] = part
            at += part.numel()
        return joined

    def test_all_reduce(self):
        cases = [(dtype, op) for dtype in (*EXACT, *FLOATS) for op in (SUM, PRODUCT, MIN, MAX)]
        cases += [(dtype, AVG) for dtype in (*FLOATS, *COMPLEX)] + [(dtype, SUM) for dtype in COMPLEX]
        cases += [(torch.bool, op) for op in (SUM, PRODUCT, MIN, MAX)]
        for dtype, op in cases:
            for count in COUNTS:
                tensor = self.on_device(dtype, count)
                dist.all_reduce(tensor, op)
                expected = reduced(dtype, count, op, self.world_size)
                if op == AVG:  # torch multiplies by the reciprocal
                    torch.testing.assert_close(tensor.cpu(), expected)
                else:
                    self.same(tensor, expected)

    def test_unsigned_sums_wrap_around(self):
        for dtype, signed in ((torch.uint8, torch.int8), (torch.uint32, torch.int32), (torch.uint64, torch.int64)):
            high = torch.tensor([-1, -2 - self.rank], dtype=signed)
            tensor = high.view(dtype).to(self.device)
            dist.all_reduce(tensor)
            total = sum(torch.tensor([-1, -2 - rank], dtype=signed) for rank in range(self.world_size))
            self.same(tensor, total.view(dtype))

    def test_refused_reductions(self):
        for dtype, op, advice in REFUSED:
            tensor = self.on_device(dtype, 4)
            for call in (dist.all_reduce, lambda t, op: dist.reduce(t, 0, op)):
                with pytest.raises(NotImplementedError, match=f"cannot reduce .*{advice}"):
                    call(tensor, op)
            self.same(tensor, sample(dtype, 4, self.rank))

    def test_what_is_not_defined(self):
        for dtype, op in ((torch.float32, BITS[0]), (torch.bool, AVG)):
            with pytest.raises(TypeError, match="is not defined for"):
                dist.all_reduce(self.on_device(dtype, 4), op)

    def test_reduce(self):
        for dtype in (torch.int64, torch.bfloat16, torch.complex128):
            for root in range(self.world_size):
                tensor = self.on_device(dtype, 1001)
                dist.reduce(tensor, root)
                if self.rank == root:
                    self.same(tensor, reduced(dtype, 1001, SUM, self.world_size))

    def test_reduce_scatter(self):
        n = self.world_size
        for dtype in (torch.int32, torch.float16, torch.complex64):
            tensor = self.on_device(dtype, 12 * n)
            whole = reduced(dtype, 12 * n, SUM, n)
            mine = whole[12 * self.rank : 12 * (self.rank + 1)]
            output = torch.empty(12, dtype=dtype, device=self.device)
            dist.reduce_scatter_single(output, tensor)
            self.same(output, mine)
        parts = [self.on_device(torch.float32, rank + 1, seed=rank) for rank in range(n)]  # of different sizes
        output = torch.empty(self.rank + 1, device=self.device)
        dist.reduce_scatter(output, parts)
        self.same(output, sum(sample(torch.float32, self.rank + 1, rank, self.rank) for rank in range(n)))

    def test_broadcast(self):
        for dtype, count, parts in self.cases():
            tensor = self.on_device(dtype, count)
            root = count % self.world_size
            dist.broadcast(tensor, root)
            self.same(tensor, parts[root])

    def test_all_gather(self):
        for dtype, count, parts in self.cases():
            output = torch.empty(count * self.world_size, dtype=dtype).to(self.device)
            dist.all_gather_single(output, self.on_device(dtype, count))
            self.same(output, self.joined(parts))
        uneven = [torch.empty(3 * rank + 1, device=self.device) for rank in range(self.world_size)]
        dist.all_gather(uneven, self.on_device(torch.float32, 3 * self.rank + 1))
        for rank, tensor in enumerate(uneven):
            self.same(tensor, sample(torch.float32, 3 * rank + 1, rank))

    def test_all_to_all(self):
        n = self.world_size
        for dtype in ALL_DTYPES:
            # Rank a sends a + 2 * b elements to rank b; some send nothing.
            sent = [self.rank + 2 * rank for rank in range(n)]
            received = [rank + 2 * self.rank for rank in range(n)]
            output = torch.empty(sum(received), dtype=dtype).to(self.device)
            dist.all_to_all_single(output, self.on_device(dtype, sum(sent)), received, sent)
            parts = []
            for rank in range(n):
                start = sum(rank + 2 * before for before in range(self.rank))
                whole = sample(dtype, sum(rank + 2 * to for to in range(n)), rank)
                parts.append(whole[start : start + rank + 2 * self.rank])
            self.same(output, self.joined(parts))

    def test_many_all_to_all_in_flight(self):
        """Their counts lie in device memory, which must not be used again too early."""
        n = self.world_size
        works, outputs = [], []
        for turn in range(8):
            tensor = torch.full((n * (turn + 1),), 10 * turn + self.rank).to(self.device)
            outputs.append(torch.empty_like(tensor))
            works.append(dist.all_to_all_single(outputs[-1], tensor, async_op=True))
        for turn, (work, output) in enumerate(zip(works, outputs, strict=True)):
            work.wait()
            self.same(output, (10 * turn + torch.arange(n)).repeat_interleave(turn + 1))

    def test_gather_and_scatter(self):
        for dtype in ALL_DTYPES:
            for root in range(self.world_size):
                mine = self.on_device(dtype, 9)
                here = self.rank == root
                parts = [torch.empty_like(mine) for _ in range(self.world_size)] if here else None
                dist.gather(mine, parts, root)
                for rank, part in enumerate(parts or []):
                    self.same(part, sample(dtype, 9, rank))
                output = torch.empty_like(mine)
                sent = [sample(dtype, 9, rank, seed=1).to(self.device) for rank in range(self.world_size)]
                if dtype not in FLOAT8:  # which the host, where the parts are joined, cannot concatenate
                    dist.scatter(output, sent if here else None, root)
                    self.same(output, sample(dtype, 9, self.rank, seed=1))

    def test_send_and_receive(self):
        for dtype in ALL_DTYPES:
            if self.rank == 0:
                dist.send(self.on_device(dtype, 77), 1)
            elif self.rank == 1:
                tensor = torch.empty(77, dtype=dtype).to(self.device)
                dist.recv(tensor, 0)
                self.same(tensor, sample(dtype, 77, 0))

    def test_operations_of_two_streams_keep_their_order(self):
        total = torch.zeros(1000, device=self.device)
        works = []
        for turn in range(10):
            tensor = torch.full((1000,), float(turn + self.rank)).to(self.device)
            works.append((dist.all_reduce(tensor, async_op=turn % 2 == 0), tensor))
        for work, tensor in works:
            if work is not None:
                work.wait()
            total += tensor
        n = self.world_size
        self.same(total, torch.full((1000,), float(sum(n * turn + sum(range(n)) for turn in range(10)))))

    def test_sends_to_oneself_without_a_receive(self):
        sent, received = torch.ones(6, device=self.device), torch.zeros(5, device=self.device)
        short = [(received, self.rank)]
        for receives, text in (([], "receives 0 times from itself"), (short, "its receive expects 20")):
            with pytest.raises(ValueError, match=text):
                self.exchange([(sent, self.rank)], receives)
        self.same(received, torch.zeros(5))

    def test_errors_are_their_own(self):
        """What marks of operations ask of the chip does not show in a later error."""

        def wrong() -> str:
            with pytest.raises(NotImplementedError) as caught:
                torch.kunlun.Event(enable_timing=True).record()
            return str(caught.value)

        first = wrong()
        dist.all_reduce(self.on_device(torch.float32, 3))
        assert wrong() == first

    def test_futures_and_completion(self):
        tensor = self.on_device(torch.float32, 10)
        work = dist.all_reduce(tensor, async_op=True)
        (result,) = work.get_future().wait()
        self.same(result, reduced(torch.float32, 10, SUM, self.world_size))
        torch.kunlun.synchronize()
        assert work.is_completed()
        assert work.exception() is None

    def test_objects_and_groups(self):
        objects = [None] * self.world_size
        dist.all_gather_object(objects, {"rank": self.rank})
        assert objects == [{"rank": rank} for rank in range(self.world_size)]
        group = dist.new_group([0, 1])
        if self.rank < 2:
            tensor = self.on_device(torch.float32, 3)
            dist.all_reduce(tensor, group=group)
            self.same(tensor, reduced(torch.float32, 3, SUM, 2))
            dist.destroy_process_group(group)

    def test_barriers(self):
        dist.barrier()
        self.backend.monitored_barrier()

    def test_what_the_library_lacks(self):
        work = dist.all_reduce(self.on_device(torch.float32, 2), async_op=True)
        work.wait(timeout=timedelta(seconds=60))
        with pytest.raises(NotImplementedError, match="has no receive from any source"):
            dist.recv(torch.empty(2, device=self.device))
        with pytest.raises(NotImplementedError, match="has no host calls in stream order"):
            work._get_duration()

    def test_a_group_after_refusals(self):
        """Whatever was refused above has not disturbed the communicator."""
        tensor = self.on_device(torch.float32, 100)
        dist.all_reduce(tensor)
        self.same(tensor, reduced(torch.float32, 100, SUM, self.world_size))
