# Where checkpoints lie, and the process that makes those that are missing. Imports neither torch nor transformers.
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("families.py", "make.py", "tokenizer.py", "vectors.py", "vision.py", "weights.py", "writing.py")


class ZooError(RuntimeError):
    """A checkpoint could not be made; the text holds the maker's own words."""


@functools.cache  # a long run stays with the code that it began with
def folder() -> Path:
    """The cache for this code and these libraries: another transformers may save, load and compute differently."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    names = [f"{name}-{version(name).partition('+')[0]}" for name in ("transformers", "torch")]
    return ROOT / "build" / "zoo" / "-".join([*names, digest.hexdigest()[:8]])


def checkpoint(name: str) -> Path:
    """The folder of one checkpoint, made first if need be."""
    ensure([name])
    if reason := unavailable(name):
        raise ZooError(f"{name}: {reason}")
    return folder() / name


def reference(name: str) -> dict:
    """What transformers computes on the CPU, in float32: tokens, texts and gaps, or vectors, or scores."""
    return json.loads((checkpoint(name) / "reference.json").read_text())


def unavailable(name: str) -> str | None:
    """Why the installed transformers cannot make this checkpoint, or None."""
    path = folder() / name / "unavailable.txt"
    return path.read_text() if path.exists() else None


def is_made(name: str) -> bool:
    return any((folder() / name / file).exists() for file in ("reference.json", "unavailable.txt"))


def ensure(names: Iterable[str], on_made: Callable[[str], None] = lambda name: None) -> None:
    """Make what is missing, in a process without the extension. `on_made` is called with each name as it is done."""
    missing = [name for name in names if not is_made(name)]
    if not missing:
        return
    environment = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tools.zoo", *missing],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        made = []
        for line in process.stdout:
            made.append(line.strip())
            on_made(made[-1])
        errors = process.stderr.read()
    if process.returncode:
        raise ZooError(f"making {', '.join(n for n in missing if n not in made)} failed:\n{errors[-4000:]}")
