# `make demo`: SmolLM2-135M-Instruct generates text on `kunlun` and on `cpu`; shows both texts and their speed. Then
# the same model spread over three devices, whose tokens must be those of one.
import argparse
import json
import os
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools.demo.parallel import RANKS
from tools.measure import weights
from tools.measure.session import ROOT, Side, SideError

SIDES = ("kunlun", "cpu")
DTYPES = ("float32", "bfloat16")
PROMPT = "What is the capital of France, and what is it known for?"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo", description="A language model writes the same text on the chip and on the CPU."
    )
    parser.add_argument("--prompt", default=PROMPT, help="what to ask the model")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens to generate (default 64)")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="kernel threads on each side (default: one for each core)",
    )
    return parser.parse_args()


def prepare(console: Console) -> str:
    """The folder of the converted model; converts it first, once."""
    if not weights.is_converted():
        with console.status(f"converting {weights.NAME} to bfloat16 weights (once, about half a minute)"):
            convert = subprocess.run(
                [sys.executable, "-m", "tools.measure.weights"],
                cwd=ROOT,
                env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "HF_HUB_OFFLINE": "1"},
                check=False,
                capture_output=True,
                text=True,
            )
        if convert.returncode != 0:
            raise weights.WeightsError(f"the weights could not be converted:\n{convert.stderr[-4000:]}")
    return str(weights.cached())


def generate(progress: Progress, folder: str, side: str, dtype: str, options: argparse.Namespace) -> dict:
    """Load and generate on one side, in a process that lives only for this; returns what it measured."""
    task = progress.add_task(f"{side:6} {dtype:8} loading", total=options.new_tokens)
    with Side(side, options.threads) as worker:
        loaded = worker.ask("load", folder=folder, dtype=dtype)
        progress.update(task, description=f"{side:6} {dtype:8} writing")
        result = worker.ask(
            "generate",
            prompts=[options.prompt],
            new_tokens=options.new_tokens,
            ticks=True,
            on_tick=lambda count: progress.update(task, completed=count),
        )
        progress.update(task, description=f"{side:6} {dtype:8} done", completed=options.new_tokens)
        return {**result, "load": loaded, "facts": worker.facts}


def generate_in_parallel(progress: Progress, folder: str, options: argparse.Namespace) -> dict:
    """The float32 model once more, tensor parallel over RANKS devices that talk by XCCL."""
    task = progress.add_task(f"{RANKS} x kunlun float32", total=options.new_tokens)
    command = [sys.executable, "-m", "tools.demo.parallel", "--folder", folder, "--prompt", options.prompt]
    command += ["--new-tokens", str(options.new_tokens)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    result = None
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        for line in process.stdout:
            answer = json.loads(line)
            if "tick" in answer:
                progress.update(task, completed=answer["tick"])
            result = answer.get("done", result)
        if process.wait() != 0 or result is None:
            log.seek(0)
            raise SideError(f"the tensor-parallel run failed:\n{log.read()[-4000:]}")
    progress.update(task, description=f"{RANKS} x kunlun float32 done", completed=options.new_tokens)
    return result


def parallel_table(result: dict, single: dict, options: argparse.Namespace) -> Table:
    """Three devices against one."""
    same = "the same, token by token" if result["tokens"] == single["tokens"] else "[red]different[/red]"
    title = f"{weights.NAME}, float32, tensor parallel over XCCL: {RANKS} ranks, each a device of its own"
    shown = Table(title=title, expand=True)
    shown.add_column("")
    shown.add_column(f"{RANKS} x kunlun", ratio=1)
    shown.add_row("text", result["texts"][0], end_section=True)
    shown.add_row("tokens", f"{len(result['tokens'][0])}, {same} as on one device")
    shown.add_row("tokens/s", f"{options.new_tokens / result['seconds']:.1f}")
    memory = ", ".join(f"{value / 1e6:.0f}" for value in result["memory_of_ranks"])
    shown.add_row("peak memory", f"{memory} MB of tensors on the devices, {single['memory'] / 1e6:.0f} MB on one alone")
    return shown


def operators(result: dict) -> str:
    counts = result["operators"]
    if not counts:
        return "-"
    tiers = {"launcher": "launchers", "boxed": "boxed", "host_call": "host calls"}
    return ", ".join(f"{counts[key]:,} {word}" for key, word in tiers.items())


def table(dtype: str, results: dict[str, dict], options: argparse.Namespace) -> Table:
    """Both sides of one dtype next to each other."""
    kunlun, cpu = (results[side] for side in SIDES)
    speed = {side: options.new_tokens / results[side]["seconds"] for side in SIDES}
    same = "the same, token by token" if kunlun["tokens"] == cpu["tokens"] else "[red]different[/red]"
    shown = Table(title=f"{weights.NAME}, {dtype}, greedy, {options.threads} kernel threads on each side", expand=True)
    shown.add_column("")
    for side in SIDES:
        shown.add_column(f"{side} ({results[side]['facts'].get('name', 'torch ' + cpu['facts']['torch'])})", ratio=1)
    shown.add_row("text", kunlun["texts"][0], cpu["texts"][0], end_section=True)
    shown.add_row("tokens", f"{len(kunlun['tokens'][0])}, {same}", str(len(cpu["tokens"][0])))
    ratio = speed["kunlun"] / speed["cpu"]
    shown.add_row("tokens/s", f"{speed['kunlun']:.1f} ({ratio:.2f}x of the CPU)", f"{speed['cpu']:.1f}")
    shown.add_row(
        "peak memory",
        f"{kunlun['memory'] / 1e6:.0f} MB of tensors on the device",
        f"{cpu['memory'] / 1e6:.0f} MB, the whole process",
    )
    shown.add_row("operators", operators(kunlun), "-")
    shown.add_row("copying fallbacks", str(kunlun["operators"].get("fallback", "-")), "-")
    return shown


def main() -> int:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        folder = prepare(console)
        results: dict[str, dict[str, dict]] = {}
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            for dtype in DTYPES:
                results[dtype] = {side: generate(progress, folder, side, dtype, options) for side in SIDES}
            parallel = generate_in_parallel(progress, folder, options)
    except (SideError, weights.WeightsError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    console.print(f"\n[bold]{options.prompt}[/bold]\n")
    for dtype in DTYPES:
        console.print(table(dtype, results[dtype], options))
    console.print(parallel_table(parallel, results["float32"]["kunlun"], options))
    equal = all(sides["kunlun"]["tokens"] == sides["cpu"]["tokens"] for sides in results.values())
    if not equal:
        console.print("error: the two sides wrote different tokens", style="red")
    spread = parallel["tokens"] == results["float32"]["kunlun"]["tokens"]
    if not spread:
        console.print("error: several devices wrote other tokens than one", style="red")
    return 0 if equal and spread else 1


if __name__ == "__main__":
    sys.exit(main())
