"""Every collective, every dtype and every reduction against what one process computes, on two and on four ranks."""

import json

import pytest
from common_collectives import Collectives

# One run of each size serves all tests : starting ranks takes longer than most methods.
BODY = """
from common_collectives import Collectives
start()
Collectives(rank, size).run({folder!r})
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[2, 4], ids=["2ranks", "4ranks"])
def outcome(ranks, request, tmp_path_factory):
    """What each rank says of its methods, and how it ended."""
    folder = tmp_path_factory.mktemp("outcome")
    ended = ranks.run(BODY.format(folder=str(folder)), size=request.param)
    return ended, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


@pytest.mark.parametrize("method", Collectives.methods())
def test_collectives(outcome, method):
    _, reports = outcome
    for rank, report in enumerate(reports):
        assert method not in report["failures"], f"rank {rank}:\n" + report["failures"][method]
        assert method <= report["last"], f"rank {rank} did not get here; its last test was {report['last']}"


def test_ranks_ended_well(outcome):
    ended, _ = outcome
    for rank, end in enumerate(ended):
        assert end.code == 0, f"rank {rank}:\n{end.err}"


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
