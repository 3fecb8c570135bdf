# How `vllm serve` ends: by Ctrl-C, which a terminal sends to every process of it, and by SIGTERM; idle and busy.
import json
import signal

import httpx
import pytest
from common_leftovers import group, segments, until, unused_since
from common_vllm import END_SECONDS, Server, unexpected_tracebacks


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


TOKENS = 120
TWO_DEVICES = ("--tensor-parallel-size", "2")


@pytest.mark.full
def test_a_busy_server_finishes_what_it_has_begun(model, tmp_path):
    before = segments()
    with Server(model, tmp_path / "log.txt", *TWO_DEVICES, "--shutdown-timeout", "60") as server:
        server.wait()
        question = server.request(TOKENS, stream=True, stream_options={"include_usage": True})
        with httpx.stream("POST", f"{server.address}/v1/completions", json=question, timeout=120) as answer:
            lines = answer.iter_lines()
            next(lines)  # it has begun
            server.process.send_signal(signal.SIGTERM)
            *_, last, done = [line.removeprefix("data: ") for line in lines if line]
        assert done == "[DONE]"
        assert json.loads(last)["usage"]["completion_tokens"] == TOKENS
        assert server.process.wait(timeout=END_SECONDS) == 0, server.log.read_text()[-4000:]
        assert until(lambda: not group(server.process.pid)), "its processes live on"
        assert unexpected_tracebacks(server.log.read_text()) == []
    assert unused_since(before) == set()


@pytest.mark.full
def test_a_busy_server_ends_when_its_clients_hang_up(model, tmp_path):
    # Without a time for it, what is running is given up at once, and the server waits for its clients to go.
    before = segments()
    with Server(model, tmp_path / "log.txt", *TWO_DEVICES) as server:
        server.wait()
        question = server.request(TOKENS, stream=True)
        with httpx.stream("POST", f"{server.address}/v1/completions", json=question, timeout=120) as answer:
            next(answer.iter_lines())
            server.process.send_signal(signal.SIGTERM)
            assert until(lambda: "stopping engine client mode=abort" in server.log.read_text(), seconds=60)
        assert server.process.wait(timeout=END_SECONDS) == 0, server.log.read_text()[-4000:]
        assert until(lambda: not group(server.process.pid)), "its processes live on"
        assert unexpected_tracebacks(server.log.read_text()) == []
    assert unused_since(before) == set()
