# Random work from several threads on the streams of two devices, compared with the CPU bit for bit.
#
#   python tools/stress_device.py [--seconds 600] [--threads 2] [--seed 1]
#
# Each thread goes on with a handful of tensors: operators of every tier, views and in-place writes, copies between
# devices, memory that is given back while the chip still works on it. Threads also hand tensors to each other, with an
# event and record_stream. One kernel thread on both sides, so that results have to be equal.
from __future__ import annotations

import argparse
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

COLUMNS = 24
KEPT = 6  # tensors that a thread goes on with


@dataclass
class Pair:
    """A tensor on a device, with the stream that it was last used on, and what it must be."""

    device: torch.Tensor
    host: torch.Tensor
    stream: torch.Stream


def rows(tensor: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Indices into `of`, made from the contents of `tensor`, on its device."""
    return (tensor.flatten()[:8].abs() * 7).long() % of.size(0)


def written_in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a = a.clone(memory_format=torch.contiguous_format)
    a[1:, ::2].mul_(0.5)
    a.t()[3].add_(b[0, 0])
    a.view(-1)[5:COLUMNS].copy_(b.reshape(-1)[: COLUMNS - 5])
    return a


def conjugated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(a.contiguous().view(-1, COLUMNS // 2, 2)).conj() * (1 + 1j)
    return torch.view_as_real(pairs.resolve_conj()).reshape_as(a)


# Of one or two float tensors with COLUMNS columns; the result has COLUMNS columns too.
OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b[:1],
    "mul": lambda a, b: a * b[0],
    "where": lambda a, b: torch.where(a > b[0, 0], a, -a),
    "softmax": lambda a, b: a.softmax(1) * 4,
    "mm": lambda a, b: torch.mm(a, torch.mm(b.t(), b).tanh()),
    "layer norm": lambda a, b: torch.nn.functional.layer_norm(a, (COLUMNS,), b[0], b[-1]),
    "cumsum": lambda a, b: a.cumsum(1) / COLUMNS,
    "gather": lambda a, b: a.index_select(0, rows(b, a)),
    "index": lambda a, b: a[rows(a, a)],
    "cat": lambda a, b: torch.cat((a[:9], b[:9])),
    "sort": lambda a, b: a.sort(1).values,
    "topk": lambda a, b: a.topk(COLUMNS, 1).values,
    "nonzero": lambda a, b: a[torch.nonzero(a[:, 0] >= a[:, 0].min()).flatten()],
    "half": lambda a, b: (a.half() + b[0].half()).float(),
    "integers": lambda a, b: (a.mul(100).int() % 17).float(),
    "complex": conjugated,
    "in place": written_in_place,
    "transposed": lambda a, b: a.t().contiguous().t(),
    "repeat": lambda a, b: a.repeat_interleave(2, 0)[:40],
    "norm": lambda a, b: a / (torch.linalg.vector_norm(a) + 1),
}


class Mismatch(AssertionError):
    """A value differs from the CPU's; the text says which."""


class Worker:
    """One thread's work."""

    def __init__(self, number: int, seed: int, streams: list[torch.Stream], post: queue.SimpleQueue) -> None:
        self.random = random.Random(f"{seed}-{number}")
        self.generator = torch.Generator().manual_seed(seed * 1000 + number)
        self.streams = streams
        self.post = post
        self.kept: list[Pair] = []
        self.history: list[str] = []
        self.compared = 0

    def fresh(self) -> Pair:
        host = torch.randn(self.random.randint(9, 40), COLUMNS, generator=self.generator)
        return Pair(host.to("kunlun"), host, torch.kunlun.current_stream())

    def brought(self, pair: Pair, stream: torch.Stream) -> torch.Tensor:
        """The device tensor, usable on `stream`."""
        if pair.stream == stream:
            return pair.device
        stream.wait_stream(pair.stream)
        # As on CUDA, a copy to another device runs on the current stream of the source's device.
        elsewhere = pair.device.device != stream.device
        pair.device.record_stream(torch.kunlun.current_stream(pair.device.device) if elsewhere else stream)
        return pair.device.to(stream.device, non_blocking=True) if elsewhere else pair.device

    def compare(self, pair: Pair) -> None:
        with torch.kunlun.device(pair.device.device), torch.kunlun.stream(pair.stream):
            actual = pair.device.cpu()
        if not torch.equal(actual, pair.host):
            wrong = (actual != pair.host).sum().item()
            apart = (actual - pair.host).abs().max().item()
            raise Mismatch(
                f"{wrong} of {actual.numel()} values differ from the CPU's, by {apart:g} at most, "
                f"after {self.history[-12:]}"
            )
        self.compared += 1

    def step(self) -> None:
        stream = self.random.choice(self.streams)
        with torch.kunlun.device(stream.device), torch.kunlun.stream(stream):
            if len(self.kept) < KEPT:
                self.kept.append(self.fresh())
                return
            name = self.random.choice(list(OPERATIONS))
            first, second = self.random.sample(self.kept, 2)
            self.history.append(f"{name} on {stream.device}")
            operation = OPERATIONS[name]
            device = operation(self.brought(first, stream), self.brought(second, stream)).clamp(-8, 8)
            host = operation(first.host, second.host).clamp(-8, 8)
            result = Pair(device, host, stream)
        self.kept[self.random.randrange(KEPT)] = result  # the tensor before it is freed, its work may be under way
        chance = self.random.random()
        if chance < 0.2:
            self.compare(result)
        elif chance < 0.3:
            self.post.put(result)
        elif chance < 0.4:
            try:
                self.kept[self.random.randrange(KEPT)] = self.post.get_nowait()
            except queue.Empty:
                self.kept.pop(self.random.randrange(KEPT))


def run(seconds: float, threads: int = 2, seed: int = 1) -> int:
    """Works for `seconds`; returns how many tensors were compared. Raises Mismatch, or whatever failed first."""
    if torch.kunlun.device_count() < 2:
        raise RuntimeError("two devices are needed; KUNLUN_SIM_DEVICES sets their number")
    torch.set_num_threads(1)
    streams = [torch.kunlun.Stream(device=device) for device in (0, 1) for _ in range(2)]
    post: queue.SimpleQueue = queue.SimpleQueue()
    workers = [Worker(number, seed, streams, post) for number in range(threads)]
    failures: list[BaseException] = []
    deadline = time.monotonic() + seconds

    def work(worker: Worker) -> None:
        try:
            with torch.no_grad():
                while time.monotonic() < deadline and not failures:
                    worker.step()
                for pair in worker.kept:
                    worker.compare(pair)
        except BaseException as failure:
            failures.append(failure)

    running = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return sum(worker.compared for worker in workers)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random work on two devices, compared with the CPU.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    compared = run(options.seconds, options.threads, options.seed)
    print(f"{options.seconds:g} seconds, {options.threads} threads, seed {options.seed}: {compared} tensors, all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
