"""What the tests of collectives share: samples, and methods that every rank runs."""

import json
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from common_ranks import Rank, Ranks

INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
ALL_DTYPES = [torch.bool, *INTEGERS, *FLOATS, *FLOAT8, *COMPLEX]

# Below and above what travels with the call, and not a multiple of anything.
COUNTS = [0, 1, 7, 1000, 30011]


class GroupTest:
    """Tests that every rank runs, each method on its own, in one group of the default backend for kunlun."""

    def __init__(self, rank: int, world_size: int):
        self.rank, self.world_size = rank, world_size

    @property
    def device(self) -> torch.device:
        return torch.device("kunlun", torch.kunlun.current_device())

    @property
    def backend(self):
        return dist.group.WORLD._get_backend(torch.device("kunlun"))

    def same(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Equal to the last bit."""
        actual = actual.cpu()
        assert actual.shape == expected.shape, (actual, expected)
        assert actual.dtype == expected.dtype, (actual, expected)
        if actual.numel() == 0:
            return
        if actual.dtype != torch.bool:
            actual, expected = (x.contiguous().flatten().view(torch.uint8) for x in (actual, expected))
        assert torch.equal(actual, expected), (actual, expected)

    @classmethod
    def methods(cls) -> list[str]:
        return [name for name in dir(cls) if name.startswith("test_") and getattr(cls, name) is not None]

    def run(self, path: str) -> None:
        """Runs every method and writes what failed. A rank that fails leaves the others waiting, so it stops there."""
        failures: dict[str, str] = {}
        for name in self.methods():
            try:
                getattr(self, name)()
                torch.kunlun.synchronize()
            except BaseException:
                failures[name] = traceback.format_exc()
            with open(f"{path}/{self.rank}.json", "w") as file:
                json.dump({"last": name, "failures": failures}, file)
            if failures:
                break


# One run serves all methods: starting ranks takes longer than most of them.
BODY = """
from {module} import {name}
start()
{name}(rank, size).run({folder!r})
dist.destroy_process_group()
"""


class Outcome:
    """What each rank says of the methods of a GroupTest, and how it ended."""

    def __init__(self, tests: type[GroupTest], ranks: Ranks, size: int, folder: Path):
        body = BODY.format(module=tests.__module__, name=tests.__name__, folder=str(folder))
        self.ended: list[Rank] = ranks.run(body, size=size)
        files = [folder / f"{rank}.json" for rank in range(size)]
        self.reports = [json.loads(file.read_text()) if file.exists() else None for file in files]

    def check(self, method: str) -> None:
        for rank, report in enumerate(self.reports):
            assert report is not None, f"rank {rank}:\n{self.ended[rank].err}"
            assert method not in report["failures"], f"rank {rank}:\n" + report["failures"][method]
            assert method <= report["last"], f"rank {rank} did not get here; its last test was {report['last']}"

    def check_end(self) -> None:
        for rank, end in enumerate(self.ended):
            assert end.code == 0, f"rank {rank}:\n{end.err}"


def sample(dtype: torch.dtype, count: int, rank: int, seed: int = 0) -> torch.Tensor:
    """The same on every rank that asks for it; small enough that no sum overflows."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if dtype in INTEGERS:
        low = 0 if dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else -30
        return torch.randint(low, 30, (count,), generator=generator).to(dtype)
    if dtype in COMPLEX:
        return torch.view_as_complex(torch.randn(count, 2, generator=generator, dtype=torch.float64)).to(dtype)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
