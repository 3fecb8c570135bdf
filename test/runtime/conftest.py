"""Builds and runs the torch-free C++ test programs of this folder."""

import os
import pathlib
import subprocess

import pytest

FOLDER = pathlib.Path(__file__).parent / "cpp"


class Programs:
    """The test programs, built in `out`."""

    root = FOLDER.parents[2]

    def __init__(self, out: pathlib.Path, sanitize: str = ""):
        self.out = out
        command = ["make", "-s", "-j2", "-C", str(FOLDER), f"OUT={out}", f"SANITIZE={sanitize}"]
        built = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200)
        assert built.returncode == 0, built.stderr

    def run(self, name: str, *arguments: str, cwd=None, timeout: float = 120, **variables: str):
        """Runs a program without any variable of ours in the environment, but for those given."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KUNLUN_")}
        return subprocess.run(
            [str(self.out / f"{name}_tests"), *arguments],
            check=False,
            env=kept | variables,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def sanitized_programs(tmp_path, request):
    """With the sanitizers that the test is parametrised with."""
    return Programs(tmp_path, request.param)
