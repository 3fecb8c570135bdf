# Builds libtorch_kunlun.so and the Python module, and puts them where the package expects them.
import contextlib
import fcntl
import filecmp
import os
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tools.build import codegen, ninja_file, sources
from tools.build.toolchain import (
    BuildError,
    Torch,
    ccache_environment,
    find_compiler,
    find_ninja,
    find_torch,
    is_gcc,
    job_count,
    run,
)


@dataclass(frozen=True)
class Built:
    """What a build produced: the path of each file below the package, and where it lies now."""

    files: dict[str, Path]


def version() -> str:
    return (sources.ROOT / "version.txt").read_text().strip()


def build_folder(torch: Torch) -> Path:
    """One folder for each pair of torch and Python, so that builds for several of them do not undo each other."""
    return sources.ROOT / "build" / f"torch-{torch.version}-{sysconfig.get_config_var('SOABI')}"


def package_files() -> list[str]:
    """The files a build adds to the package."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return ["lib/libtorch_kunlun.so", f"_C{suffix}", "_build_info.py"]


def build_info(torch: Torch) -> str:
    return (
        "# Written by the build: what this binary is and which torch it was compiled against.\n"
        f'VERSION = "{version()}"\n'
        f'TORCH_VERSION = "{torch.version}"\n'
    )


@contextlib.contextmanager
def only_build_in(folder: Path):
    """Holds the folder for one build: two ninjas over the same objects would spoil each other's work."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another build in {folder} to end", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(folder: Path | None = None, keep_going: bool = False, precompiled: bool = True) -> Built:
    """Generate, compile and link in `folder`. `keep_going` compiles the other files too when one fails.

    With `precompiled`, torch's headers are compiled once, if the compiler is GCC.
    """
    torch = find_torch()
    folder = folder or build_folder(torch)
    with only_build_in(folder):
        return build_holding(folder, torch, keep_going, precompiled)


def build_holding(folder: Path, torch: Torch, keep_going: bool, precompiled: bool) -> Built:
    generated = folder / "generated"
    codegen.generate(torch, generated)
    compiler = find_compiler()
    plan = ninja_file.Plan(
        torch=torch,
        compiler=compiler,
        version=version(),
        folder=folder,
        sources=[*sources.handwritten(), *sources.generated(generated)],
        extra_cxxflags=os.environ.get("CXXFLAGS", "").split(),
        precompiled=precompiled and is_gcc(compiler),
    )
    for source in (plan.library, plan.module):
        source.parent.mkdir(parents=True, exist_ok=True)
    path = ninja_file.write(plan)
    command = [find_ninja(), "-f", str(path), "-j", str(job_count()), "-k", "0" if keep_going else "1"]
    run(command, cwd=sources.ROOT, env=ccache_environment())

    info = folder / "out" / "_build_info.py"
    info.write_text(build_info(torch))
    files = dict(zip(package_files(), (plan.library, plan.module, info), strict=True))
    missing = [str(path) for path in files.values() if not path.exists()]
    if missing:
        raise BuildError("the build ended without an error but did not make " + ", ".join(missing))
    return Built(files)


def build_and_install(package: Path, keep_going: bool = False, precompiled: bool = True) -> list[Path]:
    """Build, and copy what was built into the package folder; files that did not change keep their dates."""
    written = []
    for name, source in build(keep_going=keep_going, precompiled=precompiled).files.items():
        target = package / name
        written.append(target)
        if target.exists() and filecmp.cmp(source, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        # A running process may have the old file mapped: replace the directory entry, never the bytes.
        temporary = target.with_name(target.name + ".new")
        shutil.copy2(source, temporary)
        temporary.replace(target)
    return written
