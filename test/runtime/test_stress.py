"""The stress program: driver, queues and allocator core from many threads, under sanitizers, no suppressions."""

import shutil

import pytest

from tools import stress

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or shutil.which(stress.compiler()) is None, reason="needs make and a C++ compiler"
)


def needs(sanitizer, folder):
    if not stress.sanitizer_works(sanitizer, folder):
        pytest.skip(
            f"{stress.compiler()} has no runtime for -fsanitize={sanitizer}, or this machine cannot run it "
            "(https://gcc.gnu.org/onlinedocs/gcc/Instrumentation-Options.html)"
        )


def test_under_the_thread_sanitizer(tmp_path):
    needs("thread", tmp_path)
    stress.run(stress.build(tmp_path, "thread"), seconds=3)


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", ["", *stress.SANITIZERS], ids=lambda name: name or "none")
@pytest.mark.parametrize("seed", [2, 3])
def test_longer(tmp_path, sanitizer, seed):
    if sanitizer:
        needs(sanitizer, tmp_path)
    stress.run(stress.build(tmp_path, sanitizer), seconds=30, threads=6, seed=seed)


def test_what_it_finds_is_an_error(tmp_path):
    program = tmp_path / "stress"
    program.write_text("#!/bin/sh\necho WARNING: data race >&2\n")
    program.chmod(0o755)
    with pytest.raises(stress.StressError, match="data race"):
        stress.run(program, seconds=0)
