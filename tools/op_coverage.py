"""Which tier serves each operator overload and dtype on the chip driver in use, and what the operator tests say.

    python tools/op_coverage.py --out build/op_coverage            # JSON, Markdown and HTML of this driver
    python tools/op_coverage.py --run --out build/op_coverage      # runs the operator tests first
    KUNLUN_CHIP=./driver.so python tools/op_coverage.py            # what would fall back on another driver

Tiers are asked of the dispatcher and of the driver's table (torch_xpu_kunlun/tiers.py). Tests are those over torch's
operator database: pytest writes their results with --junitxml, ``--results`` reads such a file. They name operators,
not overloads, so that all overloads of an operator show its tests.
"""

from __future__ import annotations

import argparse
import collections
import html
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch

from torch_xpu_kunlun import _C, tiers

ROOT = Path(__file__).resolve().parents[1]
TESTS = ["test/aten/op_db"]
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
# torch's own test operators.
NOT_OPERATORS = ("aten::_test_", "aten::_foobar")


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def base_name(operator: str) -> str:
    """aten::add_.Tensor -> add: what the tests know it by."""
    return operator.partition("::")[2].partition(".")[0].removesuffix("_")


def read_results(path: Path) -> dict[str, dict[str, str]]:
    """Operator -> dtype -> passed, failed or expected failure. Of several tests the worst counts."""
    worst = ["passed", "expected failure", "failed"]
    results: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        if "operator" not in properties:
            continue
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif (skipped := case.find("skipped")) is not None:
            if skipped.get("type") != "pytest.xfail":
                continue
            outcome = "expected failure"
        known = results[properties["operator"]]
        known[properties["dtype"]] = max(known.get(properties["dtype"], "passed"), outcome, key=worst.index)
    return results


def run_tests(path: Path, everything: bool) -> None:
    """Runs the operator tests; their failures are results, and end nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    select = [] if everything else ["-m", "not full"]
    command = [sys.executable, "-m", "pytest", "-q", *select, f"--junitxml={path}", *TESTS]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode not in (0, 1):  # 1: some tests failed
        raise SystemExit(f"the tests could not be run: pytest ended with {done.returncode}")


def kernels_of(key: str) -> set[str]:
    """Names of overloads of torch and of this project that have a kernel for this dispatch key."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name for name in names if name.startswith(("aten::", "kunlun::")) and not name.startswith(NOT_OPERATORS)}


def rows(results: dict[str, dict[str, str]]) -> list[dict]:
    """One for each overload that the CPU or the device has a kernel for."""
    table = []
    for name in sorted(kernels_of("CPU") | kernels_of("PrivateUse1")):
        op = tiers.overload_named(name)
        services = {short(dtype): tiers.service(op, [dtype]) for dtype in DTYPES}
        first = services["float32"]
        table.append(
            {
                "operator": name,
                "kind": kind(name),
                "chip_operator": first.chip_operator,
                "tiers": {dtype: service.tier for dtype, service in services.items()},
                "chip_kernel": {dtype: service.chip_kernel for dtype, service in services.items()},
                "tests": results.get(base_name(name), {}),
            }
        )
    return table


def kind(name: str) -> str:
    """Who wrote the kernel that the device has."""
    if name.startswith("kunlun::"):
        return "fused"
    registration = tiers.registration(name)
    if registration is None:
        return "composite" if tiers.composite_key(tiers.overload_named(name)) is not None else "none"
    if registration.kind == "boxed":
        return "boxed"
    if "generated/launchers_alike" in registration.source or "generated/launchers_in_place" in registration.source:
        return "declared launcher"
    return "generated launcher" if "generated" in registration.source else "hand-written"


KINDS = {
    "generated launcher": "launchers generated from torch's structured operators",
    "declared launcher": "launchers of others, declared in tools/codegen/alike.py",
    "hand-written": "kernels written for the device: launchers, views, memory",
    "fused": "fused operators, torch.ops.kunlun.*",
    "boxed": "boxed tier",
    "composite": "torch's composite of other operators, where the CPU has a kernel of its own",
    "none": "nothing, the boxed tier takes them all the same",
}


def counts(table: list[dict]) -> dict[str, dict[str, int]]:
    """Kind -> overloads and names; and torch's CPU for comparison."""

    def both(names) -> dict[str, int]:
        return {"overloads": len(names), "names": len({name.partition(".")[0] for name in names})}

    result = {kind: both([row["operator"] for row in table if row["kind"] == kind]) for kind in KINDS}
    result["registered for the device"] = both(kernels_of("PrivateUse1"))
    result["registered for torch's CPU"] = both(kernels_of("CPU"))
    return result


def tier_counts(table: list[dict]) -> dict[str, dict[str, int]]:
    """Dtype -> tier -> overloads."""
    return {short(d): dict(collections.Counter(row["tiers"][short(d)] for row in table)) for d in DTYPES}


def rates(results: dict[str, dict[str, str]]) -> dict[str, dict[str, int]]:
    """Dtype -> outcome -> operators."""
    table: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for outcomes in results.values():
        for dtype, outcome in outcomes.items():
            table[dtype][outcome] += 1
    return {dtype: dict(outcomes) for dtype, outcomes in sorted(table.items())}


def document(results: dict[str, dict[str, str]]) -> dict:
    table = rows(results)
    return {
        "driver": _C._get_chip_info(),
        "torch": torch.__version__,
        "counts": counts(table),
        "tiers": tier_counts(table),
        "tests": rates(results),
        "operators": table,
    }


# ---- pages ----


def title(doc: dict) -> str:
    simulated = " (a simulated chip)" if doc["driver"]["driver"] == "sim" else ""
    return f"driver {doc['driver']['driver']} {doc['driver']['driver_version']}{simulated}, torch {doc['torch']}"


def tier_cell(row: dict) -> str:
    """The tier, and the dtypes that have another one."""
    usual, _ = collections.Counter(row["tiers"].values()).most_common(1)[0]
    others = collections.defaultdict(list)
    for dtype, tier in row["tiers"].items():
        if tier != usual:
            others[tier].append(dtype)
    return usual + "".join(f"; {tier}: {', '.join(dtypes)}" for tier, dtypes in others.items())


def tests_cell(row: dict) -> str:
    found = collections.defaultdict(list)
    for dtype, outcome in sorted(row["tests"].items()):
        found[outcome].append(dtype)
    return "; ".join(f"{outcome}: {', '.join(dtypes)}" for outcome, dtypes in found.items())


def cells(row: dict) -> list[str]:
    kernel = row["chip_operator"] or ""
    if kernel and not any(row["chip_kernel"].values()):
        kernel = f"no ({kernel})"
    return [row["operator"], row["kind"], tier_cell(row), kernel, tests_cell(row)]


HEADER = ["operator", "kernel for the device", "tier", "chip's kernel", "tests"]


def summary(doc: dict) -> list[tuple[str, list[str], list[list[str]]]]:
    """The small tables: heading, columns, rows."""
    order = [*tiers.SLOWER, "none", "composite"]
    used = [tier for tier in order if any(tier in found for found in doc["tiers"].values())]
    result = [
        (
            "Kernels",
            ["", "overloads", "names"],
            [[KINDS.get(k, k), str(v["overloads"]), str(v["names"])] for k, v in doc["counts"].items()],
        ),
        (
            "Tiers, overloads by dtype",
            ["", *used],
            [[dtype, *(str(found.get(tier, 0)) for tier in used)] for dtype, found in doc["tiers"].items()],
        ),
    ]
    if doc["tests"]:
        outcomes = ["passed", "expected failure", "failed"]
        lines = [[dtype, *(str(found.get(o, 0)) for o in outcomes)] for dtype, found in doc["tests"].items()]
        result.append(("Tests over torch's operator database, operators by dtype", ["", *outcomes], lines))
    return result


def markdown(doc: dict) -> str:
    def table(header: list[str], lines: list[list[str]]) -> str:
        body = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
        return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *body])

    parts = [f"# Operators: {title(doc)}", "Written by `python tools/op_coverage.py`."]
    for heading, header, lines in summary(doc):
        parts += [f"## {heading}", table(header, lines)]
    parts += ["## All overloads", table(HEADER, [cells(row) for row in doc["operators"]])]
    return "\n\n".join(parts) + "\n"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Operators: {title}</title><style>
body {{ font: 14px sans-serif; margin: 2em; }} table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ border: 1px solid #ccc; padding: 2px 8px; text-align: left; vertical-align: top; }}
input {{ font-size: 16px; width: 40em; max-width: 100%; }}
</style></head><body><h1>Operators: {title}</h1>{summary}
<h2>All overloads</h2>
<p><input id="words" type="search" autofocus placeholder="words that a line must have, such as: sort boxed"></p>
<p id="count"></p>
<table id="operators"><thead>{header}</thead><tbody>
{body}
</tbody></table><script>
const words = document.getElementById("words"), count = document.getElementById("count");
const lines = [...document.querySelectorAll("#operators tbody tr")].map(e => [e, e.textContent.toLowerCase()]);
function search() {{
  const wanted = words.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  for (const [line, text] of lines) {{
    const match = wanted.every(word => text.includes(word));
    line.hidden = !match;
    shown += match;
  }}
  count.textContent = shown + " of " + lines.length;
}}
words.addEventListener("input", search);
search();
</script></body></html>
"""


def page(doc: dict) -> str:
    def line(values: list[str], tag: str = "td") -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values) + "</tr>"

    small = "".join(
        f"<h2>{html.escape(heading)}</h2><table>{line(header, 'th')}{''.join(map(line, lines))}</table>"
        for heading, header, lines in summary(doc)
    )
    body = "\n".join(line(cells(row)) for row in doc["operators"])
    return PAGE.format(title=html.escape(title(doc)), summary=small, header=line(HEADER, "th"), body=body)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "op_coverage", help="folder for the three files")
    parser.add_argument("--results", type=Path, help="what pytest wrote with --junitxml; default: the last --run")
    parser.add_argument("--run", action="store_true", help="run the operator tests of the quick suite first")
    parser.add_argument("--full", action="store_true", help="with --run: the whole sweep")
    arguments = parser.parse_args(words)
    path = arguments.results or arguments.out / "results.xml"
    if arguments.run:
        run_tests(path, arguments.full)
    elif arguments.results and not path.exists():
        parser.error(f"{path} does not exist")
    doc = document(read_results(path) if path.exists() else {})
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = {"json": json.dumps(doc, indent=1) + "\n", "md": markdown(doc), "html": page(doc)}
    for ending, text in files.items():
        (arguments.out / f"op_coverage.{ending}").write_text(text, encoding="utf-8")
    print(title(doc))
    for heading, header, lines in summary(doc):
        print(f"\n{heading}")
        widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
        for line in [header, *lines]:
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print(f"\nwritten: {', '.join(str(arguments.out / f'op_coverage.{ending}') for ending in files)}")


if __name__ == "__main__":
    main()
