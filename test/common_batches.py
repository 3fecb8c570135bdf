"""Batches of sends and receives that every rank runs, whatever the chip."""

import pytest
import torch
import torch.distributed as dist
from common_group import GroupTest, sample


class Batches(GroupTest):
    """Each method is a test; see GroupTest."""

    def exchange(self, sends: list[tuple[torch.Tensor, int]], receives: list[tuple[torch.Tensor, int]]) -> None:
        batch = [dist.P2POp(dist.isend, tensor, peer) for tensor, peer in sends]
        batch += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in receives]
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    def test_ring_with_several_sends_to_each(self):
        for turn in range(3):
            sends, receives, expected = [], [], []
            for peer in range(self.world_size):
                for i in range(1 if peer == self.rank else 3):
                    count, seed = 5 + 100 * i, 10 * turn + i
                    sends.append((sample(torch.float32, count, self.rank, seed).to(self.device), peer))
                    receives.append((torch.empty(count, device=self.device), peer))
                    expected.append(sample(torch.float32, count, peer, seed))
            self.exchange(sends, receives)
            for (tensor, _), values in zip(receives, expected, strict=True):
                self.same(tensor, values)
            dist.barrier()
            self.backend.monitored_barrier()

    def test_several_sends_to_oneself(self):
        sent = [sample(torch.int64, 6, self.rank, seed=i).to(self.device) for i in range(3)]
        received = [torch.empty(6, dtype=torch.int64, device=self.device) for _ in range(3)]
        self.exchange([(tensor, self.rank) for tensor in sent], [(tensor, self.rank) for tensor in received])
        for i, tensor in enumerate(received):
            self.same(tensor, sample(torch.int64, 6, self.rank, seed=i))

    def test_batch_that_the_chip_refuses(self):
        """Nothing of it takes place, and nothing of it is left for the next."""
        after, before = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        good, target = torch.full((3,), float(self.rank), device=self.device), torch.zeros(3, device=self.device)
        bad = torch.empty(4, dtype=torch.float4_e2m1fn_x2, device=self.device)
        for _ in range(2):
            with pytest.raises(TypeError, match="cannot cross the chip interface"):
                self.exchange([(good, after), (bad, after)], [(target, before)])
        self.same(target, torch.zeros(3))
        self.exchange([(good, after)], [(target, before)])
        self.same(target, torch.full((3,), float(before)))

    def test_batch_with_a_call_that_raises(self):
        """torch leaves the batch open then; what follows is none of it."""
        group, after = dist.group.WORLD, (self.rank + 1) % self.world_size
        unusable = torch.ones(4, 4, device=self.device).t()[1:]
        for call in (lambda: dist.isend(unusable, after), lambda: dist.broadcast(unusable, 0)):
            started = torch.ones(3, device=self.device)
            group._start_coalescing(self.device)
            dist.broadcast(started, 0)
            with pytest.raises(ValueError, match="must be contiguous"):
                call()
            tensor = torch.full((1000,), float(self.rank), device=self.device)
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            self.same(tensor, torch.full((1000,), float(sum(range(self.world_size)))))
            torch.kunlun.synchronize()
            assert work.is_completed()
            with pytest.raises(RuntimeError, match="endCoalescing without startCoalescing"):
                group._end_coalescing(self.device)

    def test_batch_in_which_something_else_raises(self):
        """torch leaves it open, and the group cannot know. Its transfers do not take place, the next batch's do."""
        after, before = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
        good, target = torch.full((3,), float(self.rank), device=self.device), torch.zeros(3, device=self.device)
        never = torch.zeros(3, device=self.device)
        for with_collective in (False, True):
            reduced = torch.ones(3, device=self.device)
            with pytest.raises(ZeroDivisionError), dist._coalescing_manager(device=self.device):
                if with_collective:
                    dist.broadcast(reduced, 0)
                dist.isend(good, after)
                dist.irecv(never, before)
                raise ZeroDivisionError
            self.exchange([(good, after)], [(target, before)])
            self.same(target, torch.full((3,), float(before)))
            self.same(never, torch.zeros(3))
            self.same(reduced, torch.ones(3))
            target.zero_()
            dist.barrier()
        group = dist.group.WORLD
        group._start_coalescing(self.device)
        group._start_coalescing(self.device)
        group._end_coalescing(self.device)
        with pytest.raises(RuntimeError, match="batches do not nest"):
            group._end_coalescing(self.device)

    def test_coalesced_reductions_of_which_one_is_refused(self):
        """The one before it goes on, and its tensors stay."""
        good = torch.ones(5, device=self.device)
        bad = torch.empty(4, dtype=torch.float4_e2m1fn_x2, device=self.device)
        options = dist.AllreduceCoalescedOptions()
        options.asyncOp = True
        with pytest.raises(TypeError, match="cannot cross the chip interface"):
            self.backend.allreduce_coalesced([good, bad], options)
        dist.all_reduce(good)  # behind it, as all operations of a group
        self.same(good, torch.full((5,), float(self.world_size**2)))
