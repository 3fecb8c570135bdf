# The model matrix: runs the small models of tools.zoo through an engine on `kunlun`, and compares with transformers.
#
#     python tools/engine_matrix.py --engine vllm --tp 2
#
# Each model runs in a process of its own. Its tokens must be those that transformers writes on the CPU, with --tp also
# those of one device. Results lie in build/engine_matrix; docs/engine_models.md is written from them.
import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tools import zoo
from tools.matrix import page
from tools.matrix.session import PACKAGES, Side, SideError
from tools.zoo.families import FAMILIES

COLOURS = {"same": "green", "different": "red", "failed": "red", "unavailable": "yellow"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/engine_matrix.py", description="Runs small models through an engine.")
    parser.add_argument("--engine", required=True, choices=sorted(PACKAGES))
    parser.add_argument("--models", nargs="+", metavar="NAME", help="names of tools.zoo (default: all)")
    parser.add_argument("--tp", type=int, nargs="+", default=[1], help="devices that share each model (default: 1)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one model (default: 300)")
    parser.add_argument("--page", action="store_true", help="write docs/engine_models.md afterwards")
    options = parser.parse_args()
    if unknown := [name for name in options.models or () if name not in FAMILIES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    return options


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the engine's process is ended too
    console = Console(width=None if sys.stdout.isatty() else 160)
    names = options.models or list(FAMILIES)
    jobs = [(name, tp) for tp in options.tp for name in names]
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bad = 0
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            made = progress.add_task("checkpoints", total=None)
            zoo.ensure(names, lambda name: progress.update(made, description=f"checkpoint {name}", advance=1))
            progress.remove_task(made)
            task = progress.add_task(f"importing {PACKAGES[options.engine]}", total=len(jobs))
            with Side(options.engine, options.timeout) as side:
                for name, tp in jobs:
                    progress.update(task, description=f"{name}, {tp} device{'s' if tp > 1 else ''}")
                    result = side.run(name, tp)
                    progress.advance(task)
                    progress.console.print(line(result), highlight=False)
                    bad += result["status"] in ("different", "failed")
    except (SideError, zoo.ZooError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    if options.page:
        console.print(f"written: {page.write()}")
    return 1 if bad else 0


def line(result: dict) -> str:
    """One model's result for the terminal."""
    colour = COLOURS[result["status"]]
    text = f"{result['title']:20} tp={result['tp']} [{colour}]{result['status']}[/{colour}]"
    if "class" in result:
        text += f"  {result['class']}{'' if result['native'] else ' (Transformers back end)'}"
        boxed = sum(result["boxed"].values())
        text += f", {boxed} boxed, {result['fallback']} fallbacks, {result['seconds']} s"
    if result.get("reason"):
        text += "  " + result["reason"].replace("[", r"\[")[:300]
    return text


if __name__ == "__main__":
    sys.exit(main())
