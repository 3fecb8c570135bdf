# The small models of tools.zoo: transformers computes on `kunlun` what it computes on the CPU without the extension.
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

if find_spec("transformers") is None:
    pytest.skip("transformers is the demo's requirement, see requirements/demo.txt", allow_module_level=True)

from common_zoo import checkpoint_or_skip, models

import torch_xpu_kunlun
from tools import zoo
from tools.zoo.families import FAMILIES

TEXT = tuple(name for name, family in FAMILIES.items() if family.kind in ("text", "vision"))
OTHERS = tuple(name for name, family in FAMILIES.items() if family.kind in ("embedding", "score"))


def load(name: str):
    import transformers

    folder = checkpoint_or_skip(name)
    transformers.utils.logging.disable_progress_bar()
    loader = getattr(transformers, FAMILIES[name].model)
    model = loader.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").to("kunlun").eval()
    return model, getattr(transformers, FAMILIES[name].loader).from_pretrained(folder)


@models(quick=("llama3", "gemma2", "deepseek_v2"), every=TEXT)
def test_the_same_tokens_and_text(name):
    model, tokenizer = load(name)
    torch_xpu_kunlun.reset_operator_statistics()
    written = FAMILIES[name].reference(model, tokenizer)
    expected = zoo.reference(name)["answers"]
    for part in ("prompt", "prompt_tokens", "tokens", "text"):
        assert [answer[part] for answer in written] == [answer[part] for answer in expected]
    assert torch_xpu_kunlun.operator_statistics()["fallback"] == 0


@models(quick=("bert",), every=OTHERS)
def test_the_same_numbers(name):
    model, tokenizer = load(name)
    key = FAMILIES[name].key
    part = key.removesuffix("s")
    made = torch.tensor([one[part] for one in FAMILIES[name].reference(model, tokenizer)])
    expected = torch.tensor([one[part] for one in zoo.reference(name)[key]])
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-4)


def test_references_are_fair_questions():
    """Every choice of a token was clear, and no answer is one token over and over."""
    reference = zoo.reference("llama3")
    assert FAMILIES["llama3"].is_fair(reference["answers"])
    repeats = json.loads(json.dumps(reference["answers"]))
    repeats[1]["tokens"] = [7] * 32
    assert not FAMILIES["llama3"].is_fair(repeats)
    narrow = json.loads(json.dumps(reference["answers"]))
    narrow[2]["smallest_gap"] = 1e-4
    assert not FAMILIES["llama3"].is_fair(narrow)


def test_references_come_from_a_process_without_the_extension():
    """With the extension loaded, the maker refuses."""
    made = subprocess.run(
        [sys.executable, "-c", "import torch, torch_xpu_kunlun, tools.zoo.__main__ as z; z.main()", "llama3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert made.returncode == 1
    assert "this process has loaded torch_xpu_kunlun" in made.stderr


def test_an_unknown_name_is_refused_with_the_names_that_exist():
    with pytest.raises(zoo.ZooError, match=r"unknown: llama17; there are llama2, llama3"):
        zoo.checkpoint("llama17")
