"""Runs code as the ranks of a group: processes that are forked from one that has imported torch."""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

from common_process import ForkingServer

TESTS = str(Path(__file__).parent)

# What every rank begins with. The body sees `rank`, `size`, `dist`, `torch`, `store` and `start()`.
RANKS = """
import json, os, signal, sys, time, traceback
import torch
import torch.distributed as dist
from datetime import timedelta

size, folder, body = {size}, {folder!r}, {body!r}
sys.path.insert(0, {tests!r})
os.environ["KUNLUN_SIM_DEVICES"] = "4"
processes = []
for rank in range(size):
    pid = os.fork()
    if pid == 0:
        processes = None
        break
    processes.append(pid)
if processes is None:
    for name, descriptor in (("out", 1), ("err", 2)):
        with open(f"{{folder}}/{{rank}}.{{name}}", "w") as file:
            os.dup2(file.fileno(), descriptor)
    store = dist.FileStore(f"{{folder}}/store", size)

    def start(backend="xccl", seconds=60, **arguments):
        os.environ["LOCAL_RANK"] = str(rank)
        torch.kunlun.set_device(rank % torch.kunlun.device_count())
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds), **arguments
        )
        return dist.group.WORLD

    if {exits}:
        # Ends like any program: the interpreter's own exit follows.
        exec(compile(body, "<rank>", "exec"), globals())
    else:
        # The end of an interpreter with torch takes longer than most tests.
        code = 0
        try:
            exec(compile(body, "<rank>", "exec"), globals())
        except BaseException:
            code = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
else:
    codes = [0] * size
    for index, pid in enumerate(processes):
        codes[index] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps(codes), flush=True)
    os._exit(0)
"""


@dataclass
class Rank:
    """How a rank ended and what it wrote."""

    code: int
    out: str
    err: str


class Ranks:
    """Runs bodies on several ranks, each body in a folder of its own below `folder`."""

    def __init__(self, server: ForkingServer, folder: Path):
        self.server, self.folder, self.runs = server, folder, 0

    def run(self, body: str, size: int = 2, exits: bool = False, **environment: str) -> list[Rank]:
        """One Rank for each; environment variables can be given. With `exits`, ranks end as programs do."""
        folder = self.folder / f"run{self.runs}"
        folder.mkdir()
        self.runs += 1
        code = RANKS.format(size=size, folder=str(folder), tests=TESTS, exits=exits, body=textwrap.dedent(body))
        done = self.server.run(code, folder, environment)
        assert done.returncode == 0, done.stderr
        codes = json.loads(done.stdout.splitlines()[-1])
        return [
            Rank(code, (folder / f"{rank}.out").read_text(), (folder / f"{rank}.err").read_text())
            for rank, code in enumerate(codes)
        ]

    def check(self, body: str, size: int = 2, exits: bool = False, **environment: str) -> list[Rank]:
        """The same, but every rank must end well."""
        ranks = self.run(body, size, exits, **environment)
        for index, rank in enumerate(ranks):
            assert rank.code == 0, f"rank {index} ended with {rank.code}:\n{rank.err}"
        return ranks
