"""A third-party driver, written in C, that overrides one operator: proves the chip interface from outside."""

import pathlib
import subprocess
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "test" / "chip" / "tiny_driver.c"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "tiny_driver.so"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["cc", *flags, str(SOURCE), "-o", str(path)], check=True)
    return str(path)


COUNTER = """
import ctypes, os, torch
F = torch.nn.functional
calls = lambda: ctypes.c_int.in_dll(ctypes.CDLL(os.environ["KUNLUN_CHIP"]), "tiny_driver_calls").value
host = torch.linspace(-5, 5, 1001)
x = host.to("kunlun")
"""


@pytest.fixture
def check_tiny(check_python, driver):
    return lambda code: check_python(COUNTER + textwrap.dedent(code), KUNLUN_CHIP=driver)


def test_the_overridden_operator_runs_in_the_driver(check_tiny):
    check_tiny(
        """
        assert calls() == 0
        y = F.hardsigmoid(x)
        torch.kunlun.synchronize()
        assert calls() == 1
        assert torch.allclose(y.cpu(), F.hardsigmoid(host), rtol=0, atol=1e-7)
        F.hardsigmoid(x.view(7, 11, 13))
        F.hardsigmoid(x.clone(), inplace=True)
        F.hardsigmoid(x.to("kunlun:1"))
        F.hardsigmoid(torch.tensor([float("nan")], device="kunlun"))
        for index in (0, 1):
            torch.kunlun.synchronize(index)
        assert calls() == 5
        """
    )


def test_what_the_driver_does_not_take_goes_to_the_chip_below(check_tiny):
    check_tiny(
        """
        strided = x[::2]
        assert torch.equal(F.hardsigmoid(strided).cpu(), F.hardsigmoid(host[::2]))
        assert torch.equal(F.hardsigmoid(x.double()).cpu(), F.hardsigmoid(host.double()))
        assert torch.equal(F.hardsigmoid(x.bfloat16()).cpu(), F.hardsigmoid(host.bfloat16()))
        assert calls() == 0
        """
    )


def test_everything_else_works(check_tiny):
    check_tiny(
        """
        assert torch.kunlun.get_device_properties(0).total_memory > 0
        layer = torch.nn.Linear(1001, 3).to("kunlun")
        F.hardsigmoid(layer(x)).sum().backward()
        assert layer.weight.grad.shape == (3, 1001)
        assert torch.unique(torch.tensor([2, 1, 2], device="kunlun")).tolist() == [1, 2]
        stream = torch.kunlun.Stream()
        with torch.kunlun.stream(stream):
            y = F.hardsigmoid(x) * 2
        stream.synchronize()
        assert y[-1].item() == 2
        assert calls() == 2
        """
    )


def test_errors_are_those_of_the_chip(check_tiny):
    check_tiny(
        """
        x[torch.tensor([5000], device="kunlun")]
        try:
            F.hardsigmoid(x)
            torch.kunlun.synchronize()
        except IndexError as error:
            assert "index 5000 is out of bounds" in str(error), error
        else:
            raise AssertionError("not raised")
        assert calls() == 0  # behind a failure the driver's kernel does not run
        assert torch.equal(F.hardsigmoid(x)[-1:].cpu(), torch.ones(1))
        assert calls() == 1
        try:
            F.hardsigmoid(x.long())
            torch.kunlun.synchronize()
        except RuntimeError as error:
            assert "hardsigmoid" in str(error), error
        else:
            raise AssertionError("not raised")
        """
    )
