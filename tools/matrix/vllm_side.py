# vLLM's side of the matrix: one model, offline, in the process itself.
import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from tools.matrix.side import serve
from tools.zoo.vision import picture

SMALL = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 64 << 20,
    "disable_log_stats": True,
}


def reset_counters(worker) -> None:
    import torch_xpu_kunlun

    torch_xpu_kunlun.reset_operator_statistics()


def counters(worker) -> dict:
    import torch_xpu_kunlun

    return torch_xpu_kunlun.operator_statistics()


def model_class(worker) -> tuple[str, str]:
    kind = type(worker.get_model())
    return kind.__module__, kind.__name__


def answer(prompt, output) -> dict:
    return {"prompt_tokens": list(prompt), "tokens": list(output.token_ids), "text": output.text}


def prompts(job: dict) -> list:
    if job["kind"] == "text":
        return job["inputs"]
    return [
        {"prompt": text, "multi_modal_data": {"image": picture(number)}}
        for text, number in zip(job["inputs"], job["pictures"], strict=True)
    ]


def run(job: dict) -> dict:
    """Load the model, let it answer, and say what came out and how it ran."""
    import vllm

    kind = job["kind"]
    writes = kind in ("text", "vision")
    extra = {} if writes else {"runner": "pooling"}
    llm = vllm.LLM(model=job["folder"], tensor_parallel_size=job["tp"], **SMALL, **extra, **job["options"])
    module, name = llm.collective_rpc(model_class)[0]
    llm.collective_rpc(reset_counters)
    if writes:
        parameters = vllm.SamplingParams(temperature=0, max_tokens=job["new_tokens"], ignore_eos=True)
        outputs = llm.generate(prompts(job), parameters, use_tqdm=False)
        made = [
            {
                "prompt_tokens": list(o.prompt_token_ids),
                "tokens": list(o.outputs[0].token_ids),
                "text": o.outputs[0].text,
            }
            for o in outputs
        ]
    elif kind == "embedding":
        made = [o.outputs.embedding for o in llm.embed(job["inputs"], use_tqdm=False)]
    else:
        made = [o.outputs.score for o in llm.score(job["question"], job["inputs"], use_tqdm=False)]
    counts = llm.collective_rpc(counters)
    return {
        "engine": f"vLLM {vllm.__version__}",
        "made": made,
        "class": name,
        "native": ".models." in module and not module.split(".models.")[1].startswith("transformers"),
        "boxed": {op: n for c in counts for op, n in c["boxed_ops"].items()},
        "fallback": sum(c["fallback"] for c in counts),
    }


if __name__ == "__main__":
    serve(run, "vllm.entrypoints.llm")
