"""Fixtures that run code as the ranks of a group."""

import pytest
from common_process import forking_server, run_new_python_fixture  # noqa: F401
from common_ranks import Ranks
from common_symmetric import check_symmetric, run_symmetric  # noqa: F401


@pytest.fixture(scope="module")
def ranks(forking_server, tmp_path_factory):  # noqa: F811
    return Ranks(forking_server, tmp_path_factory.mktemp("ranks"))


@pytest.fixture
def run_ranks(ranks):
    """Runs a body on `size` ranks; environment variables can be given. Returns one Rank for each."""
    return ranks.run


@pytest.fixture
def check_ranks(ranks):
    """Like run_ranks, but every rank must end well."""
    return ranks.check
