"""The whole sweep, two programs at a time: all tests, then the operator tests once more in other places.

    python -m tools.test_full [--only PART ...] [words for pytest]

Each part writes its output and, where it has operator tests, what they compared into build/test-full. Ends with the
table of rates (tools/op_rates.py) of all parts that are there, and with code 1 if a part failed. What `--only` runs
again replaces what that part had written.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools import op_rates

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "test-full"
OPERATORS = "test/aten/op_db"
OPERATOR_FILES = sorted(path.stem for path in (ROOT / OPERATORS).glob("test_*.py"))
# In the order in which they are started. Name -> words for pytest, environment.
PARTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "suite": (["test", f"--ignore={OPERATORS}"], {}),
    **{stem.removeprefix("test_"): ([f"{OPERATORS}/{stem}.py"], {}) for stem in OPERATOR_FILES},
    # The current device is kunlun:0, the tensors are elsewhere.
    "device 1": ([OPERATORS, "-m", "not full"], {"KUNLUN_TEST_DEVICE": "kunlun:1"}),
    # A chip whose memory the host cannot reach: what it has no kernel for is computed on copies.
    "copies": ([OPERATORS, "-m", "not full"], {"KUNLUN_SIM_HOST_ADDRESSABLE": "0", "KUNLUN_FALLBACK": "allow"}),
}


def file_name(part: str) -> str:
    return part.replace(" ", "_")


@dataclass(frozen=True)
class Result:
    part: str
    code: int
    minutes: float
    processor_minutes: float


def run(part: str, words: list[str]) -> Result:
    arguments, environment = PARTS[part]
    rates = OUT / f"{file_name(part)}.json"
    rates.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *arguments, f"--rates={rates}", *words]
    began = time.monotonic()
    with (OUT / f"{file_name(part)}.log").open("w") as log:
        program = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log)
        _, status, used = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    minutes = (time.monotonic() - began) / 60
    return Result(part, program.returncode, minutes, (used.ru_utime + used.ru_stime) / 60)


def report(result: Result) -> None:
    log = OUT / f"{file_name(result.part)}.log"
    text = log.read_text(errors="replace")
    *_, last = text.splitlines() or [""]
    said = f"{last.strip('= ')}; output in {log.relative_to(ROOT)}"
    print(f"{result.part}, {result.minutes:.1f} minutes: {said}", flush=True)
    if result.code:
        print(text[-8000:], flush=True)


def note(result: Result) -> None:
    """When each part ran last, and what it cost, for the document that tools/op_rates.py writes."""
    path = OUT / "run.json"
    parts = json.loads(path.read_text())["parts"] if path.exists() else {}
    today = datetime.date.today().isoformat()
    parts[result.part] = {"date": today, "processor_minutes": result.processor_minutes}
    path.write_text(json.dumps({"torch": importlib.metadata.version("torch"), "parts": parts}))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    arguments, words = parser.parse_known_args(words)
    OUT.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    results = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, part, words) for part in arguments.only]):
            results.append(done.result())
            report(results[-1])
            note(results[-1])
    op_rates.main([str(path) for path in sorted(OUT.glob("*.json"))])
    minutes = (time.monotonic() - began) / 60
    failed = [result.part for result in results if result.code]
    print(f"\n{minutes:.0f} minutes; " + (f"failed: {', '.join(failed)}" if failed else "all passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
