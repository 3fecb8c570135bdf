"""Training with every kind of parallelism that torch has, against training in one process. Run by ranks."""

import copy
import tempfile

import torch
import torch.distributed as dist
from torch import nn

STEPS = 5
BATCH = 8


class Model(nn.Module):
    def __init__(self, unused: bool = False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)
        self.unused = nn.Linear(16, 16) if unused else None

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


class Parallel:
    """Each method trains on all ranks and compares with `reference`, which every rank computes for itself."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.device = torch.device("kunlun", torch.kunlun.current_device())
        torch.manual_seed(0)
        self.inputs = torch.randn(STEPS, BATCH, 16)
        self.targets = torch.randn(STEPS, BATCH, 4)

    @classmethod
    def methods(cls) -> list[str]:
        return [name for name in dir(cls) if name.startswith("test_")]

    def model(self, unused: bool = False) -> Model:
        torch.manual_seed(1)
        return Model(unused).to(self.device)

    def batch(self, step: int, part: bool = False):
        rows = slice(self.rank, None, self.size) if part else slice(None)
        return self.inputs[step, rows].to(self.device), self.targets[step, rows].to(self.device)

    def reference(self, optimizer=torch.optim.AdamW) -> tuple[list[float], Model]:
        model = self.model()
        step = optimizer(model.parameters(), lr=1e-2)
        return [self.train(model, step, i) for i in range(STEPS)], model

    def train(self, model, optimizer, index: int, part: bool = False) -> float:
        x, y = self.batch(index, part)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if part:
            dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss.item()

    def close(self, losses: list[float], expected: list[float], tolerance: float = 1e-6) -> None:
        for actual, wanted in zip(losses, expected, strict=True):
            assert abs(actual - wanted) <= tolerance * abs(wanted), (losses, expected)

    # ---- data parallel

    def test_ddp(self):
        model = nn.parallel.DistributedDataParallel(self.model())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.close([self.train(model, optimizer, i, part=True) for i in range(STEPS)], self.reference()[0])

    def test_ddp_with_unused_parameters_and_small_buckets(self):
        model = nn.parallel.DistributedDataParallel(
            self.model(unused=True), find_unused_parameters=True, bucket_cap_mb=0.001, gradient_as_bucket_view=True
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.close([self.train(model, optimizer, i, part=True) for i in range(STEPS)], self.reference()[0])

    def test_ddp_accumulates_gradients(self):
        model = nn.parallel.DistributedDataParallel(self.model())
        x, y = self.batch(0, part=True)
        half = len(x) // 2
        with model.no_sync():
            (nn.functional.mse_loss(model(x[:half]), y[:half]) / 2).backward()
        (nn.functional.mse_loss(model(x[half:]), y[half:]) / 2).backward()
        whole = self.model()
        nn.functional.mse_loss(whole(self.batch(0)[0]), self.batch(0)[1]).backward()
        for mine, expected in zip(model.module.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-5, atol=1e-7)

    def test_ddp_with_communication_hooks(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        expected = self.reference()[0]
        for hook, tolerance in ((default_hooks.allreduce_hook, 1e-6), (default_hooks.fp16_compress_hook, 2e-2)):
            model = nn.parallel.DistributedDataParallel(self.model())
            model.register_comm_hook(None, hook)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            losses = [self.train(model, optimizer, i, part=True) for i in range(STEPS)]
            self.close(losses, expected, tolerance)

    def test_zero_redundancy_optimizer(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = nn.parallel.DistributedDataParallel(self.model())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
        self.close([self.train(model, optimizer, i, part=True) for i in range(STEPS)], self.reference()[0])

    def test_ddp_with_sync_batch_norm(self):
        torch.manual_seed(2)
        whole = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).to(self.device)
        split = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
        split = nn.parallel.DistributedDataParallel(split)
        results = []
        for model, part in ((whole, False), (split, True)):
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
            results.append([self.train(model, optimizer, i, part) for i in range(STEPS)])
        self.close(results[1], results[0])
        for mine, expected in zip(split.module.buffers(), whole.buffers(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)

    # ---- sharded

    def sharded(self, **arguments):
        from torch.distributed.fsdp import fully_shard

        model = self.model()
        for layer in model.layers:
            fully_shard(layer, **arguments)
        return fully_shard(model, **arguments)

    def test_fsdp2(self):
        model = self.sharded()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.close([self.train(model, optimizer, i, part=True) for i in range(STEPS)], self.reference()[0])
        clipped = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert clipped.full_tensor().isfinite()

    def test_fsdp2_in_mixed_precision(self):
        from torch.distributed.fsdp import MixedPrecisionPolicy

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = self.sharded(mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = [self.train(model, optimizer, i, part=True) for i in range(STEPS)]
        self.close(losses, self.reference()[0], tolerance=3e-2)

    def test_fsdp2_with_activation_checkpointing(self):
        from torch.distributed._composable import checkpoint
        from torch.distributed.fsdp import fully_shard

        model = self.model()
        for layer in model.layers:
            checkpoint(layer)
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.close([self.train(model, optimizer, i, part=True) for i in range(STEPS)], self.reference()[0])

    def test_sharded_checkpoint(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder, src=0)
        model = self.sharded()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.train(model, optimizer, 0, part=True)
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
        expected = self.train(model, optimizer, 1, part=True)

        model = self.sharded()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        assert self.train(model, optimizer, 1, part=True) == expected

    # ---- tensors and layers over ranks

    def test_dtensor(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("kunlun", (self.size,))
        a, b = torch.randn(8, 12), torch.randn(12, 8)
        x = distribute_tensor(a.to(self.device), mesh, [Shard(0)])
        y = distribute_tensor(b.to(self.device), mesh, [Shard(1)])
        torch.testing.assert_close((x @ y).full_tensor().cpu(), a @ b)
        moved = x.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])
        assert torch.equal(moved.to_local().cpu(), a)

    def test_tensor_parallel(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("kunlun", (self.size,))
        model = self.model()
        for layer in model.layers:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        # Its parameters are of two kinds, which cannot be updated in one call.
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=False)
        losses = [self.train(model, optimizer, i) for i in range(STEPS)]
        self.close(losses, self.reference(torch.optim.SGD)[0], tolerance=1e-6)

    def test_pipeline(self):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        whole = self.model()
        stages = [whole.layers[0], nn.Sequential(whole.layers[1], whole.norm, whole.head)]
        reference = copy.deepcopy(nn.Sequential(*stages))
        x, y = self.batch(0)
        expected = nn.functional.mse_loss(reference(x), y)
        expected.backward()
        for schedule in (ScheduleGPipe, Schedule1F1B):
            whole.zero_grad()
            stage = PipelineStage(stages[self.rank], self.rank, 2, self.device)
            runner = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
            losses: list[torch.Tensor] = []
            if self.rank == 0:
                runner.step(x)
            else:
                runner.step(target=y, losses=losses)
                torch.testing.assert_close(torch.stack(losses).mean(), expected, rtol=1e-6, atol=0)
            for mine, wanted in zip(stages[self.rank].parameters(), reference[self.rank].parameters(), strict=True):
                torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-5, atol=1e-7)
