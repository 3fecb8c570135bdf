"""The loader: choice of the driver, version handshake and what a driver lacks, with drivers of our own written in C."""

import pathlib
import subprocess

import pytest

SOURCE = pathlib.Path(__file__).parents[1] / "chip" / "tiny_driver.c"


@pytest.fixture(scope="session")
def driver(tmp_path_factory, programs):
    folder = tmp_path_factory.mktemp("drivers")

    def compile_driver(variant=""):
        path = folder / f"tiny{variant.lower()}.so"
        if not path.exists():
            flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{programs.root / 'csrc'}"]
            define = [f"-DTINY_{variant}"] if variant else []
            subprocess.run(["cc", *flags, *define, str(SOURCE), "-o", str(path)], check=True)
        return path

    return compile_driver


def test_the_simulated_chip_is_the_default(programs):
    result = programs.run("loader")
    assert result.stdout.startswith("loaded sim from sim, timing 1")
    assert result.stderr == ""  # silent by default


def test_a_driver_of_ones_own(programs, driver):
    path = driver()
    result = programs.run("loader", KUNLUN_CHIP=str(path))
    assert result.stdout.startswith(f"loaded tiny from {path}, timing 1, operators 1\n")
    assert result.returncode == 0


def test_a_relative_path_is_taken_from_here(programs, driver):
    path = driver()
    result = programs.run("loader", cwd=path.parent, KUNLUN_CHIP=path.name)
    assert result.stdout.startswith("loaded tiny from tiny.so")


def test_the_info_line(programs, driver):
    path = driver()
    result = programs.run("loader", KUNLUN_CHIP=str(path), KUNLUN_LOG_LEVEL="info")
    assert result.stderr.count("\n") == 1
    for part in (
        "torch_xpu_kunlun ",
        "runtime 1.0",
        "operators 1.0",
        "collectives none",
        f"driver tiny 1.2.3 ({path})",
    ):
        assert part in result.stderr


REFUSED = {
    "NO_ENTRY": [8, "does not export kl_chip_open"],
    "BAD_MAJOR": [
        8,
        "built for version 7.3 of the runtime interface",
        "speaks version 1.0",
        "build the driver against",
    ],
    "BAD_OPERATORS": [8, "built for version 2.0 of the operators interface", "speaks version 1.0"],
    "NO_RUNTIME": [8, "hands back no runtime table"],
    "REFUSES": [7, "refused to open: the card is on fire"],
}


@pytest.mark.parametrize("variant", REFUSED)
def test_a_driver_is_refused_with_the_reason(programs, driver, variant):
    path = driver(variant)
    code, *texts = REFUSED[variant]
    result = programs.run("loader", "sim", KUNLUN_CHIP=str(path))
    refusal, *rest = result.stdout.splitlines()
    assert refusal.startswith(f"ChipError {code}: ")
    assert str(path) in refusal
    for text in texts:
        assert text in refusal
    # The same process goes on with another chip.
    assert rest[0].startswith("loaded sim from sim")
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("chip", "text"), [("missing.so", "there is no such file"), ("xre", "KUNLUN_CHIP=xre: ")], ids=["missing", "xre"]
)
def test_a_chip_that_is_not_there(programs, chip, text):
    result = programs.run("loader", "sim", KUNLUN_CHIP=chip)
    refusal, *rest = result.stdout.splitlines()
    assert refusal.startswith("ChipError ")
    assert text in refusal
    assert rest[0].startswith("loaded sim from sim")


def test_a_file_that_is_no_library(programs, tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not a library")
    result = programs.run("loader", KUNLUN_CHIP=str(path))
    assert result.stdout.startswith(f"ChipError 8: KUNLUN_CHIP={path}: the chip driver cannot be loaded: ")


def test_what_an_older_driver_lacks_is_refused_by_name(programs, driver):
    path = driver("OLD")
    result = programs.run("loader", KUNLUN_CHIP=str(path))
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        f"loaded tiny from {path}, timing 0, operators 1",  # the capability is gone
        f"elapsed 5: the chip driver {path} has no event timing (the entry event_elapsed of its runtime table is NULL)",
        "synchronize 3: the stream is NULL",  # the driver's own error, not the loader's
    ]
