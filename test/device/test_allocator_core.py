# Builds and runs the C++ tests of the allocator's core, which needs no torch.
import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "cpp"


def build_and_run(out: Path, sanitize: str, **environment: str) -> None:
    make = ["make", "-s", "-C", str(FOLDER), f"OUT={out}", f"SANITIZE={sanitize}", "-j2"]
    built = subprocess.run(make, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(
        [str(out / "allocator_tests")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "passed" in ran.stderr


pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs make and g++"
)


def test_core(tmp_path):
    build_and_run(tmp_path, "")


@pytest.mark.full
@pytest.mark.parametrize("sanitize", ["thread", "address,undefined"])
def test_core_under_sanitizers(tmp_path, sanitize):
    build_and_run(tmp_path, sanitize, ASAN_OPTIONS="detect_leaks=0", TSAN_OPTIONS="halt_on_error=1")
