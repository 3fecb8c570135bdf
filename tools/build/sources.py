# What is compiled: which source files exist, to which library they belong and what they may include.
from dataclasses import dataclass
from pathlib import Path

from tools.build.toolchain import is_x86

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

# These parts must build without torch, so that the driver, the queue and the allocator's core can run under
# sanitizers on their own. They get no torch include path, which proves it at every build.
TORCH_FREE = (
    "runtime/Env.cpp",
    "runtime/EnvSim.cpp",
    "runtime/ipc/ProcessId.cpp",
    "runtime/ipc/Tickets.cpp",
    "runtime/allocator/",
    "runtime/chip/",
    "runtime/sim/",
    "runtime/xre/",
)
# The one room of the simulated chip that uses ATen's CPU kernels as its silicon.
TORCH_IN_SIM = "runtime/sim/ops/"
# Kernels on at::vec: compiled once for each instruction set, of which the running processor's is chosen (by torch's
# DispatchStub, so ATEN_CPU_CAPABILITY counts here too).
VECTORIZED = "runtime/sim/ops/fused/vec/"
# The plainest comes first: of an inline function that several objects hold, the linker keeps the first.
INSTRUCTION_SETS = ("default", "avx2", "avx512") if is_x86() else ("default",)
# Binding code is linked into the Python module, everything else into the library below it.
PYTHON = "python/"


@dataclass(frozen=True)
class Source:
    """One file to compile. `kind` names the compile rule; `name` is its path below the object folder."""

    path: Path
    name: str
    kind: str  # "plain" (no torch), "torch", "python", or "torch-" and an instruction set


def kind_of(relative: str) -> str:
    """The compile rule for a path relative to csrc/."""
    if relative.startswith(PYTHON):
        return "python"
    if relative.startswith(TORCH_FREE) and not relative.startswith(TORCH_IN_SIM):
        return "plain"
    return "torch"


def handwritten() -> list[Source]:
    """Every .cpp below csrc/, in a stable order."""
    found = []
    for path in sorted(CSRC.rglob("*.cpp")):
        relative = path.relative_to(CSRC).as_posix()
        if relative.startswith(VECTORIZED):
            found += [Source(path, f"{relative}.{isa}", f"torch-{isa}") for isa in INSTRUCTION_SETS]
        else:
            found.append(Source(path, relative, kind_of(relative)))
    return found


def generated(folder: Path) -> list[Source]:
    """Every .cpp that code generation wrote below `folder`."""
    return [
        Source(path, "generated/" + path.relative_to(folder).as_posix(), "torch")
        for path in sorted(folder.rglob("*.cpp"))
    ]
