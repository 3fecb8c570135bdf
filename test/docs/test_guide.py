"""The tour runs, and the guide in both languages shows what it printed."""

import json
import re
import subprocess
import sys

import pytest

from tools import guide

CHAPTERS = guide.chapters()
RUN = """
import contextlib, json, os, pathlib, sys
import torch, torch_xpu_kunlun
from tools import guide
results = {}
for path in guide.chapters():
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            answer = {"printed": guide.run_chapter(path)}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(write, "w") as file:
            json.dump(answer, file)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        results[path.name] = json.load(file)
    os.wait()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def outcomes():
    """What each chapter printed, each in a process of its own, forked from one that has imported torch."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=guide.ROOT,
        env=guide.default_environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_of_the_tour_runs(path, outcomes):
    assert "error" not in outcomes[path.name], outcomes[path.name]["error"]


def test_the_guide_shows_what_the_tour_prints(outcomes):
    printed = {name: outcome["printed"] for name, outcome in outcomes.items()}
    assert guide.ENGLISH.read_text() == guide.render(printed), "run `python -m tools.guide`"


def test_the_chinese_guide_shows_the_same():
    english, chinese = guide.ENGLISH.read_text(), guide.CHINESE.read_text()
    assert guide.with_blocks_of(chinese, english) == chinese, "run `python -m tools.guide`"

    def outline(text):
        return [line.split()[0] for line in guide.FENCED.sub("", text).splitlines() if line.startswith("#")]

    assert outline(english) == outline(chinese)
    assert re.findall(r"test/tour/\S+\.py", english) == re.findall(r"test/tour/\S+\.py", chinese)


def test_the_tests_that_the_list_of_features_names_exist():
    text = (guide.ROOT / "docs" / "features.md").read_text()
    paths = re.findall(r"`(test/[\w/.]+\.py)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (guide.ROOT / path).exists()] == []


def test_pieces_of_a_chapter():
    text = "# # Title\n#\n# Prose.\n\nx = 1\n# a comment\n\ny = 2\n\n# More prose,\n# two lines.\n\nprint(x)\n"
    first, second = guide.pieces(text)
    assert (first.prose, first.code) == ("# Title\n\nProse.", "x = 1\n# a comment\n\ny = 2")
    assert (second.prose, second.code) == ("More prose,\ntwo lines.", "print(x)")
