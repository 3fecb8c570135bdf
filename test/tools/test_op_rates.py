"""The table of rates: what counts as passed, what does not count, and that pytest's runs end up in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import op_rates, test_full

ROOT = Path(__file__).parents[2]


def case(kind="values", operator="add", dtype="float32", outcome="passed", compared=3, place="kunlun") -> dict:
    return {
        "kind": kind, "operator": operator, "dtype": dtype, "outcome": outcome, "compared": compared, "place": place
    }  # fmt: skip


CASES = [
    case(),
    case(operator="mul"),
    case(operator="mul", dtype="int8", outcome="failed"),
    case(operator="div", outcome="expected failure"),
    case(operator="eye", compared=0),
    case(kind="out=", dtype="int8"),
]


def row(lines: list[list[str]], name: str) -> dict[str, str]:
    return next(dict(zip(lines[0], line, strict=True)) for line in lines[1:] if line[0] == name)


def test_a_rate_counts_what_could_be_compared():
    values = row(op_rates.by_kind(CASES), "values")
    assert values["cases"] == "4"
    assert values["operators"] == "3"
    assert values["samples"] == "12"
    assert (values["passed"], values["expected failures"], values["failed"]) == ("2", "1", "1")
    assert values["rate"] == "50.00 %"
    assert values["nothing to compare"] == "1"
    assert row(op_rates.by_kind(CASES), "out=")["rate"] == "100.00 %"
    assert row(op_rates.by_dtype(CASES), "int8")["rate"] == "50.00 %"
    assert row(op_rates.by_kind(CASES), "all")["cases"] == "5"


def test_a_rate_is_never_rounded_up_to_everything():
    lines = op_rates.by_kind([case(operator=str(number)) for number in range(100_000)] + [case(outcome="failed")])
    assert row(lines, "all")["rate"] == "99.99 %"


def test_places_are_apart_and_the_document_needs_the_whole_run(tmp_path, capsys):
    cases, run, out = tmp_path / "a.json", tmp_path / "run.json", tmp_path / "page.md"
    cases.write_text(json.dumps([*CASES, case(place="kunlun:1", outcome="failed")]))
    with pytest.raises(SystemExit):
        op_rates.main([str(cases), "--write", str(out)])
    part = {"date": "2000-01-01", "processor_minutes": 4.6}
    about = {"torch": "2.13.0", "parts": {"suite": part, "values": part, "out": part}}
    run.write_text(json.dumps(about))
    op_rates.main([str(cases), str(run), "--write", str(out)])
    assert "kunlun:1" in capsys.readouterr().out
    text = out.read_text()
    assert "| values | 3 | 4 | 12 | 2 | 1 | 1 | 50.00 % | 1 |" in text
    assert "| kunlun:1 | 1 | 1 | 3 | 0 | 0 | 1 | 0.00 % | 0 |" in text
    assert "2000-01-01; these parts of `make test-full` took 9 minutes" in text


def test_every_kind_of_check_is_explained():
    kinds = set()
    for path in (ROOT / "test/aten/op_db").glob("test_*.py"):
        kinds |= {name for name in op_rates.EXPLANATIONS if f'"{name}"' in path.read_text()}
    assert kinds == set(op_rates.EXPLANATIONS)


def test_a_run_writes_what_it_compared(tmp_path):
    path = tmp_path / "rates.json"
    test = "test/aten/op_db/test_values.py::test_float32[add-float32]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rates={path}", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    [found] = json.loads(path.read_text())
    assert (found["kind"], found["operator"], found["dtype"]) == ("values", "add", "float32")
    assert found["outcome"] == "passed"
    assert found["compared"] > 5
    assert "100.00 %" in done.stdout


def test_the_parts_of_the_full_sweep_are_the_suite():
    words = [arguments for arguments, environment in test_full.PARTS.values() if not environment]
    assert ["test", f"--ignore={test_full.OPERATORS}"] in words
    files = {str(path.relative_to(ROOT)) for path in (ROOT / test_full.OPERATORS).glob("test_*.py")}
    assert len(files) > 5
    assert {arguments[0] for arguments in words} == files | {"test"}
    assert all(not arguments[1:] for arguments in words if arguments[0] != "test")


def test_a_part_that_runs_again_replaces_what_it_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(test_full, "OUT", tmp_path / "build")
    monkeypatch.setattr(test_full, "ROOT", tmp_path)
    passes = tmp_path / "test_this.py"
    passes.write_text("def test_this():\n    pass\n")
    monkeypatch.setattr(test_full, "PARTS", {"one": ([str(passes)], {}), "two": ([str(tmp_path / "absent.py")], {})})
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "zero.json").write_text(json.dumps(CASES))
    words = ["-p", "no:cacheprovider", f"--rootdir={ROOT}", f"-c={ROOT / 'pyproject.toml'}", f"--confcutdir={ROOT}"]
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'test'}")
    plugin = ["-p", "common_rates"]
    assert test_full.main(["--only", "one", *plugin, *words]) == 0
    assert test_full.main(["--only", "two", *plugin, *words]) == 1
    out = capsys.readouterr().out
    assert "1 passed" in out
    assert "failed: two" in out
    parts = json.loads((tmp_path / "build" / "run.json").read_text())["parts"]
    assert set(parts) == {"one", "two"}
    assert parts["one"]["processor_minutes"] > 0
