"""`python -m torch_xpu_kunlun diagnose`: what a bug report needs; a failure is part of the report."""

DIAGNOSE = """
import sys
from torch_xpu_kunlun.__main__ import main
sys.exit(main(["diagnose"]))
"""


def test_a_device_that_works(run_python):
    done = run_python(DIAGNOSE, KUNLUN_SIM_DEVICES="3", KUNLUN_SIM_MEMORY="64M", KUNLUN_SIM_HOST_ADDRESSABLE="1")
    assert done.returncode == 0, done.stdout
    for part in ("torch_xpu_kunlun ", "torch 2.", "KUNLUN_SIM_DEVICES=3", "sim ", "kunlun:2 Kunlun XPU (simulated)",
                 "of 64 MiB free", "is_host_addressable", "result: the device works"):  # fmt: skip
        assert part in done.stdout, done.stdout


def test_failures_are_shown_and_end_nothing(run_python):
    done = run_python(DIAGNOSE, KUNLUN_SIM_FAULT="kernel:1")
    assert done.returncode == 1
    assert "a fault injected by KUNLUN_SIM_FAULT" in done.stdout
    assert "result: FAILED (streams)" in done.stdout or "result: FAILED (operators)" in done.stdout, done.stdout
    done = run_python(DIAGNOSE, KUNLUN_CHIP="/nowhere/chip.so")
    assert done.returncode == 1
    assert "/nowhere/chip.so" in done.stdout
    assert "result: FAILED (driver, devices" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("result: ")
