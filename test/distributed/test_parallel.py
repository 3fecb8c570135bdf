"""Data parallel, sharded, tensor parallel and pipelined training: the losses are those of one process."""

import json

import pytest
from common_parallel import Parallel

BODY = """
from common_parallel import Parallel
import traceback
start()
failures = {{}}
for name in Parallel.methods():
    try:
        getattr(Parallel(rank, size), name)()
        torch.kunlun.synchronize()
    except BaseException:
        failures[name] = traceback.format_exc()
    with open({folder!r} + f"/{{rank}}.json", "w") as file:
        json.dump({{"last": name, "failures": failures}}, file)
    if failures:
        break  # the others may wait for this rank now
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def outcome(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outcome")
    ranks.run(BODY.format(folder=str(folder)), size=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("method", Parallel.methods())
def test_parallel(outcome, method):
    for rank, report in enumerate(outcome):
        assert method not in report["failures"], f"rank {rank}:\n" + report["failures"][method]
        assert method <= report["last"], f"rank {rank} did not get here; its last test was {report['last']}"
