# What the build finds on the machine: torch, the compiler, ninja, ccache, and how many jobs fit.
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# torch's device headers are outside its stable ABI: one binary per minor, and only minors the sources were made for.
TORCH_MINORS = ((2, 11), (2, 13), (2, 14))
# A translation unit of this project peaks below this much compiler memory.
JOB_MEMORY = 1_600 << 20

HOW_TO_INSTALL = (
    "Install torch first, then build against it with the packages this environment already has:\n"
    "    pip install torch setuptools ninja PyYAML\n"
    "    pip install --no-build-isolation ."
)


class BuildError(RuntimeError):
    """The build cannot go on; the text says why and what to do."""


@dataclass(frozen=True)
class Torch:
    """The torch installation the extension is built against."""

    version: str
    root: Path
    cxx11_abi: bool

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def include(self) -> Path:
        return self.root / "include"

    @property
    def lib(self) -> Path:
        return self.root / "lib"

    @property
    def openmp(self) -> list[str]:
        """How to link OpenMP so that the process has a single runtime: torch's own copy where torch ships one."""
        bundled = [*self.lib.glob("libgomp*.so*"), *(self.root.parent / "torch.libs").glob("libgomp*.so*")]
        return [str(bundled[0])] if bundled else ["-lgomp"]


@contextlib.contextmanager
def without_autoload():
    """Keeps torch from loading device extensions: building must not depend on an older build of this very one."""
    name = "TORCH_DEVICE_BACKEND_AUTOLOAD"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def find_torch() -> Torch:
    """Import torch and check that the extension can be built against it."""
    try:
        with without_autoload():
            import torch
    except ImportError as error:
        raise BuildError(
            f"torch cannot be imported by {sys.executable} ({error}). torch_xpu_kunlun is compiled against the torch "
            "it will run with, and pip's isolated build environment hides that torch.\n" + HOW_TO_INSTALL
        ) from error
    root = Path(torch.__file__).resolve().parent
    if any(part.startswith("pip-build-env-") for part in root.parts):
        raise BuildError(
            f"torch was found in pip's isolated build environment ({root}). The extension would be compiled against "
            "a torch that is thrown away after the build instead of the one it will run with.\n" + HOW_TO_INSTALL
        )
    numbers = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if numbers not in TORCH_MINORS:
        supported = ", ".join(f"{major}.{minor}" for major, minor in TORCH_MINORS)
        raise BuildError(f"torch {torch.__version__} is installed; torch_xpu_kunlun builds against torch {supported}.")
    return Torch(torch.__version__, root, bool(torch._C._GLIBCXX_USE_CXX11_ABI))


def find_compiler() -> list[str]:
    """The C++ compiler as a command, behind ccache where there is one. CXX chooses another compiler."""
    compiler = os.environ.get("CXX", "g++").split()
    if not compiler or shutil.which(compiler[0]) is None:
        raise BuildError(
            f"the C++ compiler {' '.join(compiler)!r} is not on PATH. Install g++ 11 or newer, or name another in CXX."
        )
    ccache = shutil.which("ccache")
    return [ccache, *compiler] if ccache and "ccache" not in Path(compiler[0]).name else compiler


def is_gcc(compiler: list[str]) -> bool:
    """Whether the compiler is GCC itself: clang, which also answers to that name, has other precompiled headers."""
    done = subprocess.run([*compiler, "--version"], check=False, capture_output=True, text=True)
    return done.returncode == 0 and "Free Software Foundation" in done.stdout


def ccache_environment() -> dict[str, str]:
    """The environment of a build: ccache keeps objects made with a precompiled header only when told to."""
    wanted = ["pch_defines", "time_macros"]
    given = [word for word in os.environ.get("CCACHE_SLOPPINESS", "").split(",") if word]
    return {**os.environ, "CCACHE_SLOPPINESS": ",".join([*given, *(word for word in wanted if word not in given)])}


def find_ninja() -> str:
    """The ninja program: the Python package's, or the one on PATH."""
    try:
        import ninja
    except ImportError:
        program = shutil.which("ninja")
        if program is None:
            raise BuildError("ninja is missing: pip install ninja") from None
        return program
    program = Path(ninja.BIN_DIR) / "ninja"
    if not program.exists():
        raise BuildError(f"the ninja package lacks its program {program}: pip install --force-reinstall ninja")
    return str(program)


def available_memory() -> int | None:
    """Bytes of memory that are free for the build, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def job_count() -> int:
    """MAX_JOBS if set, else one job per core this process may use, and no more than memory allows."""
    text = os.environ.get("MAX_JOBS")
    if text is not None:
        if not text.isdecimal() or int(text) < 1:
            raise BuildError(f"MAX_JOBS={text!r} is not a number of jobs; accepted: 1, 2, 3 ...")
        return int(text)
    cores = len(os.sched_getaffinity(0))
    memory = available_memory()
    return cores if memory is None else max(1, min(cores, memory // JOB_MEMORY))


def run(command: list[str], **keywords) -> None:
    """Run one step of the build; its output goes to the terminal as it comes."""
    sys.stdout.flush()
    if subprocess.run(command, check=False, **keywords).returncode != 0:
        raise BuildError("this step of the build failed (its output is above): " + " ".join(map(str, command)))


def run_quietly(command: list[str], **keywords) -> None:
    """Run one step of the build; its output is shown only if it fails."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords)
    if done.returncode != 0:
        raise BuildError(f"this step of the build failed: {' '.join(map(str, command))}\n{done.stdout}")


def is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def python_include() -> str:
    return sysconfig.get_path("include")


def extension_suffix() -> str:
    return sysconfig.get_config_var("EXT_SUFFIX")
