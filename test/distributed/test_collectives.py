"""Every collective, every dtype and every reduction against what one process computes, on two and on four ranks."""

import pytest
from common_collectives import Collectives
from common_group import Outcome


@pytest.fixture(scope="module", params=[2, 4], ids=["2ranks", "4ranks"])
def outcome(ranks, request, tmp_path_factory):
    return Outcome(Collectives, ranks, request.param, tmp_path_factory.mktemp("outcome"))


@pytest.mark.parametrize("method", Collectives.methods())
def test_collectives(outcome, method):
    outcome.check(method)


def test_ranks_ended_well(outcome):
    outcome.check_end()


def test_halves_of_eight_ranks_are_rounded_once(check_ranks):
    check_ranks(
        """
        from common_collectives import Collectives

        start()
        Collectives(rank, size).test_halves_are_rounded_once()
        dist.destroy_process_group()
        """,
        size=8,
    )
