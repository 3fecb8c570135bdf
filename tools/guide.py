# `python -m tools.guide`: runs the tour (test/tour) and writes docs/guide.md with the output of each piece of code.
#
# The Chinese guide has a text of its own; its code and output are brought up to date, in order.
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOUR = ROOT / "test" / "tour"
ENGLISH = ROOT / "docs" / "guide.md"
CHINESE = ROOT / "docs" / "guide.zh-CN.md"
INTRODUCTION = """# A guide to the device

English | [简体中文](guide.zh-CN.md)

<!-- Written by `python -m tools.guide`: text and code are those of `test/tour`, the output is what it printed. -->

Each chapter is a program in `test/tour` that the tests run; what is shown below the code is what it printed, on the
simulated chip.
"""
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Piece:
    """A paragraph of prose and the code that follows it; either may be empty."""

    prose: str
    code: str


def chapters() -> list[Path]:
    return sorted(TOUR.glob("[0-9][0-9]_*.py"))


def pieces(text: str) -> list[Piece]:
    """Comment lines that follow an empty line are prose; the code up to the next such comment belongs to them."""
    found: list[Piece] = []
    prose = True
    previous = ""
    for line in text.splitlines():
        starts = line.startswith("#") and previous == ""
        if starts and (not found or found[-1].code):
            found.append(Piece("", ""))
        prose = line.startswith("#") and (starts or prose)
        if prose:
            found[-1].prose += line[2:] + "\n"
        elif found[-1].code or line:
            found[-1].code += line + "\n"
        previous = line
    return [Piece(piece.prose.strip(), piece.code.strip()) for piece in found]


def run_chapter(path: Path) -> list[str]:
    """What each piece printed. The pieces run one after the other in one namespace, as the whole file would."""
    printed = []
    namespace: dict = {"__name__": "__main__"}
    for piece in pieces(path.read_text()):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(piece.code, str(path), "exec"), namespace)
        printed.append(output.getvalue())
    return printed


def default_environment() -> dict[str, str]:
    """The guide shows what happens where nothing is set: a smaller or faulty chip would print something else."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("KUNLUN_", "PYTORCH_ALLOC_CONF"))}


def run_in_a_process_of_its_own(path: Path) -> list[str]:
    code = "import json, pathlib, sys; from tools import guide\n"
    code += "print(json.dumps(guide.run_chapter(pathlib.Path(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        env=default_environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def render(outputs: dict[str, list[str]]) -> str:
    """The English guide. `outputs`: what the pieces of each chapter printed, by file name."""
    parts = [INTRODUCTION]
    for path in chapters():
        for number, (piece, output) in enumerate(zip(pieces(path.read_text()), outputs[path.name], strict=True)):
            prose = piece.prose.replace("# ", "## ", 1) if number == 0 else piece.prose
            if number == 0:
                prose += f"\n\n(`test/tour/{path.name}`)"
            parts.append(prose + "\n")
            parts.append(f"```python\n{piece.code}\n```\n")
            if output:
                parts.append(f"```\n{output}```\n")
    return "\n".join(parts)


def with_blocks_of(text: str, other: str) -> str:
    """`text` with its fenced blocks replaced by those of `other`, in order."""
    blocks = [match.group(0) for match in FENCED.finditer(other)]
    if len(blocks) != len(FENCED.findall(text)):
        raise ValueError(f"the Chinese guide has {len(FENCED.findall(text))} blocks, the tour makes {len(blocks)}")
    replacements = iter(blocks)
    return FENCED.sub(lambda _: next(replacements), text)


if __name__ == "__main__":
    english = render({path.name: run_in_a_process_of_its_own(path) for path in chapters()})
    ENGLISH.write_text(english)
    CHINESE.write_text(with_blocks_of(CHINESE.read_text(), english))
