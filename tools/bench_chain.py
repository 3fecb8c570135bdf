# A chain of elementwise operators over 64 MB on `kunlun` against plain torch on the CPU, in one run.
#
#   python tools/bench_chain.py [--rounds 7] [--threads 1 2] [--megabytes 64] [--json FILE]
#
# Each side is a process of its own, and the CPU side never loads the extension; the sides take turns. The difference is
# the memory: every result of this size is fresh memory for torch on the CPU, which the kernel hands out page by page as
# it is first touched, while the device's memory stays with its caching allocator.
import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.measure.compare import Comparison, compare
from tools.measure.session import ROOT, Side

WANTED = 2.5  # times as fast as the CPU, at least


def measure(threads: int, megabytes: int, rounds: int) -> Comparison:
    with Side("kunlun", threads) as kunlun, Side("cpu", threads) as cpu:
        for side in (kunlun, cpu):
            side.ask("chain", megabytes=megabytes, rounds=1)
        samples = compare(kunlun, cpu, rounds, lambda side: side.ask("chain", megabytes=megabytes, rounds=3))
    name = f"elementwise chain, {megabytes} MB float32"
    return Comparison(name, threads, samples, "rate", "chains/s", at_least=WANTED)


def main() -> int:
    parser = argparse.ArgumentParser(description="Times an elementwise chain on kunlun against the CPU.")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side, at least 5 (default 7)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="kernel threads (default: 1 2)")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured as JSON")
    options = parser.parse_args()
    if options.rounds < 5:
        parser.error(f"--rounds {options.rounds}: a median and a spread need at least 5 turns")
    rows = []
    for threads in options.threads:
        row = measure(threads, options.megabytes, options.rounds)
        rows.append(row)
        name, count, kunlun, cpu, spread, wanted = row.cells()
        print(
            f"{name}, {count} kernel threads: kunlun {kunlun}, cpu {cpu}, ratio {spread}, wanted {wanted}", flush=True
        )
    if options.json is not None:
        options.json.write_text(json.dumps([row.as_json() for row in rows], indent=1) + "\n")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
