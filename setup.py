# The package's build commands: the native part is built by tools/build, the rest is plain setuptools.
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools.build import BuildError, build_and_install  # noqa: E402
from tools.build.headers import public_headers  # noqa: E402
from tools.build.native import package_files  # noqa: E402
from tools.build.sources import CSRC  # noqa: E402
from tools.build.toolchain import find_torch  # noqa: E402

PACKAGE = "torch_xpu_kunlun"
# Commands that need no torch: they read the sources and make nothing that depends on it.
WITHOUT_TORCH = {"sdist", "egg_info", "clean"}


class BuildNative(build_ext):
    """Builds the library and the Python module with ninja, into the package or into the folder of a wheel."""

    def run(self) -> None:
        try:
            build_and_install(self.package_folder())
        except BuildError as error:
            raise SystemExit(f"error: {error}") from error

    def package_folder(self) -> Path:
        return ROOT / PACKAGE if self.inplace else Path(self.build_lib).resolve() / PACKAGE

    def get_outputs(self) -> list[str]:
        return [str(self.package_folder() / name) for name in package_files()]

    def get_output_mapping(self) -> dict[str, str]:
        if not self.inplace:
            return {}
        return {str(Path(self.build_lib) / PACKAGE / name): str(ROOT / PACKAGE / name) for name in package_files()}

    def get_source_files(self) -> list[str]:
        return [
            path.relative_to(ROOT).as_posix()
            for folder in ("csrc", "tools")
            for path in sorted((ROOT / folder).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        ]


class BuildPython(build_py):
    """Copies the Python files into a clean folder, so that a module removed from the sources leaves the wheel too, and
    the public C++ headers beside them. An editable installation takes the headers from the sources."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / PACKAGE, ignore_errors=True)
        super().run()
        for name, target in self.headers().items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CSRC / name, target)

    def headers(self) -> dict[str, Path]:
        if self.editable_mode:
            return {}
        return {name: Path(self.build_lib) / PACKAGE / "include" / name for name in public_headers()}

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *map(str, self.headers().values())]


def requirements() -> list[str]:
    """torch of the minor release the binary is compiled against; unknown, and open, where nothing is compiled."""
    if not WITHOUT_TORCH.isdisjoint(sys.argv[1:]) or {"--help", "--version"} & set(sys.argv[1:]):
        return ["torch"]
    try:
        return [f"torch=={find_torch().minor}.*"]
    except BuildError as error:
        raise SystemExit(f"error: {error}") from error


setup(
    ext_modules=[Extension(f"{PACKAGE}._C", sources=[])],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython},
    install_requires=requirements(),
)
