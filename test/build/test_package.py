# The built package: it is found by `import torch`, carries no path of this machine, and brings no second OpenMP.
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import torch_xpu_kunlun
from torch_xpu_kunlun import _build_info

PACKAGE = Path(torch_xpu_kunlun.__file__).parent
ROOT = PACKAGE.parent


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], check=True, cwd="/", capture_output=True, text=True).stdout


def dynamic_section(path: Path) -> str:
    return subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout


def test_version_is_the_same_everywhere():
    expected = (ROOT / "version.txt").read_text().strip()
    assert expected == _build_info.VERSION
    assert importlib.metadata.version("torch_xpu_kunlun") == expected
    assert torch_xpu_kunlun.__version__ == expected


def test_metadata_pins_the_minor_release_of_torch_the_binary_was_compiled_against():
    requirements = importlib.metadata.requires("torch_xpu_kunlun")
    minor = ".".join(_build_info.TORCH_VERSION.split(".")[:2])
    assert f"torch=={minor}.*" in requirements


def test_import_torch_alone_finds_the_device():
    assert run("import torch; print(torch.device('kunlun').type, torch.kunlun.is_available())").split() == [
        "kunlun",
        "True",
    ]


def test_libraries_carry_no_path_of_the_machine_they_were_built_on():
    for library in (PACKAGE / "lib" / "libtorch_kunlun.so", *PACKAGE.glob("_C*.so")):
        for line in dynamic_section(library).splitlines():
            if "RPATH" in line or "RUNPATH" in line or "NEEDED" in line:
                assert "[/" not in line, line


def test_the_process_has_one_openmp_runtime():
    script = (
        "import torch, torch_xpu_kunlun\n"
        "torch.ones(4, device='kunlun').sum().item()\n"
        "names = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split()[-1]}\n"
        "print(sorted(name for name in names if '.so' in name))"
    )
    libraries = eval(run(script))
    assert len(libraries) == 1, libraries
