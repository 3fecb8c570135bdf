# Suite-wide checks: after the last test no process and no shared memory segment of this session may be left behind.
import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common_leftovers import SHARED_MEMORY, descendants, in_use, segments, until
from common_rates import pytest_addoption, pytest_configure  # noqa: F401 - hooks: the table of rates

# Results of some CPU kernels (Fourier transforms, sums) depend on the number of threads. One thread on both sides
# makes the comparison exact; test/aten/test_threads.py covers several. Before torch is imported, and for children too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


# Tests of an inference engine's plug-in run where that engine is installed: in an environment of its own.
# The folder test is on the path, so that a folder of an engine's name is found where the engine is not: as a package
# without a file.
SPECS = {engine: importlib.util.find_spec(engine) for engine in ("vllm", "sglang")}
ABSENT = [engine for engine, spec in SPECS.items() if spec is None or spec.origin is None]
collect_ignore = [engine for engine in ABSENT if (Path(__file__).parent / engine).exists()]


def pytest_report_header() -> list[str]:
    return [f"{engine} is not installed, test/{engine} is left out: `make test-{engine}` runs it" for engine in ABSENT]


class Elsewhere:
    """Segments that this session has not made: those from before it, and those that others were seen to use."""

    def __init__(self):
        self.names = segments()

    def look(self) -> None:
        if new := segments() - self.names:
            self.names |= in_use(new, {os.getpid(), *descendants()})


elsewhere = Elsewhere()


@pytest.fixture(autouse=True)
def look_elsewhere():
    """After each test, while those who share the machine still use what they have made meanwhile."""
    yield
    elsewhere.look()


def leftovers(before: dict[int, str]) -> list[str]:
    """What this session made and nobody cleaned up."""
    processes = {pid: name for pid, name in descendants().items() if pid not in before}
    # The standard library's own helper lives as long as the process that started it.
    processes = {pid: name for pid, name in processes.items() if not is_resource_tracker(pid)}
    elsewhere.look()
    names = segments() - elsewhere.names
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
    # What a test has started and forgotten comes to this process when its parent ends.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = descendants()
    yield
    until(lambda: not leftovers(before))
    left = leftovers(before)
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
