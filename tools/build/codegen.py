# Runs code generation when one of its inputs changed, and touches only those outputs whose text changed.
import hashlib
import sys
import tempfile
from pathlib import Path

from tools.build.sources import CSRC, ROOT
from tools.build.toolchain import Torch, run_quietly

GENERATOR = ROOT / "tools" / "codegen" / "generate.py"


def fingerprint(torch: Torch) -> str:
    """A digest of everything the generated text depends on."""
    digest = hashlib.sha256(torch.version.encode())
    schemas = torch.root.parent / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
    # The generator also looks through the hand-written operators, to leave out what they register themselves.
    inputs = [
        path
        for folder in (GENERATOR.parent, CSRC / "aten")
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    for path in [*sorted(inputs), schemas]:
        digest.update(str(path).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def update(source: Path, destination: Path) -> None:
    """Make `destination` equal to `source`, leaving files whose contents are the same untouched for ninja's sake."""
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    present = {path.relative_to(destination) for path in destination.rglob("*") if path.is_file()}
    for stale in present - wanted:
        (destination / stale).unlink()
    for name in sorted(wanted):
        target = destination / name
        text = (source / name).read_bytes()
        if name not in present or target.read_bytes() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)


def generate(torch: Torch, folder: Path) -> None:
    """Bring the generated sources in `folder` up to date."""
    folder.mkdir(parents=True, exist_ok=True)
    if not GENERATOR.exists():
        return
    stamp = folder.with_suffix(".stamp")
    current = fingerprint(torch)
    if stamp.exists() and stamp.read_text() == current:
        return
    print("generating operator sources", flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="generated-") as fresh:
        run_quietly([sys.executable, str(GENERATOR), "--out", fresh], cwd=ROOT)
        update(Path(fresh), folder)
    stamp.write_text(current)
