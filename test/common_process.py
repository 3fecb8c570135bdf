"""Fixtures that run Python in processes of its own: forked from one that has imported torch, or new."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TIMEOUT_SECONDS = 120


class Finished:
    """How a process ended."""

    def __init__(self, returncode: int, stdout: str, stderr: str):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


# Importing torch takes seconds, so one process has done it and forks for every piece of code, which is allowed as long
# as it has not used a device itself. The child ends like any Python process.
SERVER = """
import json, os, sys
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
exec(compile(job["code"], "<test>", "exec"), {"__name__": "__main__"})
"""


@pytest.fixture(scope="module")
def forking_server():
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    yield server
    server.stdin.close()
    server.wait(TIMEOUT_SECONDS)
    server.stdout.close()


def run_job(server: subprocess.Popen, code: str, folder: Path, environment: dict[str, str]) -> Finished:
    """Has the server run a piece of Python; what it writes goes through files in `folder`."""
    job = {"code": textwrap.dedent(code), "environment": environment}
    job |= {name: str(folder / name) for name in ("stdout", "stderr")}
    server.stdin.write(json.dumps(job) + "\n")
    if not select.select([server.stdout], [], [], TIMEOUT_SECONDS)[0]:
        server.kill()
        raise TimeoutError((folder / "stderr").read_text())
    returncode = int(server.stdout.readline())
    return Finished(returncode, (folder / "stdout").read_text(), (folder / "stderr").read_text())


@pytest.fixture
def run_python(forking_server, tmp_path):
    """Runs a piece of Python in a process that has only imported torch; environment variables can be given."""

    def run(code: str, **environment: str) -> Finished:
        return run_job(forking_server, code, tmp_path, environment)

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
