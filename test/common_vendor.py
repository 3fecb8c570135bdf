"""Stand-ins for the vendor's libraries, see test/chip."""

import subprocess
from pathlib import Path

CHIP = Path(__file__).parent / "chip"
COMMAND = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]


def build(folder: Path, *flags: str, collectives: bool = True) -> Path:
    """Compiles them into `folder`, which is to be on LD_LIBRARY_PATH."""
    runtime = [str(CHIP / "vendor_runtime.cpp"), *flags, "-o", str(folder / "libxpurt.so")]
    subprocess.run([*COMMAND, *runtime], check=True)
    if collectives:
        sources = sorted(str(file) for file in (CHIP / "vendor_collectives").glob("*.cpp"))
        library = ["-o", str(folder / "libbkcl.so"), f"-L{folder}", "-lxpurt"]
        subprocess.run([*COMMAND, *sources, *flags, *library], check=True)
    return folder
