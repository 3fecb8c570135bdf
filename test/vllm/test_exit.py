# How `vllm serve` ends: by Ctrl-C, which a terminal sends to every process of it, and by SIGTERM.
import signal

import pytest
from common_leftovers import group, segments, until, unused_since
from common_vllm import Server, unexpected_tracebacks


@pytest.mark.parametrize(
    ("number", "everybody"),
    [
        (signal.SIGINT, True),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.full),
    ],
    ids=["ctrl-c", "SIGINT", "SIGTERM"],
)
def test_a_server_ends_in_order(model, tmp_path, number, everybody):
    before = segments()
    with Server(model, tmp_path / "log.txt") as server:
        server.wait()
        assert server.write(tokens=4)["usage"]["completion_tokens"] == 4
        assert server.end(number, everybody) == 0, server.log.read_text()[-4000:]
        assert until(lambda: not group(server.process.pid)), "its processes live on"
        assert unexpected_tracebacks(server.log.read_text()) == []
    assert unused_since(before) == set()
