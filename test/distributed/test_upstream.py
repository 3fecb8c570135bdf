"""torch's own tests of process groups (`DistributedTest` of its wheel) on XCCL, on two and on four ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
RUNNER = HERE.parent / "common_upstream.py"


def listed(ranks: int) -> dict[str, str]:
    """Tests that do not pass, with the reason."""
    reasons = {}
    for line in (HERE / "upstream_skips.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            test, reason, link = (part.strip() for part in line.split("|"))
            assert reason, line
            assert link.startswith("https://"), line
            name, _, only = test.partition("@")
            if not only or int(only) == ranks:
                reasons[name] = reason
    return reasons


@pytest.fixture(scope="module", params=[2, 4], ids=["2ranks", "4ranks"])
def outcome(request):
    done = subprocess.run(
        [sys.executable, RUNNER, str(request.param)], check=False, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return request.param, json.loads(done.stdout.splitlines()[-1])


def test_all_pass_but_those_listed(outcome):
    ranks, report = outcome
    unexpected = {name: text[-2000:] for name, text in report["failed"].items() if name not in listed(ranks)}
    assert not unexpected, "\n\n".join(f"{name}:\n{text}" for name, text in unexpected.items())
    assert report["run"] - len(report["skipped"]) > 100


def test_those_listed_fail(outcome):
    ranks, report = outcome
    passing = set(listed(ranks)) - set(report["failed"])
    assert not passing, f"these pass, or are not run any more: {sorted(passing)}"


def test_nothing_is_skipped_for_lack_of_devices(outcome):
    _, report = outcome
    lacking = {name: why for name, why in report["skipped"].items() if "devices" in why or "GPU" in why}
    assert not lacking
