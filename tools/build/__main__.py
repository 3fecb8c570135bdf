# `python -m tools.build`: builds the extension in place, for a source tree already installed in editable mode.
import argparse
import sys
from pathlib import Path

from tools.build import BuildError, build, build_and_install
from tools.build.sources import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build", description="Builds the extension in place.")
    parser.add_argument("--folder", type=Path, help="build in this folder instead, and put nothing into the package")
    parser.add_argument("--keep-going", action="store_true", help="compile the other files too when one fails")
    parser.add_argument("--no-precompiled", action="store_true", help="let every source read torch's headers itself")
    options = parser.parse_args()
    try:
        if options.folder is None:
            build_and_install(ROOT / "torch_xpu_kunlun", options.keep_going, not options.no_precompiled)
        else:
            build(options.folder.resolve(), options.keep_going, not options.no_precompiled)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
