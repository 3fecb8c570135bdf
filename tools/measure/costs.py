# Costs that have no CPU side: importing, one allocation, building.
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tools.measure.compare import Figure
from tools.measure.session import ROOT

# Imports torch first and reports what the extension adds to it.
IMPORT = """
import time
import torch
start = time.perf_counter()
import torch_xpu_kunlun
print(time.perf_counter() - start)
"""


class CostError(RuntimeError):
    """A measurement could not be made; the text says why."""


def output_of(command: list[str], **environment: str) -> str:
    """What `command` prints, or its own words in an error."""
    environment = {**os.environ, **environment}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise CostError(f"{' '.join(command[:3])} ... ended with code {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def import_time(rounds: int) -> Figure:
    """Seconds `import torch_xpu_kunlun` takes after `import torch`, each time in a fresh process."""
    command = [sys.executable, "-c", IMPORT]
    output_of(command, TORCH_DEVICE_BACKEND_AUTOLOAD="0")  # fills the file cache
    samples = [float(output_of(command, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) for _ in range(rounds)]
    return Figure("import torch_xpu_kunlun, beyond import torch", samples, "s", 0.3)


def allocator() -> Figure:
    """Seconds for one allocate and free from the cache, in C++."""
    from tools.build import native, sources
    from tools.build.toolchain import find_torch

    folder = native.build_folder(find_torch())
    objects = [folder / "obj" / (source.name + ".o") for source in sources.handwritten() if source.kind == "plain"]
    with tempfile.TemporaryDirectory() as scratch:
        program = str(Path(scratch) / "bench_allocator")
        command = [*os.environ.get("CXX", "g++").split(), "-std=c++20", "-O2", "-pthread", f"-I{sources.CSRC}"]
        command += [str(ROOT / "tools" / "bench_allocator.cpp"), *map(str, objects), "-ldl", "-o", program]
        output_of(command)
        # The program prints a line for each size; the slowest counts.
        samples = [max(map(float, re.findall(r"([\d.]+) ns", output_of([program])))) * 1e-9 for _ in range(5)]
    return Figure("one allocate and free from the cache, C++", samples, "s", 100e-9)


def family_memory(root: int) -> int:
    """Resident bytes of a process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    family, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    pages = 0
    for pid in family:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def timed_build(folder: Path) -> tuple[float, int]:
    """Seconds and peak bytes of one build into `folder`, compiler cache off."""
    command = [sys.executable, "-m", "tools.build", "--folder", str(folder)]
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "CCACHE_DISABLE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.2):
            peak = max(peak, family_memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    printed, _ = process.communicate()
    seconds = time.perf_counter() - start
    ended.set()
    watcher.join()
    if process.returncode != 0:
        raise CostError(f"the build failed:\n{printed[-4000:]}")
    return seconds, peak


def slowest_object(folder: Path) -> Path:
    """The object file that took longest, by ninja's own log."""
    slowest = (0, "")
    for line in (folder / ".ninja_log").read_text().splitlines()[1:]:
        begin, end, _, target, *_ = line.split("\t")
        if target.endswith(".o"):
            slowest = max(slowest, (int(end) - int(begin), target))
    return ROOT / slowest[1]


def build() -> list[Figure]:
    """A clean build in a folder of its own, then the rebuild after a change of the slowest file."""
    folder = ROOT / "build" / "timing"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        seconds, peak = timed_build(folder)
        # Removing the object asks for the same work as a change of its source, and leaves the source alone.
        slowest = slowest_object(folder)
        slowest.unlink()
        again, _ = timed_build(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    name = slowest.relative_to(folder / "obj").with_suffix("")
    return [
        Figure("clean build", [seconds], "s", 360),
        Figure("clean build, peak memory", [peak / (1 << 30)], "GiB", 4),
        Figure(f"rebuild after a change of {name}", [again], "s", 60),
    ]
