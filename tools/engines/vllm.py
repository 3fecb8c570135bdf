# `make vllm`: vLLM generates text with SmolLM2-135M-Instruct on `kunlun`. Nothing below is special to the device.
import argparse
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, so that its progress can be shown

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from vllm import LLM, SamplingParams

QUESTIONS = ("What is the capital of France?", "Why is the sky blue?", "Name three prime numbers.")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="vLLM generates text on kunlun.")
    parser.add_argument("--model", required=True, help="folder of a converted model")
    parser.add_argument("--dtype", default="float32", help="float32 (default), bfloat16 or float16")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens for each answer (default 48)")
    return parser.parse_args()


def generate(llm: LLM, options: argparse.Namespace, progress: Progress) -> dict[str, str]:
    """The answers by question; moves the bar with every step of the engine."""
    tokenizer, engine = llm.get_tokenizer(), llm.llm_engine
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        engine.add_request(question, prompt, SamplingParams(temperature=0, max_tokens=options.new_tokens))
    task = progress.add_task("writing", total=len(QUESTIONS) * options.new_tokens)
    written: dict[str, int] = {}
    answers = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            completion = output.outputs[0]
            answers[output.request_id] = completion.text
            written[output.request_id] = options.new_tokens if output.finished else len(completion.token_ids)
        progress.update(task, completed=sum(written.values()))
    return answers


def main() -> None:
    options = arguments()
    console = Console()
    llm = LLM(
        options.model,
        dtype=options.dtype,
        max_model_len=512,
        max_num_batched_tokens=512,
        max_num_seqs=len(QUESTIONS),
        disable_log_stats=True,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    start = time.perf_counter()
    with Progress(*columns, console=console) as progress:
        answers = generate(llm, options, progress)
    seconds = time.perf_counter() - start
    for question, answer in answers.items():
        console.print(f"\n[bold]{question}[/bold]\n{answer.strip()}", highlight=False)
    console.print(f"\n{seconds:.1f} s on a simulated chip, {options.dtype}")


if __name__ == "__main__":
    main()
