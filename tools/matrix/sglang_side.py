# SGLang's side of the matrix: one model through sglang.Engine, whose scheduler is a process of its own for each device.
import json
from pathlib import Path

from tools.matrix.side import serve
from tools.zoo.vision import picture

SMALL = {
    "dtype": "float32",
    "context_length": 256,
    "max_total_tokens": 2048,
    "max_running_requests": 8,
    "chunked_prefill_size": 256,
    "random_seed": 0,
}

# What config.json of published models says and SGLang reads, and what transformers no longer writes.
PUBLISHED = {
    "bert": {
        "position_embedding_type": "absolute",
        "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid",
    },
    "deepseek_v2": {"moe_layer_freq": 1, "scoring_func": "softmax"},
    "deepseek_v3": {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh"},
}


def published(folder: str) -> dict:
    """Arguments for the engine that add such words to the configuration of a model."""
    config = json.loads((Path(folder) / "config.json").read_text())
    words = PUBLISHED.get(config["model_type"], {})
    match config["model_type"]:
        case "gpt_neox":  # it has as many key heads as heads, whatever a configuration says
            words = {"num_key_value_heads": config["num_attention_heads"]}
        case "phi":  # without it, the inner size is four times the width
            words = {"n_inner": config["intermediate_size"]}
        case "exaone4":  # a letter for each layer says which ones have a window
            letters = "".join("L" if kind == "sliding_attention" else "G" for kind in config["layer_types"])
            words = {
                "rope_theta": config["rope_parameters"]["rope_theta"],
                "sliding_window_pattern": letters if "L" in letters else None,
            }
    return {"json_model_override_args": json.dumps(words)} if words else {}


def counters(engine) -> list[dict]:
    """Of every scheduler, since its start."""
    return [state["kunlun_operators"] for state in engine.get_server_info()["internal_states"]]


def prompt_tokens(manager, text: str, pictures: list | None) -> list[int] | None:
    """None with pictures: SGLang does not tell which tokens it makes of them."""
    return None if pictures else manager.tokenizer.encode(text)


def run(job: dict) -> dict:
    """Load the model, let it answer, and say what came out and how it ran."""
    import sglang
    from sglang.srt.model_loader.utils import get_model_architecture

    kind = job["kind"]
    writes = kind in ("text", "vision")
    extra = {} if writes else {"is_embedding": True, "disable_radix_cache": True}
    settings = {**SMALL, **extra, **published(job["folder"]), **job["options"]}
    engine = sglang.Engine(model_path=job["folder"], tp_size=job["tp"], **settings)
    try:
        manager = engine.tokenizer_manager
        model, _ = get_model_architecture(manager.model_config)
        before = counters(engine)
        if writes:
            parameters = {"temperature": 0, "max_new_tokens": job["new_tokens"], "ignore_eos": True}
            pictures = [[picture(number)] for number in job["pictures"]] or None
            outputs = engine.generate(job["inputs"], parameters, image_data=pictures)
            made = [
                {"prompt_tokens": prompt_tokens(manager, text, pictures), "tokens": o["output_ids"], "text": o["text"]}
                for text, o in zip(job["inputs"], outputs, strict=True)
            ]
        elif kind == "embedding":
            made = [o["embedding"] for o in engine.encode(job["inputs"])]
        else:
            pairs = [[job["question"], text] for text in job["inputs"]]
            made = [o["embedding"] for o in engine.rerank(pairs)]
        boxed, fallback = {}, 0
        for old, new in zip(before, counters(engine), strict=True):
            fallback += new["fallback"] - old["fallback"]
            for name, count in new["boxed_ops"].items():
                if count > old["boxed_ops"].get(name, 0):
                    boxed[name] = boxed.get(name, 0) + count - old["boxed_ops"].get(name, 0)
    finally:
        engine.shutdown()
    return {
        "engine": f"SGLang {sglang.__version__}",
        "made": made,
        "class": model.__name__,
        "native": not model.__module__.endswith(".transformers"),
        "boxed": boxed,
        "fallback": fallback,
    }


if __name__ == "__main__":
    serve(run, "sglang.srt.entrypoints.engine")
