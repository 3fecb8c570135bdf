# A process that has imported an engine once and runs each model in a fork of itself, with a time limit.
#
# A request is one line of JSON on standard input, {"name", "folder", "reference", "tp", "log", "timeout"}; the answer
# is one line of JSON. The fork is a session of its own, so that its time limit ends the engine's processes too.
import contextlib
import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

GRACE_SECONDS = 10
LAST_LINE_OF_TRACEBACK = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)


def serve(run: Callable[[dict], dict], module: str) -> None:
    """Import `module`, then answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Requests come through a private copy: a fork must not read ahead what is meant for this process.
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    importlib.import_module(module)  # once, for all forks
    answers.write("{}\n")
    answers.flush()
    for line in requests:
        job = json.loads(line)
        start = time.monotonic()
        result = in_fork(run, job)
        result["seconds"] = round(time.monotonic() - start, 1)
        answers.write(json.dumps(result) + "\n")
        answers.flush()


def in_fork(run: Callable[[dict], dict], job: dict) -> dict:
    """The result of run(job), computed by a fork; how it failed, if it did."""
    target = Path(job["log"]).with_suffix(".result")
    target.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        child_main(run, job, target)
    try:
        code = wait(child, job["timeout"])
    except BaseException:  # Ctrl-C, or the parent ends this process
        kill_group(child)
        raise
    # What the engine has started and forgotten is in the child's session; what is ending needs a moment.
    deadline = time.monotonic() + GRACE_SECONDS
    while is_group(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    left_over = kill_group(child)
    if target.exists():
        result = json.loads(target.read_text())
        target.unlink()
    elif code is None:
        result = {"error": f"not finished within {job['timeout']} s"}
    else:  # an engine that fails in one of its processes may kill them all
        words = LAST_LINE_OF_TRACEBACK.findall(Path(job["log"]).read_text(errors="replace"))
        result = {"error": words[-1] if words else f"the process ended with {code}, see {job['log']}"}
    if left_over and "error" not in result:
        result["error"] = "a process of the engine was left over"
    return result


def child_main(run: Callable[[dict], dict], job: dict, target: Path) -> None:
    """Never returns."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        result = run(job)
    except Exception as error:  # the answer says so; the engine may have raised anything
        traceback.print_exc()
        result = {"error": first_cause(error), "traceback": traceback.format_exc()[-6000:]}
    part = target.with_suffix(".part")
    part.write_text(json.dumps(result))
    part.rename(target)
    sys.stdout.flush()
    sys.exit(0)  # like any program that uses the engine: what ends with the interpreter must end


def first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"


def wait(child: int, seconds: float) -> int | None:
    """The exit code of the child; None if its time was over and it was killed with its session."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    kill_group(child)
    os.waitpid(child, 0)
    return None


def is_group(leader: int) -> bool:
    """Whether a process of this group lives; one that has ended and waits to be collected does not count."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                return True
    return False


def kill_group(leader: int) -> bool:
    """Whether there was anybody left to kill."""
    living = is_group(leader)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    return living
