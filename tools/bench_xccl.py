# `python tools/bench_xccl.py`: time of collectives over XCCL on kunlun tensors against gloo on CPU tensors, same run.
"""Each time is the call plus the synchronisation of the device, ranks aligned by a barrier before it. The two backends
take turns in blocks of calls, of which the first few, cold after the other's turn, do not count. Printed are the median
of all calls, the ratio of these medians, and in brackets the lowest and highest ratio of two blocks that followed each
other. CPU time is that of all ranks together, for one operation. `--block 1` makes the backends alternate call by call,
so that every call is cold. One thread a rank."""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# What the project asks of itself on two ranks: all_reduce by size, the others at 1 MB.
BARS = {4 << 10: 10, 64 << 10: 15, 1 << 20: 15, 16 << 20: 8, 256 << 20: 5}
OTHERS_BAR = 10


def prepare(operation: str, count: int, dtype: torch.dtype, device: str, size: int):
    """A function that carries the operation out once; `count` elements are what each rank contributes."""
    x = torch.empty(count, dtype=dtype, device=device).zero_()  # sums of it stay what they are
    if operation == "all_reduce":
        return lambda: dist.all_reduce(x)
    if operation == "all_gather":
        whole = torch.empty(count * size, dtype=dtype, device=device)
        return lambda: dist.all_gather_into_tensor(whole, x)
    if operation == "reduce_scatter":
        part = torch.empty(count // size, dtype=dtype, device=device)
        return lambda: dist.reduce_scatter_tensor(part, x)
    y = torch.empty_like(x)
    return lambda: dist.all_to_all_single(y, x)


def measure(run, device: str, gloo: dist.ProcessGroup) -> tuple[float, float]:
    """Seconds of wall clock and of this process's CPU. Each backend aligns the ranks by its own barrier."""
    if device == "cpu":
        dist.barrier(group=gloo)
    else:
        dist.barrier(device_ids=[torch.kunlun.current_device()])
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    if device != "cpu":
        torch.kunlun.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def calls_for(nbytes: int) -> int:
    """Calls of one block that count."""
    return 12 if nbytes <= 1 << 20 else 4 if nbytes <= 16 << 20 else 1


def rank_main(rank: int, size: int, folder: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    if options.bind:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.kunlun.set_device(rank % torch.kunlun.device_count())
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(
        "cpu:gloo,kunlun:xccl", store=store, rank=rank, world_size=size, timeout=timedelta(minutes=5)
    )
    gloo = dist.new_group(backend="gloo")
    rows = []
    for operation in options.operations:
        for name in options.dtypes:
            for nbytes in options.sizes if operation == "all_reduce" else [n for n in options.sizes if n == 1 << 20]:
                rows.append(row(operation, name, nbytes, gloo, options))
                if rank == 0:
                    show(rows[-1])
    if rank == 0:
        Path(f"{folder}/rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def row(operation: str, dtype_name: str, nbytes: int, gloo: dist.ProcessGroup, options: argparse.Namespace) -> dict:
    dtype, size = DTYPES[dtype_name], dist.get_world_size()
    count = nbytes // dtype.itemsize
    runs = {device: prepare(operation, count, dtype, device, size) for device in ("cpu", "kunlun")}
    calls = options.block or calls_for(nbytes)
    cold = 0 if calls == 1 and options.block else 1 if calls == 1 else 2
    times: dict[str, list[tuple[float, float]]] = {device: [] for device in runs}
    for block in range(options.blocks + 1):
        for device, run in runs.items():
            taken = [measure(run, device, gloo) for _ in range(cold + calls)]
            if block > 0:  # the first warms up
                times[device] += taken[cold:]
    result = {"operation": operation, "dtype": dtype_name, "bytes": nbytes, "ranks": size, "blocks": options.blocks}
    medians = {}
    for device, name in (("cpu", "gloo"), ("kunlun", "xccl")):
        # The slowest rank of each call is what an operation took.
        mine = torch.tensor(times[device], dtype=torch.float64)
        all_ranks = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(all_ranks, mine, group=gloo)
        together = torch.stack(all_ranks)
        slowest = together[:, :, 0].max(dim=0).values
        medians[name] = [statistics.median(block) for block in slowest.view(-1, calls).tolist()]
        result[f"{name}_us"] = statistics.median(slowest.tolist()) * 1e6
        result[f"{name}_cpu_us"] = statistics.median(together[:, :, 1].sum(dim=0).tolist()) * 1e6
    result["ratio"] = result["gloo_us"] / result["xccl_us"]
    result["ratios"] = sorted(g / x for g, x in zip(medians["gloo"], medians["xccl"], strict=True))
    return result


def size_name(nbytes: int) -> str:
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"


def show(r: dict) -> None:
    bar = None
    if r["ranks"] == 2:
        bar = BARS.get(r["bytes"]) if r["operation"] == "all_reduce" else OTHERS_BAR
    elif r["operation"] == "all_reduce":
        bar = 1
    verdict = "" if bar is None else f"  {'ok' if r['ratio'] >= bar else 'BELOW'} (bar {bar}x)"
    print(
        f"{r['operation']:14} {r['dtype']:8} {size_name(r['bytes']):>7} {r['ranks']:2} ranks"
        f" | gloo {r['gloo_us']:11.1f} us, CPU {r['gloo_cpu_us']:11.1f}"
        f" | xccl {r['xccl_us']:11.1f} us, CPU {r['xccl_cpu_us']:11.1f} | {r['ratio']:6.1f}x"
        f" ({r['ratios'][0]:.1f} - {r['ratios'][-1]:.1f}){verdict}",
        flush=True,
    )


def plot(rows: list[dict], path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    for ranks in sorted({r["ranks"] for r in rows}):
        for dtype in sorted({r["dtype"] for r in rows}):
            chosen = [r for r in rows if (r["ranks"], r["dtype"], r["operation"]) == (ranks, dtype, "all_reduce")]
            for name in ("gloo", "xccl"):
                bandwidth = [r["bytes"] / r[f"{name}_us"] / 1e3 for r in chosen]
                axes.plot([r["bytes"] for r in chosen], bandwidth, marker="o", label=f"{name} {dtype}, {ranks} ranks")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="GB/s", title="all_reduce, simulated chip")
    axes.legend()
    figure.savefig(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=sorted(BARS), help="bytes of each rank")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--blocks", type=int, default=8, help="turns of each backend")
    parser.add_argument("--block", type=int, default=0, help="calls of a turn that count; 0: by size")
    parser.add_argument("--bind", action="store_true", help="each rank to one core, as MPI's launchers do")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--plot", type=Path, help="where to draw bandwidth over size; needs matplotlib")
    return parser.parse_args()


def main() -> int:
    options = parse()
    os.environ.setdefault("KUNLUN_SIM_DEVICES", str(max(options.ranks)))
    import torch_xpu_kunlun  # noqa: F401 - registers the device
    from torch_xpu_kunlun import _C

    if not _C._get_chip_info()["collectives"]:
        sys.exit("this chip's driver has no collectives")
    info = _C._get_chip_info()
    host = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"chip: {info['driver']} {info['driver_version']}; host: {host}")
    rows = []
    for size in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(rank_main, (size, folder, options), nprocs=size)
            rows += json.loads(Path(f"{folder}/rows.json").read_text())
    if options.json:
        options.json.write_text(json.dumps({"chip": info["driver"], "cores": os.cpu_count(), "rows": rows}, indent=1))
    if options.plot:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
