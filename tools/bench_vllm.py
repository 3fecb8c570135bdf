# vLLM on `kunlun` against transformers on the CPU: the same model, prompts and threads, each side in a process of its
# own (the CPU's never loads the extension), the two taking turns. To be run where vLLM is installed:
#
#     .venv-vllm/bin/python tools/bench_vllm.py --model build/demo/SmolLM2-...
import argparse
import json
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from tools.measure.session import Side

BATCHES = {1: 0.9, 8: 1.0, 32: 1.05}
UNEVEN = 1.5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="vLLM on kunlun against transformers on the CPU.")
    parser.add_argument("--model", required=True, help="folder of a model, such as `make vllm` converts")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1, help="kernel threads on each side (default 1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (default 5)")
    parser.add_argument("--new-tokens", type=int, default=32, help="length of answers of one length (default 32)")
    parser.add_argument("--only", nargs="+", choices=[*map(str, BATCHES), "uneven"], help="some of the cases")
    parser.add_argument("--json", help="write every sample to this file")
    return parser.parse_args()


def cases(options: argparse.Namespace) -> dict[str, tuple[list[int], float]]:
    """By name: the lengths of the answers, and the rate to reach against the CPU."""
    found = {str(n): ([options.new_tokens] * n, goal) for n, goal in BATCHES.items()}
    found["uneven"] = ([8 + round(120 * i / 31) for i in range(32)], UNEVEN)
    random.Random(0).shuffle(found["uneven"][0])
    return {name: case for name, case in found.items() if not options.only or name in options.only}


def run(sides: dict[str, Side], lengths: list[int], rounds: int) -> dict[str, list[dict]]:
    prompts = [[random.Random(i).randrange(100, 40000) for _ in range(32)] for i in range(len(lengths))]
    results = {name: [] for name in sides}
    for side in sides.values():
        side.ask("write", prompts=prompts, lengths=[2] * len(lengths))
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            results[name].append(sides[name].ask("write", prompts=prompts, lengths=lengths))
    return results


def row(name: str, lengths: list[int], goal: float, results: dict, products: dict[str, float]) -> list[str]:
    seconds = {side: [result["seconds"] for result in found] for side, found in results.items()}
    ratios = [cpu / kunlun for kunlun, cpu in zip(seconds["kunlun"], seconds["cpu"], strict=True)]
    rates = {side: sum(lengths) / statistics.median(values) for side, values in seconds.items()}
    same = all(result["tokens"] == results["cpu"][0]["tokens"] for found in results.values() for result in found)
    counts = results["kunlun"][-1]["operators"]
    # A step's time beside its products, where all answers have one length and so each step the same work.
    beside = {side: statistics.median(values) / max(lengths) - products[side] for side, values in seconds.items()}
    other = "-" if name == "uneven" else f"{1e3 * beside['kunlun']:.1f} / {1e3 * beside['cpu']:.1f} ms"
    return [
        name if name == "uneven" else f"batch {name}",
        f"{rates['kunlun']:.1f}",
        f"{rates['cpu']:.1f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
        f"{goal:.2f}",
        other,
        "same" if same else "different",
        f"{counts['boxed']} / {counts['fallback']}",
    ]


def main() -> None:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(title=f"SmolLM2-135M, {options.dtype}, {options.threads} thread(s), simulated chip")
    for head in (
        "case",
        "vLLM tok/s",
        "CPU tok/s",
        "ratio (range)",
        "goal",
        "step beside products",
        "text",
        "boxed/copied",
    ):
        table.add_column(head)
    samples = {}
    module = "tools.measure.serving"
    with Side("kunlun", options.threads, module) as kunlun, Side("cpu", options.threads, module) as cpu:
        sides = {"kunlun": kunlun, "cpu": cpu}
        with console.status("loading on both sides"):
            for side in sides.values():
                side.ask("start", folder=options.model, dtype=options.dtype, largest=32, longest=256)
        for name, (lengths, goal) in cases(options).items():
            with console.status(f"{name}: {options.rounds} rounds of {sum(lengths)} tokens on each side"):
                products = {s: side.ask("products", rows=len(lengths), repeats=3) for s, side in sides.items()}
                results = samples[name] = run(sides, lengths, options.rounds)
            table.add_row(*row(name, lengths, goal, results, products))
    console.print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
