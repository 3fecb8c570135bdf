"""The coverage of operators: tiers and kernels of the driver in use, results of the tests, three files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools import op_coverage
from torch_xpu_kunlun import _C, tiers

ROOT = Path(__file__).parents[2]
TIER = "boxed" if torch.kunlun.get_device_properties(0).is_host_addressable else "fallback"
RESULTS = """<testsuites><testsuite>
<testcase name="a"><properties><property name="operator" value="sort"/><property name="dtype" value="float16"/></properties></testcase>
<testcase name="b"><properties><property name="operator" value="sort"/><property name="dtype" value="int8"/></properties><failure message="no"/></testcase>
<testcase name="c"><properties><property name="operator" value="sort"/><property name="dtype" value="int8"/></properties></testcase>
<testcase name="d"><properties><property name="operator" value="add"/><property name="dtype" value="bool"/></properties><skipped type="pytest.xfail" message="m"/></testcase>
<testcase name="e"><properties><property name="operator" value="add"/><property name="dtype" value="int8"/></properties><skipped type="pytest.skip" message="m"/></testcase>
<testcase name="f"/>
</testsuite></testsuites>"""  # noqa: E501


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text(RESULTS)
    return op_coverage.read_results(path)


@pytest.fixture(scope="module")
def plain():
    return op_coverage.document({})


def row(document: dict, operator: str) -> dict:
    return next(row for row in document["operators"] if row["operator"] == operator)


def test_the_worst_result_of_an_operator_and_dtype_counts(results):
    assert results == {"sort": {"float16": "passed", "int8": "failed"}, "add": {"bool": "expected failure"}}


@pytest.mark.parametrize(
    ("operator", "kind", "tier", "chip_operator"),
    [
        ("aten::sort.stable", "generated launcher", "launcher", "aten::sort.values_stable"),
        ("aten::where.self", "hand-written", "launcher", "aten::where.self_out"),
        ("aten::add_.Tensor", "generated launcher", "launcher", "aten::add.out"),
        ("aten::relu", "hand-written", "launcher", "aten::clamp_min.out"),
        ("aten::view", "hand-written", "none", None),
        ("aten::nonzero", "boxed", TIER, "aten::nonzero"),
    ],
)
def test_rows_say_who_wrote_the_kernel_and_what_serves_it(plain, operator, kind, tier, chip_operator):
    found = row(plain, operator)
    assert (found["kind"], found["tiers"]["float32"], found["chip_operator"]) == (kind, tier, chip_operator)


def test_every_operator_of_the_cpu_is_there_and_counted_once(plain):
    names = [found["operator"] for found in plain["operators"]]
    assert len(names) == len(set(names))
    assert set(names) >= op_coverage.kernels_of("CPU")
    kinds = [plain["counts"][kind]["overloads"] for kind in op_coverage.KINDS]
    assert sum(kinds) == len(names)
    assert plain["counts"]["generated launcher"]["overloads"] > 500
    assert plain["counts"]["registered for torch's CPU"]["overloads"] > 1000


def test_the_pages_hold_every_operator_and_its_tests(results):
    document = op_coverage.document(results)
    markdown, page = op_coverage.markdown(document), op_coverage.page(document)
    for text in (markdown, page):
        assert all(found["operator"] in text for found in document["operators"])
        assert "failed: int8; passed: float16" in text or "passed: float16; failed: int8" in text
        assert "expected failure: bool" in text
    assert "http" not in page.replace("http-equiv", "")  # self-contained
    assert page.count("<tr>") >= len(document["operators"])


def test_a_shorter_operator_list_shows_what_would_fall_back(tmp_path, monkeypatch):
    monkeypatch.setenv("KUNLUN_SIM_HOST_ADDRESSABLE", "0")
    monkeypatch.setenv("KUNLUN_SIM_OPERATORS", "without=aten::mm")
    monkeypatch.setenv("KUNLUN_SIM_DTYPES", "without=float64")
    command = [sys.executable, str(ROOT / "tools" / "op_coverage.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd="/", check=True, capture_output=True, text=True)
    document = json.loads((tmp_path / "op_coverage.json").read_text())
    assert row(document, "aten::mm")["tiers"]["float32"] == "fallback"
    add = row(document, "aten::add.Tensor")["tiers"]
    assert (add["float32"], add["float64"]) == ("launcher", "fallback")
    assert row(document, "aten::nonzero")["tiers"]["float32"] == "fallback"
    assert "a simulated chip" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {f"op_coverage.{end}" for end in ("json", "md", "html")}


def launches(call) -> list[tuple[str, str]]:
    _C._start_operator_trace()
    try:
        call()
    finally:
        trace = _C._stop_operator_trace()
    return trace


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("aten::max", torch.max),
        ("aten::min", torch.min),
        ("aten::rsub.Tensor", lambda x: torch.rsub(x, x)),
        ("aten::native_dropout", lambda x: torch.native_dropout(x, 0.5, True)),
        ("aten::native_dropout_backward", lambda x: torch.ops.aten.native_dropout_backward(x, x > 0, 2.0)),
        ("aten::convolution_overrideable", lambda x: torch.nn.functional.conv1d(x, x[:, :, None])),
        ("aten::conj_physical_", lambda x: x.to(torch.complex64).conj_physical_()),
        ("aten::linear", lambda x: torch.nn.functional.linear(x, x)),
        ("aten::empty_strided", lambda x: torch.empty_strided((2,), (1,), device="kunlun")),
        ("aten::_copy_from", lambda x: torch.empty(4, 4, dtype=torch.half).copy_(x)),
    ],
)
def test_what_is_said_of_an_exception_from_the_rule_is_what_happens(operator, call):
    x = torch.randn(4, 4, device="kunlun")
    service = tiers.service(tiers.overload_named(operator), [torch.float32])
    seen = launches(lambda: call(x))
    assert tiers.slowest([tier for tier, _ in seen]) == service.tier, seen
    if service.chip_operator:
        assert service.chip_operator in [name for _, name in seen]
