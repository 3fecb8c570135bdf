"""``python -m torch_xpu_kunlun audit``: which operators a model uses, and how each would be served on this chip.

The model runs once, by default on fake tensors: no weights in memory, nothing computed, no card. ``--on simulator``
(or whatever driver ``KUNLUN_CHIP`` names) really runs it, and adds each operator's share of time.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from torch_xpu_kunlun import _C, tiers
from torch_xpu_kunlun.audit._record import Recorder, Usage
from torch_xpu_kunlun.audit._table import page
from torch_xpu_kunlun.audit._target import AuditError, Target, load_target

__all__ = ["AuditError", "Recorder", "Target", "Usage", "add_arguments", "failing", "load_target", "main"]

# What may be forbidden, the least bad first; what is forbidden forbids all that is worse.
FORBIDDEN = ("host_call", "boxed", "fallback")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="a folder of a transformers model (its config.json is enough), or package.module:callable. The callable "
        "returns a model and its inputs, or it is itself what is to be run",
    )
    parser.add_argument(
        "--on",
        choices=["fake", "simulator"],
        default="fake",
        help="fake: no weights, nothing is computed (default); simulator: run it on the chip driver in use",
    )
    parser.add_argument("--train", action="store_true", help="with gradients and a backward pass")
    parser.add_argument("--batch", type=int, default=1, help="sequences given to a transformers model (default 1)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each sequence (default 32)")
    parser.add_argument(
        "--fail-on",
        choices=FORBIDDEN,
        help="exit with 1 if an operator is served by this tier or a slower one, or by none",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write everything to FILE")


def failing(usages: list[Usage], forbidden: str | None) -> list[Usage]:
    """The operators whose tier is `forbidden` or slower; nobody's, those that cannot run at all, are always among
    them."""
    limit = tiers.SLOWER.index(forbidden or "missing")
    return [usage for usage in usages if usage.tier in tiers.SLOWER[limit:]]


def main(arguments: argparse.Namespace) -> int:
    """Runs the audit that the arguments describe, prints the table, and returns the exit code: 1 where something is
    not allowed, 2 where the model cannot be audited."""
    fake = arguments.on == "fake"
    recorder = Recorder(fake)
    try:
        if _C._get_autocompare_settings() is not None:
            raise AuditError("KUNLUN_AUTOCOMPARE puts kernels of its own in the place of those that are to be audited")
        load_target(arguments.model, arguments.batch, arguments.tokens, arguments.train).run(recorder)
    except AuditError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    usages = recorder.usages()
    print(page(arguments.model, usages, fake))
    if arguments.json:
        document = {"model": arguments.model, "on": arguments.on, "operators": [usage.as_dict() for usage in usages]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    bad = failing(usages, arguments.fail_on)
    if bad:
        print(
            f"\nNot allowed ({arguments.fail_on or 'without any kernel'}): "
            + ", ".join(usage.operator for usage in bad)
        )
    return 1 if bad else 0
