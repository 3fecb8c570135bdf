"""Training a 12-layer GPT: the losses are the CPU's, bit for bit; with dropout they follow from the seed."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("gpt_training.py")
TIMEOUT_SECONDS = 900


def train(device: str, dropout: float = 0.0, threads: int = 1) -> list[float]:
    """Losses of a training run in a process of its own; the CPU's never loads the extension."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "KUNLUN_SIM_THREADS": str(threads),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    start = "import torch_xpu_kunlun; " if device != "cpu" else ""
    start += f"import runpy, sys; sys.argv = ['', '{device}', '{dropout}', '{threads}']; "
    start += f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", start],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses, loaded = done.stdout.splitlines()
    assert loaded == str(device != "cpu")
    return [float.fromhex(loss) for loss in losses.split()]


def test_the_loss_curve_is_the_cpus_bit_for_bit():
    expected = train("cpu")
    assert len(expected) == 50
    assert expected[-1] < expected[0] / 2  # it learns
    assert train("kunlun") == expected


@pytest.mark.full
def test_the_loss_curve_is_the_cpus_bit_for_bit_with_two_threads():
    assert train("kunlun", threads=2) == train("cpu", threads=2)


def test_with_dropout_it_repeats_from_the_seed():
    losses = train("kunlun", dropout=0.1)
    assert losses[-1] < losses[0]
    assert train("kunlun", dropout=0.1) == losses
    assert losses[0] != train("cpu", dropout=0.1)[0]  # the device draws its own numbers: dropout was on
