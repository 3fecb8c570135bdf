# Timings of eager execution on `kunlun` against plain torch on the CPU, as ratios measured in one run.
#
# Each side is a process of its own; the CPU side never loads the extension. The sides take turns, at least five
# times, and whichever waits sleeps. Every figure is a median over the turns with the smallest and the largest.
import argparse
import json
import os
import platform
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from tools.measure import costs, launchers, weights
from tools.measure.compare import Comparison, Figure, compare
from tools.measure.session import ROOT, Side, SideError

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Explain what a compiler does.",
    "Write a short story about a lighthouse keeper.",
    "Why is the sky blue?",
    "Describe how bread is made.",
    "Give me three reasons to learn to swim.",
    "What does an operating system do?",
    "Tell me about the history of the bicycle.",
)
GROUPS = ("add", "launchers", "model", "chain", "import", "allocator")


def add_16(side: Side) -> float:
    return side.ask("add", elements=16, calls=256, blocks=40)


class Bench:
    """The rows of the table, filled one group at a time."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options = options
        self.console = console
        self.rows: list[Comparison | Figure] = []
        self.facts: dict[str, dict] = {}

    def note(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/dim]", highlight=False)

    def sides(self, threads: int) -> tuple[Side, Side]:
        kunlun = Side("kunlun", threads)
        try:
            cpu = Side("cpu", threads)
        except BaseException:
            kunlun.close()
            raise
        self.facts = {"kunlun": kunlun.facts, "cpu": cpu.facts}
        return kunlun, cpu

    def add(self) -> None:
        """What the caller pays for one 16-element add, from Python."""
        for tier, limit in (("hand-written", 0.85), ("boxed", 1.7)):
            self.note(f"add of 16 elements, {tier} tier")
            kunlun, cpu = self.sides(1)
            with kunlun, cpu:
                if tier == "boxed":
                    kunlun.ask("route_to_boxed_tier", operator="aten::add.Tensor")
                samples = compare(kunlun, cpu, max(15, self.options.rounds), add_16)
            name = f"16-element add, caller's time, {tier}"
            self.rows.append(Comparison(name, 1, samples, "time", "s", at_most=limit))

    def launchers(self) -> None:
        """What the caller pays for one call of an operator with a generated launcher: a median over operators."""
        names = [case.overload for case in launchers.cases()]
        self.note(f"{len(names)} operators with generated launchers")
        turns: dict[str, list[list[float]]] = {"kunlun": [], "cpu": []}
        kunlun, cpu = self.sides(1)
        with kunlun, cpu:
            for turn in range(max(7, self.options.rounds)):
                for side in (kunlun, cpu) if turn % 2 == 0 else (cpu, kunlun):
                    turns[side.device].append(side.ask("launchers", calls=128, blocks=5))
        samples = {side: [median(of_one) for of_one in zip(*rows, strict=True)] for side, rows in turns.items()}
        self.facts["launchers"] = {"operators": names, "turns": len(turns["cpu"])}
        name = f"{len(names)} generated launchers, caller's time"
        self.rows.append(Comparison(name, 1, samples, "time", "s", at_most=1.0))

    def model(self) -> None:
        """Greedy text generation."""
        if not weights.is_converted():
            raise weights.WeightsError("the converted model is missing: run `make demo` once, it converts it")
        folder = str(weights.cached())
        for threads in self.options.threads:
            kunlun, cpu = self.sides(threads)
            with kunlun, cpu:
                for dtype in ("float32", "bfloat16"):
                    for side in (kunlun, cpu):
                        side.ask("load", folder=folder, dtype=dtype)
                    for batch in (1, len(PROMPTS)):
                        self.generate(kunlun, cpu, threads, dtype, batch)

    def generate(self, kunlun: Side, cpu: Side, threads: int, dtype: str, batch: int) -> None:
        self.note(f"{weights.NAME} {dtype}, batch {batch}, {threads} kernel threads")
        new_tokens = self.options.new_tokens
        written: dict[str, list] = {}

        def work(side: Side, count: int = new_tokens) -> float:
            answer = side.ask("generate", prompts=PROMPTS[:batch], new_tokens=count)
            if count == new_tokens and written.setdefault(side.device, answer["tokens"]) != answer["tokens"]:
                raise SideError(f"{side.device} wrote other tokens in a later turn ({dtype}, batch {batch})")
            return answer["seconds"]

        for side in (kunlun, cpu):
            work(side, 4)
        samples = compare(kunlun, cpu, self.options.rounds, work)
        if written["kunlun"] != written["cpu"]:
            raise SideError(f"the two sides wrote different tokens ({dtype}, batch {batch}, {threads} threads)")
        # One kernel thread shows that launches are asynchronous; with two there is no core left to hide them on.
        limit = (1.05 if batch == 1 else 1.1) if threads == 1 else 0.95 if threads == 2 else None
        name = f"SmolLM2 {dtype}, batch {batch}, {new_tokens} tokens"
        self.rows.append(Comparison(name, threads, samples, "rate", "tokens/s", batch * new_tokens, at_least=limit))

    def chain(self) -> None:
        """A chain of five elementwise operators over 64 MB."""
        for threads in self.options.threads:
            self.note(f"elementwise chain, {threads} kernel threads")
            kunlun, cpu = self.sides(threads)
            with kunlun, cpu:
                for side in (kunlun, cpu):
                    side.ask("chain", megabytes=64, rounds=1)
                samples = compare(
                    kunlun, cpu, self.options.rounds, lambda side: side.ask("chain", megabytes=64, rounds=3)
                )
            self.rows.append(Comparison("elementwise chain, 64 MB float32", threads, samples, "time", "s"))

    def costs_import(self) -> None:
        self.note("import time")
        self.rows.append(costs.import_time(max(7, self.options.rounds)))

    def allocator(self) -> None:
        self.note("allocator")
        self.rows.append(costs.allocator())

    def run(self) -> None:
        work = {"import": self.costs_import}
        for group in self.options.rows:
            work.get(group, getattr(self, group, None))()
        if self.options.build:
            self.note("a clean build, and one of its slowest file alone")
            self.rows += costs.build()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times eager execution on kunlun against plain torch on the CPU.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side, at least 5 (default 5)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="kernel threads (default: 1 2)")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens to generate (default 64)")
    parser.add_argument("--rows", nargs="+", choices=GROUPS, default=list(GROUPS), help="groups to run (default: all)")
    parser.add_argument("--build", action="store_true", help="also time a clean build and the rebuild of one file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured as JSON")
    options = parser.parse_args()
    if options.rounds < 5:
        parser.error(f"--rounds {options.rounds}: a median and a spread need at least 5 turns")
    return options


def show(console: Console, bench: Bench) -> None:
    chip = f" ({bench.facts['kunlun']['name']})" if bench.facts else ""
    cores = len(os.sched_getaffinity(0))
    table = Table(title=f"kunlun{chip} against plain torch on the CPU; {cores} cores")
    for column in ("what", "threads", "kunlun", "cpu", "ratio (smallest - largest)", "wanted", ""):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for row in bench.rows:
        verdict = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}[row.ok]
        table.add_row(*row.cells(), verdict)
    console.print(table)


def as_json(bench: Bench) -> dict:
    return {
        "facts": bench.facts,
        "machine": {"processor": platform.machine(), "cores": len(os.sched_getaffinity(0))},
        "rounds": bench.options.rounds,
        "rows": [row.as_json() for row in bench.rows],
    }


def main() -> int:
    options = arguments()
    # A terminal wraps what does not fit; a file gets whole lines.
    console = Console(width=None if sys.stdout.isatty() else 150)
    bench = Bench(options, console)
    failure = None
    try:
        bench.run()
    except (SideError, weights.WeightsError, costs.CostError) as error:
        failure = error
    if bench.rows:
        show(console, bench)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(bench), indent=1) + "\n")
    if failure is not None:
        console.print(f"error: {failure}", style="red", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
