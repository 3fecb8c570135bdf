# Random weights that make a small model decide: activations of size one, attention that looks somewhere, logits apart.
import torch
from torch import nn

# Layers' outputs count for more than the embedding that runs past them.
OUTPUTS = (
    "o_proj",
    "out_proj",
    "down_proj",
    "fc2",
    "dense_4h_to_h",
    "c_proj",
    "w2",
    "attention.dense",
    "attention.output.dense",
    "output.dense",
    "proj_out",
)
QUERIES = ("q_proj", "k_proj", "query_key_value", "c_attn")
# Where the output layer is the embedding, the last norm makes logits large: the embedding is small, so that the token
# at the input does not come out again.
LAST_NORMS = ("model.norm.weight", "ln_f.weight", "decoder.final_layer_norm.weight")


@torch.no_grad()
def randomise(model: nn.Module, seed: int, embedding: float, head: float, outputs: float, attention: float) -> None:
    """Replace every weight. `embedding` is the deviation of embeddings; `head` and `outputs` are the gains of the
    output layer, or of the last norm where that is the embedding, and of what layers add to the hidden state;
    `attention` that of queries and keys, as a factor: the larger, the more a token's choice depends on its past."""
    generator = torch.Generator().manual_seed(seed)
    transposed = {id(m.weight) for m in model.modules() if type(m).__name__ == "Conv1D"}
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}

    tied = getattr(model.config, "tie_word_embeddings", False)

    def normal(parameter: torch.Tensor, deviation: float) -> torch.Tensor:
        return torch.randn(parameter.shape, generator=generator) * deviation

    for name, parameter in model.named_parameters():
        if id(parameter) in embeddings:
            parameter.copy_(normal(parameter, embedding))
        elif parameter.dim() < 2:  # a norm's weight, ones or zeros, or a bias
            multiplies = parameter.mean() > 0.5  # else the norm multiplies by 1 + weight, or this is a bias
            parameter.add_(normal(parameter, 0.1))
            if tied and name.endswith(LAST_NORMS):
                parameter.mul_(head) if multiplies else parameter.add_(head - 1)
        else:
            inputs = parameter.shape[-2] if id(parameter) in transposed else parameter[0].numel()
            if parameter.dim() == 3:  # experts, stacked
                inputs = parameter.shape[-1]
            gain = head if "lm_head" in name or "embed_out" in name else 1.3
            gain *= attention if any(part in name for part in QUERIES) else 1
            gain *= outputs if any(part in name for part in OUTPUTS) else 1
            parameter.copy_(normal(parameter, gain * inputs**-0.5))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # learned, although it is no parameter
            buffer.copy_(normal(buffer, 0.05))
