# Timings of the fused operators torch.ops.kunlun.* against the compositions they replace.
#
# Three sides: the fused call on `kunlun`, the composition in plain torch on the CPU (a process of its own that never
# loads the extension), and the composition on `kunlun`. They take turns, at least five times; a turn is as many calls
# as fill some milliseconds, waited for at the end. The ratio is that of the faster composition to the fused call.
import argparse
import json
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from tools.measure.compare import quantity
from tools.measure.fused import CASES, TOKENS
from tools.measure.session import ROOT, Side

SIDES = ("fused", "cpu", "kunlun")


@dataclass
class Row:
    """Seconds of one call, for every side and turn."""

    name: str
    phase: str
    dtype: str
    threads: int
    samples: dict[str, list[float]]

    @property
    def ratios(self) -> list[float]:
        """Turn by turn: neighbours in time saw the same machine."""
        return [min(cpu, kunlun) / fused for fused, cpu, kunlun in zip(*(self.samples[s] for s in SIDES), strict=True)]

    @property
    def ok(self) -> bool | None:
        wanted = CASES[self.name].wanted
        return None if wanted is None else statistics.median(self.ratios) >= wanted

    def cells(self) -> list[str]:
        medians = [quantity(statistics.median(self.samples[side]), "s") for side in SIDES]
        ratios = self.ratios
        spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} - {max(ratios):.2f})"
        wanted = CASES[self.name].wanted
        return [
            f"{self.name}, {self.phase}, {self.dtype}",
            str(self.threads),
            *medians,
            spread,
            "" if wanted is None else f"{wanted}x at least",
            {True: "yes", False: "no", None: ""}[self.ok],
        ]

    def as_json(self) -> dict:
        return {
            "name": self.name,
            "phase": self.phase,
            "tokens": TOKENS[self.phase],
            "dtype": self.dtype,
            "threads": self.threads,
            "seconds": self.samples,
            "ratios": self.ratios,
            "wanted": CASES[self.name].wanted,
            "ok": self.ok,
        }


def measure(kunlun: Side, cpu: Side, name: str, phase: str, dtype: str, threads: int, rounds: int) -> Row:
    def one(side: str, seconds: float) -> float:
        worker = cpu if side == "cpu" else kunlun
        return worker.ask("fused", case=name, phase=phase, dtype=dtype, composed=side != "fused", seconds=seconds)

    for side in SIDES:
        one(side, 0.0)  # makes the arguments, fills caches
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(rounds):
        for side in SIDES[turn % 3 :] + SIDES[: turn % 3]:
            samples[side].append(one(side, 0.05))
    return Row(name, phase, dtype, threads, samples)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times torch.ops.kunlun.* against the compositions they replace.")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side, at least 5 (default 7)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="kernel threads (default: 1 2)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="operators (default: all)")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="(default: float32 bfloat16)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample as JSON")
    options = parser.parse_args()
    if options.rounds < 5:
        parser.error(f"--rounds {options.rounds}: a median and a spread need at least 5 turns")
    return options


def main() -> int:
    options = arguments()
    # A terminal wraps what does not fit; a file gets whole lines.
    console = Console(width=None if sys.stdout.isatty() else 190)
    rows = []
    facts = {}
    for threads in options.threads:
        with Side("kunlun", threads) as kunlun, Side("cpu", threads) as cpu:
            facts = {"kunlun": kunlun.facts, "cpu": cpu.facts}
            for name in options.cases:
                for phase in CASES[name].phases:
                    for dtype in options.dtypes:
                        rows.append(measure(kunlun, cpu, name, phase, dtype, threads, options.rounds))
    chip = facts["kunlun"]["name"]
    table = Table(title=f"fused operators on {chip} against compositions; {len(os.sched_getaffinity(0))} cores")
    for column in ("what", "threads", "fused", "composed, cpu", "composed, kunlun", "faster", "wanted", ""):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)
    if options.json is not None:
        report = {"facts": facts, "rounds": options.rounds, "rows": [row.as_json() for row in rows]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
