"""Fixtures that run Python in processes of its own: forked from one that has imported torch, or new."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TIMEOUT_SECONDS = 300


class Finished:
    """How a process ended."""

    def __init__(self, returncode: int, stdout: str, stderr: str):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


# Importing torch takes seconds, so one process has done it and forks for every piece of code, which is allowed as long
# as it has not used a device itself. The child ends like any Python process.
SERVER = """
import json, os, signal, sys
import torch, torch_xpu_kunlun
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
for name, descriptor in (("stdout", 1), ("stderr", 2)):
    with open(job[name], "w") as file:
        os.dup2(file.fileno(), descriptor)
os.environ.update(job["environment"])
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
exec(compile(job["code"], "<test>", "exec"), {"__name__": "__main__"})
"""


class ForkingServer:
    """The process that forks, started by the first piece of code and again after one that did not end in time."""

    def __init__(self):
        self.process: subprocess.Popen | None = None

    def run(self, code: str, folder: Path, environment: dict[str, str]) -> Finished:
        """Runs a piece of Python; what it writes goes through files in `folder`."""
        if self.process is None:
            self.start()
        job = {"code": textwrap.dedent(code), "environment": environment}
        job |= {name: str(folder / name) for name in ("stdout", "stderr")}
        self.process.stdin.write(json.dumps(job) + "\n")
        if not select.select([self.process.stdout], [], [], TIMEOUT_SECONDS)[0]:
            self.kill()
            raise TimeoutError((folder / "stderr").read_text())
        returncode = int(self.process.stdout.readline())
        return Finished(returncode, (folder / "stdout").read_text(), (folder / "stderr").read_text())

    def start(self) -> None:
        # A session of its own: its forks, and theirs, can then be ended together.
        command = [sys.executable, "-c", SERVER]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, start_new_session=True)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(TIMEOUT_SECONDS)
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="module")
def forking_server():
    server = ForkingServer()
    yield server
    server.stop()


@pytest.fixture
def run_python(forking_server, tmp_path):
    """Runs a piece of Python in a process that has only imported torch; environment variables can be given."""

    def run(code: str, **environment: str) -> Finished:
        return forking_server.run(code, tmp_path, environment)

    return run


def run_new_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs a piece of Python in a new process, for what happens at the import itself."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def check_silent(done) -> str:
    """The process must have ended well and silently on stderr; returns what it printed."""
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout


@pytest.fixture(name="run_new_python")
def run_new_python_fixture():
    return run_new_python


@pytest.fixture
def check_python(run_python):
    """Like run_python, but the process must end well and silently; returns what it printed."""
    return lambda code, **environment: check_silent(run_python(code, **environment))


@pytest.fixture
def check_new_python():
    """Like run_new_python, but the process must end well and silently; returns what it printed."""
    return lambda code, **environment: check_silent(run_new_python(code, **environment))
