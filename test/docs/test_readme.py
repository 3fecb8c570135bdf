# The READMEs say what is so: their program prints what they show, their table lists the variables that exist.
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import readme

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = (ROOT / "README.md").read_text()
CHINESE = (ROOT / "README.zh-CN.md").read_text()
BOTH = pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["README.md", "README.zh-CN.md"])


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and contents of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> list[str]:
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line.split()[0] for line in outside.splitlines() if line.startswith("#")]


def variables(text: str) -> list[str]:
    return re.findall(r"^\| `((?:KUNLUN|XCCL)_\w+)` \|", text, flags=re.MULTILINE)


def test_environment_table_is_the_librarys_own():
    assert readme.with_table(ENGLISH, readme.environment_table()) == ENGLISH, "run `python -m tools.readme`"


def test_both_languages_have_the_same_structure():
    assert headings(ENGLISH) == headings(CHINESE)
    assert variables(ENGLISH) == variables(CHINESE)
    assert blocks(ENGLISH) == blocks(CHINESE)


@BOTH
def test_first_program_prints_what_is_shown(text):
    shown = blocks(text)
    index = next(i for i, (language, _) in enumerate(shown) if language == "python")
    program, expected = shown[index][1], shown[index + 1][1]
    done = subprocess.run([sys.executable, "-c", program], check=True, cwd="/", capture_output=True, text=True)
    assert done.stdout == expected
    assert done.stderr == ""


@BOTH
def test_fused_program_prints_what_is_shown(text):
    shown = blocks(text)
    index = next(i for i, (language, code) in enumerate(shown) if language == "python" and "ops.add_rmsnorm" in code)
    done = subprocess.run([sys.executable, "-c", shown[index][1]], check=True, cwd="/", capture_output=True, text=True)
    assert done.stdout == shown[index + 1][1]
    assert done.stderr == ""


@BOTH
def test_links_inside_the_project_lead_somewhere(text):
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert (ROOT / target).exists(), target


@BOTH
def test_paths_named_in_the_text_exist(text):
    for path in re.findall(r"`((?:csrc|test|tools|torch_xpu_kunlun)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
