# transformers and accelerate on `kunlun`: where a model goes, pipelines, training, and the page that tells users so.
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("transformers") is None or find_spec("accelerate") is None:
    pytest.skip("transformers and accelerate are the demo's, see requirements/demo.txt", allow_module_level=True)

import torch_xpu_kunlun  # noqa: F401 - registers the device
from tools import zoo

NEW_TOKENS = 32


@pytest.fixture(scope="module")
def folder() -> str:
    return str(zoo.checkpoint("llama3"))


@pytest.fixture(scope="module")
def answer() -> dict:
    return zoo.reference("llama3")["answers"][1]


@pytest.fixture
def device_of_accelerate(monkeypatch):
    """Sets accelerate's variable; forgets what accelerate remembers of this process, before and afterwards."""
    from accelerate.state import AcceleratorState

    def use(device: str | None) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        if device is None:
            monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
        else:
            monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", device)

    yield use
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    "device_map",
    [
        "kunlun",
        {"": "kunlun:1"},
        {
            "model.embed_tokens": "kunlun:0",
            "model.rotary_emb": "kunlun:0",
            "model.layers.0": "kunlun:0",
            "model.layers.1": "kunlun:1",
            "model.layers.2": "kunlun:1",
            "model.norm": "kunlun:1",
            "lm_head": "kunlun:1",
        },
    ],
    ids=["name", "another", "spread"],
)
def test_device_map(folder, answer, device_map):
    """A model loaded to one device or spread over two writes what it writes on the CPU."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map=device_map)
    expected = {"kunlun:0"} if device_map == "kunlun" else set(device_map.values())
    assert {str(parameter.device) for parameter in model.parameters()} == expected
    inputs = AutoTokenizer.from_pretrained(folder)(answer["prompt"], return_tensors="pt").to("kunlun")
    output = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0)
    assert output[0, inputs["input_ids"].shape[1] :].tolist() == answer["tokens"]


def test_pipeline(folder, answer):
    from transformers import pipeline

    write = pipeline("text-generation", model=folder, device="kunlun", dtype=torch.float32)
    assert write.device.type == "kunlun"
    written = write(
        answer["prompt"], do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, return_full_text=False
    )
    assert written[0]["generated_text"] == answer["text"]


def test_accelerator_takes_the_device(device_of_accelerate):
    """accelerate has no registration for devices that it does not know, but a variable."""
    from accelerate import Accelerator

    device_of_accelerate("kunlun")
    accelerator = Accelerator(mixed_precision="bf16")
    assert accelerator.device.type == "kunlun"
    layer = torch.nn.Linear(4, 2)
    layer, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    with accelerator.autocast():
        product = layer.weight @ layer.weight.T
    assert (product.device.type, product.dtype) == ("kunlun", torch.bfloat16)
    before = layer.weight.detach().clone()
    accelerator.backward(layer(torch.ones(3, 4, device=accelerator.device)).sum())
    optimizer.step()
    assert not torch.equal(layer.weight, before)


def train(folder: str, prompts: list[list[int]], use_cpu: bool) -> tuple[str, list[float]]:
    """Where four steps ran, and their losses."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=use_cpu,
    )
    data = [{"input_ids": tokens, "labels": tokens} for tokens in prompts]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return next(trainer.model.parameters()).device.type, losses


def test_trainer_learns_as_on_the_cpu(folder, device_of_accelerate):
    prompts = [one["prompt_tokens"][:12] for one in zoo.reference("llama3")["answers"]] * 4
    device_of_accelerate("kunlun")
    device, losses = train(folder, prompts, use_cpu=False)
    device_of_accelerate(None)
    cpu, expected = train(folder, prompts, use_cpu=True)
    assert (device, cpu) == ("kunlun", "cpu")
    assert len(losses) == 4
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-4)


IMPORT = [sys.executable, "-W", "always", "-c", "import torch, torch_xpu_kunlun"]


@pytest.mark.parametrize(
    ("variables", "warned"),
    [
        ({"ACCELERATE_TORCH_DEVICE": "kunlun", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, True),
        ({"ACCELERATE_TORCH_DEVICE": "kunlun", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, False),
        ({"ACCELERATE_TORCH_DEVICE": "cpu", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, False),
    ],
)
def test_several_processes_are_warned(monkeypatch, variables, warned):
    """accelerate would let each process train by itself, and say nothing."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(IMPORT, capture_output=True, text=True, timeout=120, check=True)
    assert ("accelerate does not know how processes on kunlun work together" in done.stderr) == warned


def test_program_of_the_page_prints_what_the_page_shows():
    page = (Path(__file__).resolve().parents[2] / "docs" / "transformers.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    shown = re.search(r"prints[^`]*```\n(.*?)```", page, re.S).group(1)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(shown)
