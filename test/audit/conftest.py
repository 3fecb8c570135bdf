"""Fixtures of the command line's tests: Python in processes of its own."""

from common_process import forking_server, run_python  # noqa: F401 - fixtures
