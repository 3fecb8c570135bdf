# `python tools/bench_overlap.py`: an asynchronous all_reduce over a slow link, beside the computation that hides it.
"""The link of the simulated chip is made as slow as it takes for the all_reduce to last as long as the computation. It
waits without a core, so the two together should last hardly longer than the longer of them. Medians of the slowest
rank; --trace writes when each of the two ran, for chrome://tracing or ui.perfetto.dev."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

BYTES = 16 << 20
BAR = 1.15


class Bench:
    def __init__(self, milliseconds: float):
        self.buffer = torch.zeros(BYTES // 4, device="kunlun")
        self.matrix = torch.randn(256, 256, device="kunlun") / 16
        self.side = torch.kunlun.Stream()
        self.products = 1
        self.products = max(1, int(milliseconds / 1e3 / self.time(self.compute)))

    def compute(self) -> None:
        x = self.matrix
        for _ in range(self.products):
            x = x @ self.matrix

    def all_reduce(self) -> None:
        dist.all_reduce(self.buffer, async_op=True).wait()

    def both(self) -> None:
        work = dist.all_reduce(self.buffer, async_op=True)
        self.compute()
        work.wait()

    def time(self, run, rounds: int = 5) -> float:
        """Seconds on this rank."""
        run()
        times = []
        for _ in range(rounds):
            torch.kunlun.synchronize()
            dist.barrier()
            start = time.perf_counter()
            run()
            torch.kunlun.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def slowest(self, run) -> float:
        seconds = torch.tensor([self.time(run)], dtype=torch.float64, device="kunlun")
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    def trace(self, rank: int) -> list[dict]:
        """When each of the two ran, by events on their streams."""
        marks = {name: torch.kunlun.Event(enable_timing=True) for name in ("start", "computed", "reduced")}
        dist.barrier()
        marks["start"].record()
        work = dist.all_reduce(self.buffer, async_op=True)
        self.compute()
        marks["computed"].record()
        with torch.kunlun.stream(self.side):
            work.wait()
            marks["reduced"].record()
        torch.kunlun.synchronize()
        common = {"ph": "X", "pid": rank, "ts": 0}
        return [
            common | {"name": name, "tid": name, "dur": marks["start"].elapsed_time(marks[end]) * 1e3}
            for name, end in ((f"{self.products} matrix products", "computed"), ("all_reduce", "reduced"))
        ]


def rank_main(rank: int, size: int, folder: str, options: argparse.Namespace) -> None:
    from torch_xpu_kunlun import sim

    torch.set_num_threads(1)
    torch.kunlun.set_device(rank)
    dist.init_process_group("xccl", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    bench = Bench(options.milliseconds)
    compute = bench.slowest(bench.compute)
    # Of two ranks each reads one half of the other's buffer and writes the other one.
    sim.set_link_speed(int(BYTES / compute))
    cpu = time.process_time()
    reduce = bench.slowest(bench.all_reduce)
    cpu = (time.process_time() - cpu) / 6
    both = bench.slowest(bench.both)
    events = [None] * size
    dist.all_gather_object(events, bench.trace(rank))
    if rank == 0:
        result = {"compute_ms": compute * 1e3, "all_reduce_ms": reduce * 1e3, "all_reduce_cpu_ms": cpu * 1e3}
        result |= {"both_ms": both * 1e3, "ratio": both / max(compute, reduce)}
        together = [event for of_rank in events for event in of_rank]
        Path(f"{folder}/result.json").write_text(json.dumps({"result": result, "events": together}))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", type=float, default=200, help="how long the computation lasts, about")
    parser.add_argument("--trace", type=Path, help="where to write the trace")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    import torch_xpu_kunlun  # noqa: F401 - registers the device
    from torch_xpu_kunlun import _C

    info = _C._get_chip_info()
    if info["driver"] != "sim":
        sys.exit("only the simulated chip can slow down its links")
    print(f"chip: {info['driver']} {info['driver_version']}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (2, folder, options), nprocs=2)
        outcome = json.loads(Path(f"{folder}/result.json").read_text())
    r = outcome["result"]
    print(
        f"computation {r['compute_ms']:.1f} ms, all_reduce of 16 MB {r['all_reduce_ms']:.1f} ms"
        f" (CPU {r['all_reduce_cpu_ms']:.1f} ms), both {r['both_ms']:.1f} ms:"
        f" {r['ratio']:.2f}x the longer {'ok' if r['ratio'] <= BAR else 'ABOVE'} (bar {BAR}x)"
    )
    if options.trace:
        options.trace.write_text(json.dumps({"traceEvents": outcome["events"]}))
    if options.json:
        options.json.write_text(json.dumps(r, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
