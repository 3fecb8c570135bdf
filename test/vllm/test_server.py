# `vllm serve` with the openai client: right answers, right status codes, and a server that is alive after each.
import asyncio
import signal
import time

import httpx
import openai
import pytest
from common_vllm import Server, unexpected_tracebacks


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """The address of a server. It ends by SIGTERM, in order."""
    with Server(model, tmp_path_factory.mktemp("server") / "log.txt") as server:
        server.wait()
        yield server.address
        assert server.end(signal.SIGTERM) == 0
    assert unexpected_tracebacks(server.log.read_text()) == []


def alive(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def client(server):
    yield openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120)
    assert alive(server)


def ask(client, model, prompt, **options):
    extra = {"ignore_eos": True, "return_token_ids": True}
    settings = {"model": model, "prompt": prompt["prompt_token_ids"], "temperature": 0, "max_tokens": 8, **options}
    return client.completions.create(**settings, extra_body=extra)


def test_answer(client, model, prompts, greedy):
    prompt = prompts(10, seed=50)[0]
    answer = ask(client, model, prompt)
    assert answer.choices[0].token_ids == greedy(prompt, 8)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 8)


def test_streamed_answer_is_the_whole_one(client, model, prompts):
    prompt = prompts(12, seed=51)[0]
    whole = ask(client, model, prompt).choices[0].text
    parts = [part.choices[0].text for part in ask(client, model, prompt, stream=True)]
    assert len(parts) > 1
    assert "".join(parts) == whole


def test_32_requests_at_once(server, model, prompts, greedy):
    asked = prompts(*[8 + i % 5 for i in range(32)], seed=52)

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(ask(client, model, prompt) for prompt in asked))

    answers = asyncio.run(all_of_them())
    assert [answer.choices[0].token_ids for answer in answers] == [greedy(prompt, 8) for prompt in asked]
    assert alive(server)


def test_a_cancelled_request_leaves_the_batch(server, client, model, prompts):
    stream = ask(client, model, prompts(8, seed=53)[0], max_tokens=110, stream=True)
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 60
    while "vllm:num_requests_running" in (text := httpx.get(f"{server}/metrics").text):
        lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
        if all(float(line.rsplit(" ", 1)[1]) == 0 for line in lines):
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"max_tokens": "many"}, {"prompt": [10**7]}, {"prompt": [5] * 500}],
    ids=["negative", "no number", "unknown token", "too long"],
)
def test_wrong_requests_are_answered_with_400(client, model, options):
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, **options}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/completions", body=body, cast_to=object)
    assert caught.value.status_code == 400


def test_an_unknown_model_is_answered_with_404(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="a", max_tokens=1)
