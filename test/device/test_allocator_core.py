# Builds and runs the C++ tests and the fuzzer of the allocator's core, which needs no torch.
import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "cpp"


def build(out: Path, sanitize: str) -> None:
    make = ["make", "-s", "-C", str(FOLDER), f"OUT={out}", f"SANITIZE={sanitize}", "-j2"]
    built = subprocess.run(make, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def run(*command: str, **environment: str) -> str:
    ran = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs make and g++"
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    out = tmp_path_factory.mktemp("allocator")
    build(out, "")
    return out


def test_core(programs):
    assert "passed" in run(str(programs / "allocator_tests"))


def test_random_use_for_a_few_seconds(programs):
    # Another seed every time: a failure names it.
    seed = int.from_bytes(os.urandom(4), "little")
    text = run(str(programs / "fuzz_allocator"), "--seconds", "5", "--seed", str(seed), KUNLUN_SIM_MEMORY="256M")
    assert "no difference" in text


@pytest.mark.full
@pytest.mark.parametrize("sanitize", ["thread", "address,undefined"])
def test_core_under_sanitizers(tmp_path, sanitize):
    build(tmp_path, sanitize)
    options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
    assert "passed" in run(str(tmp_path / "allocator_tests"), **options)
    fuzz = run(str(tmp_path / "fuzz_allocator"), "--seconds", "20", KUNLUN_SIM_MEMORY="256M", **options)
    assert "no difference" in fuzz
