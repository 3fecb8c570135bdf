# Writes build.ninja: the compile rules, the link lines and their dependencies.
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tools.build.sources import CSRC, INSTRUCTION_SETS, Source
from tools.build.toolchain import Torch, extension_suffix, is_x86, python_include

PRECOMPILED = Path(__file__).parent / "precompiled"


def escape(path: object) -> str:
    """A path as ninja wants it in a build line."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def words(arguments: list[str]) -> str:
    """Arguments as one shell-quoted ninja value."""
    return shlex.join(arguments).replace("$", "$$")


@dataclass
class Plan:
    """Everything that decides the contents of build.ninja."""

    torch: Torch
    compiler: list[str]
    version: str
    folder: Path
    sources: list[Source]
    extra_cxxflags: list[str] = field(default_factory=list)
    precompiled: bool = False  # whether headers of torch are compiled once, which halves the time of a clean build

    @property
    def library(self) -> Path:
        return self.folder / "out" / "lib" / "libtorch_kunlun.so"

    @property
    def module(self) -> Path:
        return self.folder / "out" / f"_C{extension_suffix()}"


# What torch compiles its own vectorised kernels with.
INSTRUCTION_SET_FLAGS = {
    "default": ["-Wno-psabi"],  # vectors wider than the machine's are passed within this library only
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    # g++ 12 takes its own intrinsics for uses of uninitialised variables.
    "avx512": [
        "-mavx512f",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512bw",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-Wno-uninitialized",
    ],
}


def vectorized(with_torch: list[str], isa: str) -> list[str]:
    """The flags of a kernel on at::vec for one instruction set."""
    name = isa.upper()
    return [*with_torch, "-O3", f"-DCPU_CAPABILITY={name}", f"-DCPU_CAPABILITY_{name}", *INSTRUCTION_SET_FLAGS[isa]]


def flags(plan: Plan) -> dict[str, list[str]]:
    """The compile flags of each kind of source."""
    torch = plan.torch
    plain = ["-std=c++20", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", f"-I{CSRC}"]
    # Nobody replaces this library's functions by preloading others: calls within it are inlined and bound directly.
    plain += ["-fno-semantic-interposition", "-fvisibility-inlines-hidden"]
    plain += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}", f'-DKUNLUN_VERSION="{plan.version}"']
    plain += plan.extra_cxxflags
    # torch's headers are system headers: their warnings are not ours to fix. OpenMP is needed wherever
    # at::parallel_for is instantiated; without it that template silently runs on one thread.
    with_torch = [*plain, f"-I{plan.folder / 'generated'}", "-isystem", str(torch.include), "-fopenmp"]
    if is_x86():
        # ATen's dispatch stubs have one slot per instruction set; an extension that calls one must agree on the layout.
        with_torch += ["-DHAVE_AVX512_CPU_DEFINITION", "-DHAVE_AVX2_CPU_DEFINITION"]
    api = torch.include / "torch" / "csrc" / "api" / "include"
    with_python = [*with_torch, "-isystem", str(api), "-isystem", python_include()]
    return {
        "plain": plain,
        "torch": with_torch,
        "python": with_python,
        **{f"torch-{isa}": vectorized(with_torch, isa) for isa in INSTRUCTION_SETS},
    }


def precompiled_header(plan: Plan, kind: str) -> Path | None:
    """The header that sources of a kind begin with, copied into the build folder, where its compiled form lies too."""
    source = PRECOMPILED / f"{kind}.h"
    if not plan.precompiled or not source.exists():
        return None
    header = plan.folder / "precompiled" / source.name
    header.parent.mkdir(exist_ok=True)
    if not header.exists() or header.read_text() != source.read_text():
        shutil.copyfile(source, header)
    return header


def compiled(header: Path) -> Path:
    return header.with_name(header.name + ".gch")


def precompiling_lines(kind: str, header: Path, arguments: list[str]) -> list[str]:
    """The step that compiles a header with the flags of the sources that use it."""
    return [
        f"rule precompile-{kind}",
        f"  command = $cxx -MMD -MF $out.d {words(arguments)} -x c++-header -c $in -o $out",
        "  deps = gcc",
        "  depfile = $out.d",
        "  description = precompile $name",
        "",
        f"build {escape(compiled(header))}: precompile-{kind} {escape(header)}",
        f"  name = {header.name}",
        "",
    ]


def write(plan: Plan) -> Path:
    """Write build.ninja if its text changed; return its path."""
    lines = ["ninja_required_version = 1.5", f"builddir = {escape(plan.folder)}", f"cxx = {words(plan.compiler)}", ""]
    for kind, arguments in flags(plan).items():
        header = precompiled_header(plan, kind)
        if header is not None:
            lines += precompiling_lines(kind, header, arguments)
        begin = [] if header is None else ["-include", str(header), "-fpch-preprocess", "-Winvalid-pch"]
        lines += [
            f"rule {kind}",
            f"  command = $cxx -MMD -MF $out.d {words([*arguments, *begin])} -c $in -o $out",
            "  deps = gcc",
            "  depfile = $out.d",
            "  description = compile $name",
            "",
        ]
    lines += ["rule link", "  command = $cxx -shared -o $out $in $arguments", "  description = link $name", ""]

    objects: dict[str, list[Path]] = {"library": [], "module": []}
    for source in plan.sources:
        target = plan.folder / "obj" / (source.name + ".o")
        objects["module" if source.kind == "python" else "library"].append(target)
        header = precompiled_header(plan, source.kind)
        waits = "" if header is None else f" | {escape(compiled(header))}"
        lines += [f"build {escape(target)}: {source.kind} {escape(source.path)}{waits}", f"  name = {source.name}"]

    lib = str(plan.torch.lib)
    core = [
        "-pthread",
        "-Wl,--no-undefined",
        "-Wl,-Bsymbolic-functions",
        "-Wl,-soname,libtorch_kunlun.so",
        f"-L{lib}",
        "-ltorch_cpu",
        "-lc10",
    ]
    core += [*plan.torch.openmp, "-ldl"]
    # torch is already loaded when the module is, so its libraries are found by name; only ours needs a path.
    binding = ["-pthread", "-Wl,-rpath,$ORIGIN/lib", f"-L{lib}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    lines += link_lines(plan.library, objects["library"], [], core)
    lines += link_lines(plan.module, objects["module"], [plan.library], binding)
    lines += [f"default {escape(plan.library)} {escape(plan.module)}", ""]

    path = plan.folder / "build.ninja"
    text = "\n".join(lines)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def link_lines(target: Path, objects: list[Path], libraries: list[Path], arguments: list[str]) -> list[str]:
    """One link step."""
    inputs = " ".join(escape(path) for path in [*objects, *libraries])
    return [f"build {escape(target)}: link {inputs}", f"  arguments = {words(arguments)}", f"  name = {target.name}"]
