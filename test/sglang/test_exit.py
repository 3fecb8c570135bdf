# An engine that is killed without a chance to clean up, or fails at its start, leaves neither processes nor segments.
import contextlib
import os
import shutil
import signal
import subprocess
import sys

import pytest
from common_leftovers import group, segments, until, unused_since
from common_zoo import checkpoint_or_skip

READY = "the engine has answered"
PROGRAM = f"""
import sys, time
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(model_path=sys.argv[1], dtype="float32", max_total_tokens=2048, tp_size=int(sys.argv[2]))
    engine.generate("One two", {{"temperature": 0, "max_new_tokens": 2}})
    print({READY!r}, flush=True)
    time.sleep(3600)
"""


@contextlib.contextmanager
def engine(model, devices: int, folder):
    """A process that runs PROGRAM in a group of its own, and the file with its words."""
    program, log = folder / "program.py", folder / "log.txt"
    program.write_text(PROGRAM)
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, str(program), str(model), str(devices)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, log
    finally:
        if group(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_killed_engine_leaves_nothing(devices, tmp_path):
    model = checkpoint_or_skip("llama3")
    before = segments()
    with engine(model, devices, tmp_path) as (process, log):
        assert until(lambda: READY in log.read_text() or process.poll() is not None, seconds=300)
        assert process.poll() is None, log.read_text()[-4000:]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert until(lambda: not group(process.pid)), "its processes live on"
    assert unused_since(before) == set()


@pytest.mark.full
def test_a_start_that_fails_leaves_nothing(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(checkpoint_or_skip("llama3"), model)
    (model / "model.safetensors").write_bytes(b"these are no weights")
    before = segments()
    with engine(model, 1, tmp_path) as (process, log):
        assert process.wait(timeout=300) != 0
        assert "SafetensorError" in log.read_text()
        assert until(lambda: not group(process.pid)), "its processes live on"
    assert unused_since(before) == set()
