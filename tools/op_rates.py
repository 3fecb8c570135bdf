"""The rates at which torch's operator test-bed passes on kunlun, from what pytest wrote with ``--rates FILE``.

    python -m tools.op_rates build/test-full/*.json                                # prints the table
    python -m tools.op_rates build/test-full/*.json --write docs/operator_tests.md # writes it as a document

A case is one kind of check of one operator in one dtype, over all of its samples. It passes when the device does with
every sample what the CPU does. A case whose samples the CPU refuses has nothing to compare and is counted apart.
"""

from __future__ import annotations

import argparse
import collections
import json
from collections.abc import Callable, Iterable
from pathlib import Path

DOCUMENT = """# Operator tests: what passes

torch carries a database of its operators, with inputs for each, and a list of checks. This is what stock CPU torch
{torch} does with them, and in how many cases kunlun does the same, bit for bit. Written by

```
make test-full
python -m tools.op_rates build/test-full/*.json --write docs/operator_tests.md
```

on the simulated chip, {date}; these parts of `make test-full` took {minutes:.0f} minutes of processor time. A case is
one kind of check of one operator in one dtype, with all of its samples. It passes if the device does with each sample
what the CPU does: the same values, dtypes, shapes and strides, or the same error. Where the CPU refuses every sample,
or the check applies to none (a constant derivative has no second one), there is nothing to compare; that counts in no
rate. A sample is the quick suite's share of the cases.

{tables}

Cases that do not pass are lines of `test/aten/op_db_skips.txt`, each with its reason and a link; a case of such a line
that passes after all fails the suite. The quick suite, `make test`, runs all operators in float32 and a sample of
everything else, chosen by a hash of the case's name.

## What each check compares

{explanations}
"""

EXPLANATIONS = {
    "values": "results of every sample",
    "out=": "`out=` of the right size, of a wrong one, empty, with gaps, of reversed strides, of other dtypes, that "
    "requires a gradient; warnings and errors included",
    "non-contiguous": "inputs with gaps, of reversed strides, with an offset in their storage",
    "conj and neg views": "inputs with the conjugate bit, the negative bit, and both",
    "variants": "method, in place, Python operator, aliases; errors of variants that a sample cannot use",
    "sharing and views": "which input a result is, whose storage it has and from where, whether it is a view",
    "reruns": "twice under `torch.use_deterministic_algorithms`: the same bits",
    "backward": "gradients of all inputs, from random incoming gradients",
    "backward, in place": "the same through the in-place variant",
    "forward mode": "results and tangents, from random tangents",
    "second derivative": "backward of backward",
    "forward over reverse": "tangents of gradients",
    "error inputs": "torch's wrong inputs: the same exception with the same text, device names aside",
    "error inputs made for a device": "wrong inputs that torch makes for devices only, such as tensors on two of them",
    "dtypes the CPU lacks": "dtypes that the CPU has no kernel for, float8 and complex32 included: refused, or the "
    "same result where some samples run all the same",
    "sparse layouts": "inputs in COO, CSR, CSC, BSR, BSC",
    "unary": "unary elementwise operators: small, large, extremal values, strides, in place",
    "binary": "binary elementwise operators: those, broadcasting, Python scalars, type promotion",
    "reductions": "every form of `dim`, `keepdim`, `dtype`, empty tensors, NaN and infinity; errors included",
    "modules": "`torch.nn` modules: forward, backward, state, moved to the device and made there",
    "modules: error inputs": "the same exception with the same text",
    "foreach": "operators over lists: functional and in place, with gaps, empty, of mixed dtypes",
    "foreach: backward": "their gradients",
}
NOTHING = "nothing to compare"
OUTCOMES = ("passed", "expected failure", "failed")


def nothing(case: dict) -> bool:
    """Whether the CPU refused every sample, or the check applied to none."""
    return case["outcome"] == "passed" and not case.get("compared")


def table(cases: Iterable[dict], key: Callable[[dict], object], heading: str) -> list[list[str]]:
    """A header, and a line for each value of the key."""
    groups: dict[object, list[dict]] = collections.defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    groups["all"] = [case for found in groups.values() for case in found]
    lines = [[heading, "operators", "cases", "samples", "passed", "expected failures", "failed", "rate", NOTHING]]
    for name, found in groups.items():
        compared = [case for case in found if not nothing(case)]
        count = collections.Counter(case["outcome"] for case in compared)
        # Rounded down: only everything is 100 %.
        rate = f"{10000 * count['passed'] // len(compared) / 100:.2f} %" if compared else "-"
        lines.append(
            [
                str(name),
                str(len({case["operator"] for case in compared})),
                str(len(compared)),
                str(sum(case.get("compared", 0) for case in compared)),
                *(str(count[outcome]) for outcome in OUTCOMES),
                rate,
                str(len(found) - len(compared)),
            ]
        )
    return lines


def named(case: dict, key: str) -> str:
    return case[key] + (" (sample)" if case.get("sample") else "")


def by_kind(cases: list[dict]) -> list[list[str]]:
    order = list(EXPLANATIONS)
    known = sorted(cases, key=lambda case: order.index(case["kind"]) if case["kind"] in order else len(order))
    return table(known, lambda case: named(case, "kind"), "check")


def by_dtype(cases: list[dict]) -> list[list[str]]:
    return table(sorted(cases, key=lambda case: case["dtype"]), lambda case: case["dtype"], "dtype")


def by_place(cases: list[dict]) -> list[list[str]]:
    return table(sorted(cases, key=lambda case: case["place"]), lambda case: named(case, "place"), "tensors on")


def text(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        line[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in lines
    ]


def markdown(lines: list[list[str]]) -> str:
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], "|---|" + "---:|" * (len(lines[0]) - 1), *rows[1:]])


def sections(cases: list[dict]) -> list[tuple[str, list[list[str]]]]:
    usual = [case for case in cases if case["place"] == "kunlun"]
    return [("By check", by_kind(usual)), ("By dtype", by_dtype(usual)), ("By place", by_place(cases))]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="what pytest wrote with --rates")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document to write")
    arguments = parser.parse_args(words)
    run: dict = {}
    cases = []
    for path in arguments.files:
        found = json.loads(path.read_text())
        if isinstance(found, dict):  # about the run itself, from tools/test_full.py
            run = found
        else:
            cases += found
    if not cases:
        parser.error("none of these files has operator tests")
    for heading, lines in sections(cases):
        print(f"\n{heading}\n" + "\n".join(text(lines)))
    if arguments.write:
        if not run:
            parser.error("--write needs the file run.json of `make test-full` as well")
        tables = "\n\n".join(f"## {heading}\n\n{markdown(lines)}" for heading, lines in sections(cases))
        explanations = "\n".join(f"- **{kind}**: {what}" for kind, what in EXPLANATIONS.items())
        parts = [part for name, part in run["parts"].items() if name != "suite"]
        text_of_page = DOCUMENT.format(
            torch=run["torch"],
            date=max(part["date"] for part in parts),
            minutes=sum(part["processor_minutes"] for part in parts),
            tables=tables,
            explanations=explanations,
        )
        arguments.write.write_text(text_of_page)
        print(f"\nwritten: {arguments.write}")


if __name__ == "__main__":
    main()
