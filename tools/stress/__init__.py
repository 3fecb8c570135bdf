# Builds and runs the stress program of the simulated chip, with or without a sanitizer.
import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SANITIZERS = ("thread", "address,undefined")


class StressError(RuntimeError):
    """The program could not be built, or found something; the text holds all it wrote."""


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def sanitizer_works(sanitizer: str, folder: Path) -> bool:
    """Whether the compiler has the sanitizer's runtime, and this machine can run it."""
    source, program = folder / "probe.cpp", folder / "probe"
    source.write_text("int main() { return 0; }\n")
    command = [compiler(), f"-fsanitize={sanitizer}", str(source), "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return False
    return subprocess.run([str(program)], capture_output=True, check=False).returncode == 0


def build(folder: Path, sanitizer: str = "") -> Path:
    """Compiles the program into `folder`; `sanitizer` is one of SANITIZERS or empty."""
    command = ["make", "-s", f"-j{os.cpu_count()}", "-C", str(FOLDER), f"OUT={folder}", f"SANITIZE={sanitizer}"]
    # With ccache, what did not change is not compiled again.
    command.append(f"CXX={'ccache ' if shutil.which('ccache') else ''}{compiler()}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StressError(done.stdout + done.stderr)
    return folder / "stress"


def run(program: Path, seconds: float, threads: int = 4, seed: int = 1) -> str:
    """Runs the program; returns what it counted. Raises StressError for whatever it or a sanitizer finds."""
    # Nothing of the surroundings: no variable of ours, and no suppressions.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KUNLUN_") and not k.endswith("SAN_OPTIONS")}
    try:
        done = subprocess.run(
            [str(program), str(seconds), str(threads), str(seed)],
            env=kept,
            capture_output=True,
            text=True,
            timeout=seconds + 300,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StressError(f"did not end: {error}") from error
    if done.returncode != 0 or done.stderr:
        raise StressError(f"ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()
