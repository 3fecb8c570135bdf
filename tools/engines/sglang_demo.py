# `make sglang`: SGLang serves SmolLM2-135M-Instruct on `kunlun`. The text is shown as it comes, then what was measured.
import argparse
import os
import sys
import time

from tools.measure import weights

PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "What is seven times six?",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.engines.sglang_demo", description="SGLang generates text with SmolLM2-135M on kunlun."
    )
    parser.add_argument("--prompt", action="append", help="what to ask the model; may be given several times")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens to generate at most (default 48)")
    parser.add_argument("--tp", type=int, default=1, choices=(1, 3), help="devices (the model has 3 key heads)")
    return parser.parse_args()


def note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def write(engine, prompt: str, new_tokens: int) -> int:
    """Shows the answer piece by piece; returns the number of its tokens."""
    text = engine.tokenizer_manager.tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    print(f"\n> {prompt}", flush=True)
    shown, tokens = "", 0
    for piece in engine.generate(text, {"temperature": 0, "max_new_tokens": new_tokens}, stream=True):
        print(piece["text"][len(shown) :], end="", flush=True)
        shown, tokens = piece["text"], piece["meta_info"]["completion_tokens"]
    print(flush=True)
    return tokens


def main() -> int:
    options = arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.tp > 1:
        os.environ.setdefault("KUNLUN_SIM_DEVICES", str(options.tp))
    try:
        if not weights.is_converted():
            note(f"converting {weights.NAME} to bfloat16 weights (once, about half a minute)")
        folder = weights.cached() if weights.is_converted() else weights.convert()
    except weights.WeightsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    note("importing SGLang")
    import sglang

    note("starting the engine: a scheduler for each device, and a detokenizer")
    begin = time.perf_counter()
    engine = sglang.Engine(model_path=str(folder), dtype="float32", tp_size=options.tp)
    try:
        note(f"ready after {time.perf_counter() - begin:.0f} s")
        begin, tokens = time.perf_counter(), 0
        for prompt in options.prompt or PROMPTS:
            tokens += write(engine, prompt, options.new_tokens)
        seconds = time.perf_counter() - begin
        counts = engine.get_server_info()["internal_states"][0]["kunlun_operators"]
    finally:
        engine.shutdown()
    print()
    note(f"{tokens} tokens in {seconds:.1f} s, {tokens / seconds:.1f} tokens/s; the chip is simulated on this CPU")
    tiers = ", ".join(f"{counts[name]:,} {name}" for name in ("launcher", "host_call", "boxed", "fallback"))
    note(f"operators since the start: {tiers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
