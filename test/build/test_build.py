# The build's own parts: which rule compiles a file, when generated text is rewritten, how a wrong environment is told.
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.build import codegen, native, ninja_file, sources, toolchain

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("runtime/Env.cpp", "plain"),
        ("runtime/chip/Loader.cpp", "plain"),
        ("runtime/sim/Queue.cpp", "plain"),
        ("runtime/sim/ops/Library.cpp", "torch"),
        ("runtime/Guard.cpp", "torch"),
        ("aten/Empty.cpp", "torch"),
        ("python/Module.cpp", "python"),
    ],
)
def test_driver_queue_and_allocator_core_are_compiled_without_torch(path, kind):
    assert sources.kind_of(path) == kind


def test_plain_sources_get_no_torch_include_path(tmp_path):
    torch = toolchain.Torch("2.13.0", Path("/torch"), True)
    plan = ninja_file.Plan(torch, ["g++"], "1", tmp_path, [])
    assert not any("torch" in flag for flag in ninja_file.flags(plan)["plain"])
    assert str(torch.include) in ninja_file.flags(plan)["torch"]


def test_vectorised_kernels_are_compiled_for_each_instruction_set(tmp_path):
    found = [s for s in sources.handwritten() if s.path.relative_to(sources.CSRC).as_posix().endswith("vec/Norm.cpp")]
    assert [source.kind for source in found] == [f"torch-{isa}" for isa in sources.INSTRUCTION_SETS]
    assert len({source.name for source in found}) == len(found)
    plan = ninja_file.Plan(toolchain.Torch("2.13.0", Path("/torch"), True), ["g++"], "1", tmp_path, [])
    for isa in sources.INSTRUCTION_SETS:
        assert f"-DCPU_CAPABILITY={isa.upper()}" in ninja_file.flags(plan)[f"torch-{isa}"]


def test_generated_files_keep_their_dates_unless_their_text_changed(tmp_path):
    fresh, kept = tmp_path / "fresh", tmp_path / "kept"
    for folder in (fresh, kept):
        folder.mkdir()
        (folder / "same.cpp").write_text("1")
    (fresh / "changed.cpp").write_text("new")
    (kept / "changed.cpp").write_text("old")
    (kept / "stale.cpp").write_text("gone")
    os.utime(kept / "same.cpp", (1, 1))
    codegen.update(fresh, kept)
    assert (kept / "same.cpp").stat().st_mtime == 1
    assert (kept / "changed.cpp").read_text() == "new"
    assert not (kept / "stale.cpp").exists()


def test_ninja_file_is_left_alone_when_nothing_changed(tmp_path):
    torch = toolchain.Torch("2.13.0", Path("/torch"), True)
    plan = ninja_file.Plan(torch, ["g++"], "1", tmp_path, sources.handwritten())
    path = ninja_file.write(plan)
    os.utime(path, (1, 1))
    assert ninja_file.write(plan) == path
    assert path.stat().st_mtime == 1


def test_sources_with_torch_wait_for_the_precompiled_header_and_others_do_not(tmp_path):
    torch = toolchain.Torch("2.13.0", Path("/torch"), True)
    plan = ninja_file.Plan(torch, ["g++"], "1", tmp_path, sources.handwritten(), precompiled=True)
    text = ninja_file.write(plan).read_text()
    header = tmp_path / "precompiled" / "torch.h"
    lines = {line.split(".cpp.o: ")[0]: line for line in text.splitlines() if ".cpp.o: " in line}
    assert lines[f"build {tmp_path}/obj/aten/Empty"].endswith(f" | {header}.gch")
    assert ".gch" not in lines[f"build {tmp_path}/obj/runtime/Env"]
    assert header.exists()


def test_only_gcc_gets_precompiled_headers(tmp_path):
    assert toolchain.is_gcc(["g++"])
    other = tmp_path / "c++"
    other.write_text("#!/bin/sh\necho clang version 19\n")
    other.chmod(0o755)
    assert not toolchain.is_gcc([str(other)])


def test_max_jobs_must_be_a_number(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "3")
    assert toolchain.job_count() == 3
    for text in ("many", "0", "-1", ""):
        monkeypatch.setenv("MAX_JOBS", text)
        with pytest.raises(toolchain.BuildError, match=r"MAX_JOBS='.*' is not a number of jobs; accepted: 1, 2, 3"):
            toolchain.job_count()


def test_a_compiler_that_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(toolchain.BuildError, match=r"'no-such-compiler' is not on PATH.*CXX"):
        toolchain.find_compiler()


def test_without_torch_the_build_stops_and_says_what_to_do():
    """What happens in pip's isolated environment: torch is not there, and pulling in another one would be wrong."""
    script = "import sys; sys.modules['torch'] = None; sys.argv = ['setup.py', 'dist_info']; import setup"
    done = subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "torch cannot be imported" in done.stderr
    assert "pip install --no-build-isolation ." in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_torch_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(toolchain.BuildError, match=r"torch 2\.12\.1\+cpu is installed; .* torch 2\.11, 2\.13, 2\.14"):
        toolchain.find_torch()


def test_torch_from_the_isolated_environment_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__file__", "/tmp/pip-build-env-abc/overlay/site-packages/torch/__init__.py")
    with pytest.raises(toolchain.BuildError, match="isolated build environment"):
        toolchain.find_torch()


def test_build_info_names_version_and_torch():
    torch = toolchain.Torch("2.13.0+cpu", Path("/torch"), True)
    values: dict = {}
    exec(native.build_info(torch), values)
    assert values["VERSION"] == (ROOT / "version.txt").read_text().strip()
    assert values["TORCH_VERSION"] == "2.13.0+cpu"
