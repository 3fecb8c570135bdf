# Suite-wide checks: after the last test no child process and no shared memory segment may be left behind.
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Results of some CPU kernels (Fourier transforms, sums) depend on the number of threads. One thread on both sides
# makes the comparison exact; test/aten/test_threads.py covers several. Before torch is imported, and for children too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARED_MEMORY = Path("/dev/shm")
GRACE_SECONDS = 10


def children() -> dict[int, str]:
    """Living children of this process: id and command name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between the listing and the reading
        state, parent = tail.split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found[int(entry.name)] = head.partition("(")[2]
    return found


def segments() -> set[str]:
    """Names in /dev/shm that belong to this user."""
    found = set()
    for path in SHARED_MEMORY.iterdir():
        try:
            if path.stat().st_uid == os.getuid():
                found.add(path.name)
        except FileNotFoundError:
            continue
    return found


def in_use(names: set[str]) -> set[str]:
    """Those of `names` that some living process has mapped: they are not left over, their owner is at work."""
    used = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            maps = (entry / "maps").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        used |= {name for name in names if f"{SHARED_MEMORY}/{name}" in maps}
    return used


def leftovers(children_before: dict[int, str], segments_before: set[str]) -> list[str]:
    """What this session made and nobody cleaned up."""
    processes = {pid: name for pid, name in children().items() if pid not in children_before}
    # The standard library's own helper lives as long as the process that started it.
    processes = {pid: name for pid, name in processes.items() if not is_resource_tracker(pid)}
    names = segments() - segments_before
    names -= in_use(names)
    return [f"process {pid} ({name})" for pid, name in processes.items()] + [
        f"{SHARED_MEMORY}/{name}" for name in sorted(names)
    ]


def is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind():
    """Fails the session when a test leaves a process or a segment; both get a grace period to end by themselves."""
    children_before, segments_before = children(), segments()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    left = leftovers(children_before, segments_before)
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = leftovers(children_before, segments_before)
    assert not left, "the tests left behind: " + ", ".join(left)


ALONE = "KUNLUN_TEST_ALONE"  # set in the process of a test marked `alone`


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Hands a test marked `alone` to a process of its own."""
    if pyfuncitem.get_closest_marker("alone") is None or ALONE in os.environ:
        return None
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env=os.environ | {ALONE: "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return True
