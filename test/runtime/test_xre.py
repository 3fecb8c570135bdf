"""The adapter over the vendor's runtime, against a stand-in for the vendor's library."""

import pytest
from common_vendor import build


@pytest.fixture(scope="session")
def vendor(tmp_path_factory):
    """A function that gives the folder of the stand-in libraries."""
    return lambda *flags: str(build(tmp_path_factory.mktemp("vendor"), *flags))


def test_the_adapter(programs, vendor):
    result = programs.run("xre", KUNLUN_CHIP="xre", KUNLUN_VISIBLE_DEVICES="2,0", LD_LIBRARY_PATH=vendor())
    assert result.returncode == 0, result.stderr


def test_the_info_line_names_the_vendors_versions(programs, vendor):
    result = programs.run("loader", KUNLUN_CHIP="xre", KUNLUN_LOG_LEVEL="info", LD_LIBRARY_PATH=vendor())
    assert "driver xre 5.21 (xre), runtime 5.1; libxpurt.so" in result.stderr
    assert result.stdout.startswith("loaded xre from xre, timing 0, operators 0")


def test_without_the_vendors_library(programs):
    result = programs.run("loader", "sim", KUNLUN_CHIP="xre")
    refusal, *rest = result.stdout.splitlines()
    assert refusal.startswith("ChipError 8: KUNLUN_CHIP=xre: the vendor's runtime cannot be opened (libxpurt.so: ")
    assert "KUNLUN_CHIP=sim for the simulated chip" in refusal
    assert rest[0].startswith("loaded sim from sim")


def test_a_library_that_is_too_old(programs, vendor):
    result = programs.run("loader", KUNLUN_CHIP="xre", LD_LIBRARY_PATH=vendor("-DVENDOR_BEFORE_XRE_5"))
    assert "does not export xpu_event_query; XRE 5 or newer is needed" in result.stdout


def test_visible_devices_that_disagree(programs, vendor):
    result = programs.run(
        "loader", KUNLUN_CHIP="xre", KUNLUN_VISIBLE_DEVICES="1", XPU_VISIBLE_DEVICES="0", LD_LIBRARY_PATH=vendor()
    )
    assert 'KUNLUN_VISIBLE_DEVICES="1" and XPU_VISIBLE_DEVICES="0" say different things' in result.stdout
