"""The whole sweep, two programs at a time: all tests, then the operator tests once more in other places.

    python -m tools.test_full [--only PART ...] [words for pytest]

Each part writes its output and, where it has operator tests, what they compared into build/test-full. Ends with the
table of rates (tools/op_rates.py) and with code 1 if a part failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import importlib.metadata
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tools import op_rates

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "test-full"
OPERATORS = "test/aten/op_db"
# In the order in which they are started, the longest first. Name -> words for pytest, environment.
PARTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "suite": (["test", f"--ignore={OPERATORS}"], {}),
    "operators": ([OPERATORS], {}),
    # The current device is kunlun:0, the tensors are elsewhere.
    "operators on device 1": ([OPERATORS, "-m", "not full"], {"KUNLUN_TEST_DEVICE": "kunlun:1"}),
    # A chip whose memory the host cannot reach: what it has no kernel for is computed on copies.
    "operators on copies": (
        [OPERATORS, "-m", "not full"],
        {"KUNLUN_SIM_HOST_ADDRESSABLE": "0", "KUNLUN_FALLBACK": "allow"},
    ),
}


def file_name(part: str) -> str:
    return part.replace(" ", "_")


def run(part: str, words: list[str]) -> tuple[str, int, float]:
    """Name, exit code and minutes."""
    arguments, environment = PARTS[part]
    rates = OUT / f"{file_name(part)}.json"
    command = [sys.executable, "-m", "pytest", *arguments, f"--rates={rates}", *words]
    began = time.monotonic()
    with (OUT / f"{file_name(part)}.log").open("w") as log:
        done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log, check=False)
    return part, done.returncode, (time.monotonic() - began) / 60


def processor_minutes() -> float:
    """Of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def command_line(parts: list[str]) -> str:
    """What a reader would type to get this."""
    if parts == list(PARTS):
        return "make test-full"
    return "python -m tools.test_full --only " + " ".join(shlex.quote(part) for part in parts)


def report(part: str, code: int, minutes: float) -> None:
    log = OUT / f"{file_name(part)}.log"
    text = log.read_text(errors="replace")
    *_, last = text.splitlines() or [""]
    print(f"{part}, {minutes:.1f} minutes: {last.strip('= ')}; output in {log.relative_to(ROOT)}", flush=True)
    if code:
        print(text[-8000:], flush=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    arguments, words = parser.parse_known_args(words)
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.json"):
        old.unlink()
    began = time.monotonic()
    failed = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, part, words) for part in arguments.only]):
            report(*done.result())
            part, code, _ = done.result()
            if code:
                failed.append(part)
    about = {
        "torch": importlib.metadata.version("torch"),
        "date": datetime.date.today().isoformat(),
        "processor_minutes": round(processor_minutes()),
        "command": command_line(arguments.only),
    }
    (OUT / "run.json").write_text(json.dumps(about))
    files = sorted(OUT.glob("*.json"))
    if len(files) > 1:
        op_rates.main([str(path) for path in files])
    minutes = (time.monotonic() - began) / 60
    print(f"\n{minutes:.0f} minutes; " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
