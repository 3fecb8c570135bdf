"""pytest hooks: collects what the tests over torch's operator database compared, prints the table of rates, writes it.

    pytest test/aten/op_db --rates build/op_rates/op_db.json

A test says what it is about with the properties that `common_op_checks.check` records.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tools import op_rates


def place() -> str:
    """Where the tensors of this run were, and what chip it was."""
    device = os.environ.get("KUNLUN_TEST_DEVICE", "kunlun")
    copies = os.environ.get("KUNLUN_SIM_HOST_ADDRESSABLE", "1") == "0"
    return device + (", memory that the host cannot reach" if copies else "")


def pytest_addoption(parser):
    parser.addoption("--rates", type=Path, metavar="FILE", help="write what the operator tests compared, as JSON")


class Recorder:
    def __init__(self, sample: bool):
        self.sample = sample  # the quick suite's share of the cases
        self.cases: list[dict] = []

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties)
        if report.when != "call" or "kind" not in properties:
            return
        outcome = "expected failure" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        self.cases.append({"place": place(), "sample": self.sample, **properties, "outcome": outcome})

    def pytest_terminal_summary(self, terminalreporter, config):
        if not self.cases:
            return
        terminalreporter.section("tests over torch's operator database")
        for line in op_rates.text(op_rates.by_kind(self.cases)):
            terminalreporter.write_line(line)
        path = config.getoption("rates")
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.cases))
            terminalreporter.write_line(f"written: {path}")


def pytest_configure(config):
    config.pluginmanager.register(Recorder(config.getoption("markexpr") == "not full"), "rates of the operator tests")
