"""Fixtures of the comparison with the CPU: Python in processes of its own, a chip that computes one operator wrong."""

import pathlib
import subprocess

import pytest
from common_process import (  # noqa: F401 - fixtures
    check_python,
    forking_server,
    run_new_python_fixture,
    run_python,
)

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wrong_chip(tmp_path_factory):
    """A driver whose hardsigmoid is off by 0.25 in the third element."""
    path = tmp_path_factory.mktemp("driver") / "wrong_driver.so"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-DTINY_WRONG", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["cc", *flags, str(ROOT / "test" / "chip" / "tiny_driver.c"), "-o", str(path)], check=True)
    return str(path)
