"""Tells the checks of the operator database which suite is wanted."""

import common_op_checks


def pytest_configure(config):
    common_op_checks.QUICK_ONLY = config.getoption("markexpr") == "not full"
