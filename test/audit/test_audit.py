"""`python -m torch_xpu_kunlun audit`: operators of a model with their tiers, on fake tensors and run."""

import json
import pathlib

import pytest
import torch

# What serves an operator that the chip has no kernel for, and that is computed at once.
TIER = "boxed" if torch.kunlun.get_device_properties(0).is_host_addressable else "fallback"
HERE = pathlib.Path(__file__).parent


@pytest.fixture
def audit(run_python, tmp_path):
    """Runs the command; returns its exit code, its output and what it wrote as JSON, operators by name."""

    def run(*words: str, **environment: str):
        file = tmp_path / "audit.json"
        code = f"""
            import sys
            sys.path.insert(0, {str(HERE)!r})
            from torch_xpu_kunlun.__main__ import main
            sys.exit(main(["audit", *{words!r}, "--json", {str(file)!r}]))
        """
        done = run_python(code, **environment)
        found = {row["operator"]: row for row in json.loads(file.read_text())["operators"]} if file.exists() else {}
        return done, found

    return run


def test_a_model_on_fake_tensors(audit):
    done, found = audit("models:classifier")
    assert done.returncode == 0, done.stderr
    assert "models:classifier: on fake tensors, nothing was computed; driver sim" in done.stdout
    linear = found["aten::addmm"]
    assert (linear["tier"], linear["chip_operator"], linear["chip_kernel"]) == ("launcher", "aten::addmm.out", True)
    assert linear["dtypes"] == ["float32"] * 3
    assert linear["shapes"] == [{"shapes": [[16], [3, 8], [8, 16]], "calls": 1}]
    assert linear["calls"] == 1
    assert linear["seconds"] is None
    assert found["aten::relu"]["chip_operator"] == "aten::clamp_min.out"
    assert found["aten::t"]["tier"] == "none"
    assert all(name not in found for name in ("aten::uniform_", "aten::normal_"))  # making the model is not part of it


@pytest.mark.parametrize("name", ["classifier", "on_the_host"])
def test_fake_and_real_runs_agree(audit, name):
    done, fake = audit(f"models:{name}", "--train")
    assert done.returncode == 0, done.stderr
    done, real = audit(f"models:{name}", "--train", "--on", "simulator")
    assert done.returncode == 0, done.stderr
    # What torch builds from other operators is one line of a real run and several of a fake one.
    both = fake.keys() & real.keys()
    assert len(both) >= 5, (fake.keys(), real.keys())
    assert {name: fake[name]["tier"] for name in both} == {name: real[name]["tier"] for name in both}
    assert all(row["seconds"] > 0 for row in real.values())
    assert "time" in done.stdout


def test_a_callable_that_is_itself_the_run_and_a_tier_that_is_not_allowed(audit):
    done, found = audit("models:by_itself", "--fail-on", "boxed")
    assert found["aten::nonzero"]["tier"] == TIER
    assert found["aten::index.Tensor"]["shapes"][0]["shapes"] == [[4, 4], ["u0"]]
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "Not allowed (boxed): aten::nonzero"
    done, _ = audit("models:by_itself", "--fail-on", "fallback")
    assert done.returncode == (0 if TIER == "boxed" else 1), done.stdout


def test_another_chip_has_other_tiers(audit):
    few = {"KUNLUN_SIM_HOST_ADDRESSABLE": "0", "KUNLUN_SIM_OPERATORS": "without=aten::addmm"}
    done, found = audit("models:classifier", "--fail-on", "fallback", **few)
    assert done.returncode == 1
    assert found["aten::addmm"]["tier"] == "fallback"
    assert not found["aten::addmm"]["chip_kernel"]
    assert found["aten::relu"]["tier"] == "launcher"
    reachable = {"KUNLUN_SIM_HOST_ADDRESSABLE": "1"}
    _, found = audit("models:classifier", KUNLUN_SIM_OPERATORS="without=aten::addmm", **reachable)
    assert found["aten::addmm"]["tier"] == "host_call"
    _, found = audit("models:classifier", KUNLUN_SIM_DTYPES="without=float32", **reachable)
    assert found["aten::addmm"]["tier"] == "host_call"


def test_a_transformers_folder(audit, tmp_path):
    pytest.importorskip("transformers", reason="the demo's requirement, see requirements/demo.txt")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
        "dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    done, found = audit(str(tmp_path), "--tokens", "7")
    assert done.returncode == 0, done.stderr
    attention = found["aten::_scaled_dot_product_fused_attention_overrideable"]
    assert attention["tier"] == "launcher"
    # The prompt, and one more token.
    assert {tuple(one["shapes"][0]) for one in attention["shapes"]} == {(1, 4, 7, 8), (1, 4, 1, 8)}
    assert {row["tier"] for row in found.values()} == {"launcher", "none"}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("no_such_folder", "neither a folder with a transformers model nor of the form package.module:callable"),
        ("models:decides_by_values", "audit it with --on simulator. It stopped at: "),
    ],
)
def test_what_cannot_be_audited_says_why(audit, word, text):
    done, _ = audit(word)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_comparison_with_the_cpu_is_not_audited(audit):
    done, _ = audit("models:classifier", KUNLUN_AUTOCOMPARE="1")
    assert done.returncode == 2
    assert "KUNLUN_AUTOCOMPARE puts kernels of its own" in done.stderr
