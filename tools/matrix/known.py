# What an engine does not do, whatever the device, with where it says so. A line that no longer holds fails a test.
SGLANG = "https://github.com/sgl-project/sglang/blob/v0.5.21/python/sglang/srt/models"

VLLM = "https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/model_executor/models"

KNOWN = {
    ("vllm", "cohere2"): f"vLLM's window of Cohere 2 is one token longer than transformers' ({VLLM}/commandr.py#L237)",
    ("sglang", "mistral_window"): f"SGLang runs Mistral as Llama, without a window ({SGLANG}/mistral.py)",
    ("sglang", "starcoder2"): f"SGLang's class for StarCoder2 has no window ({SGLANG}/starcoder2.py)",
}
