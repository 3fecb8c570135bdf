# python -m sglang.launch_server, used as its clients use it: answers, status codes, and that it lives on after each.
#
# Its cache is too small for all that is asked at once, and its schedule does not overlap: with overlap SGLang applies
# penalties a token late.
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from common_sglang import LONG_PROMPTS, LONG_TOKENS, NEW_TOKENS, PENALTIES, PROMPTS, tokens_of

CACHE_TOKENS = 256
CONTEXT = 512


class Server:
    def __init__(self, model: str, log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        options = ["--model-path", model, "--dtype", "float32", "--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--max-total-tokens", str(CACHE_TOKENS), "--context-length", str(CONTEXT), "--log-level", "info"]
        options += ["--disable-overlap-schedule", "--schedule-conservativeness", "0.1", "--served-model-name", "smollm"]
        command = [sys.executable, "-m", "sglang.launch_server", *options]
        self.process = subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT)

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server has ended:\n{self.log.read_text()[-4000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=20):
                return
            time.sleep(0.5)
        raise TimeoutError(f"the server did not come up:\n{self.log.read_text()[-4000:]}")

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def generate(self, text, parameters) -> list[dict]:
        status, body = self.post("/generate", json.dumps({"text": text, "sampling_params": parameters}).encode())
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def server(smollm, tmp_path_factory):
    server = Server(str(smollm), tmp_path_factory.mktemp("sglang") / "server.log")
    try:
        server.wait(300)
        yield server
        assert server.process.poll() is None, "the server did not live to the end"
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(90)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


def complete(client, prompt: str, tokens: int = NEW_TOKENS) -> str:
    answer = client.completions.create(model="smollm", prompt=prompt, max_tokens=tokens, temperature=0)
    return answer.choices[0].text


@pytest.fixture(scope="module")
def texts(smollm, smollm_reference) -> list[str]:
    """What transformers answers to the prompts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm)
    return [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in tokens_of(smollm_reference["plain"])]


def test_completion_is_the_text_of_transformers(client, texts):
    assert [complete(client, prompt) for prompt in PROMPTS] == texts


def test_stream_of_a_chat_is_its_answer(client):
    question = {
        "model": "smollm",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**question)
    pieces = [chunk.choices[0] for chunk in client.chat.completions.create(**question, stream=True) if chunk.choices]
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.choices[0].message.content
    assert "Paris" in whole.choices[0].message.content
    assert pieces[-1].finish_reason == whole.choices[0].finish_reason == "stop"
    assert len(pieces) > 3


def test_requests_at_the_same_time(client, texts):
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda number: complete(client, PROMPTS[number % 3]), range(32)))
    assert answers == [texts[number % 3] for number in range(32)]


def test_several_answers(client, texts):
    answer = client.completions.create(model="smollm", prompt=PROMPTS[0], max_tokens=NEW_TOKENS, temperature=0, n=3)
    assert [choice.text for choice in answer.choices] == [texts[0]] * 3


def test_penalties(server, smollm_reference):
    parameters = [{"temperature": 0, "max_new_tokens": NEW_TOKENS, **penalty} for penalty in PENALTIES]
    outputs = server.generate([PROMPTS[1]] * len(PENALTIES), parameters)
    assert tokens_of(outputs) == tokens_of(smollm_reference["penalised"])


def test_full_cache_puts_requests_back_and_changes_no_text(server, smollm_reference):
    parameters = {"temperature": 0, "max_new_tokens": LONG_TOKENS}
    outputs = server.generate(list(LONG_PROMPTS), parameters)
    assert tokens_of(outputs) == tokens_of(smollm_reference["long"])
    assert "Retract requests" in server.log.read_text()


def test_cancelled_request_frees_its_place(server, client, texts):
    for _ in range(3):
        stream = client.completions.create(model="smollm", prompt="Count: 1 2 3", max_tokens=200, stream=True)
        next(iter(stream))
        stream.close()
    assert complete(client, PROMPTS[0]) == texts[0]


def test_malformed_requests(server, client, texts):
    assert server.post("/v1/completions", b"{not json")[0] == 400
    assert server.post("/v1/completions", b'{"model": "smollm"}')[0] == 400
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="smollm", prompt=PROMPTS[0], max_tokens=4, temperature=-1)
    assert complete(client, PROMPTS[0]) == texts[0]


def test_prompt_that_is_too_long(client, texts):
    with pytest.raises(openai.BadRequestError, match="length"):
        complete(client, "many words " * CONTEXT)
    assert complete(client, PROMPTS[0]) == texts[0]
