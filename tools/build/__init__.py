# The native build: describes every compile and link step to ninja.
from tools.build.native import build, build_and_install
from tools.build.toolchain import BuildError

__all__ = ["BuildError", "build", "build_and_install"]
