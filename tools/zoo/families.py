# The architectures: for each a small configuration that keeps what is special about it.
#
# Heads and heads of keys and values are even in number, and all widths divide by two, so that two devices can share
# the work. Windows are shorter than the longest prompt, so that they matter.
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.zoo import vectors, vision, writing
from tools.zoo.tokenizer import BOS, EOS, PAD, VOCABULARY, byte_pairs, word_pieces

LAYERS = 3
WINDOW = 24


@dataclass(frozen=True)
class Family:
    """One architecture. `settings` go to the class `configuration` of transformers, on top of COMMON or OLDER."""

    title: str
    model: str
    configuration: str
    settings: dict
    kind: str = "text"  # or vision, embedding, score
    tokenizer: Callable = byte_pairs
    reference: Callable = writing.answers
    is_fair: Callable = writing.is_fair
    embedding: float = 0.3
    head: float = 4.0
    outputs: float = 1.5
    attention: float = 1.0
    defaults: dict = field(default_factory=lambda: COMMON)
    loader: str = "AutoTokenizer"
    packages: tuple[str, ...] = ()  # what must be installed besides transformers
    # Beginnings of weights' names, as published checkpoints have them where transformers now writes others.
    published_names: dict[str, str] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, str]:
        """What transformers must have."""
        return self.model, self.configuration

    @property
    def key(self) -> str:
        """Under which name the reference lies in reference.json."""
        return {"text": "answers", "vision": "answers", "embedding": "vectors", "score": "scores"}[self.kind]

    def config(self, transformers):
        """The configuration object."""
        return getattr(transformers, self.configuration)(**{**self.defaults, **self.settings})


TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
COMMON = {
    **TOKENS,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
# Models of before 2023 name their sizes each in their own way.
OLDER = {**TOKENS, "hidden_size": 128}
# Each head has keys and values of its own.
UNGROUPED = {
    **TOKENS,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# Multi-head latent attention: keys and values are kept as one vector of kv_lora_rank, and a rotary part.
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
DEEPSEEK = {
    **LATENT,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
TIED = {"embedding": 0.05, "attention": 2.5}  # models whose output layer is the embedding: see weights.py
SCALED = {
    "embedding": 0.015,
    "attention": 2.5,
    "head": 8.0,
}  # the same, where the embedding is multiplied by the width's root
MIXED = ["sliding_attention", "sliding_attention", "full_attention"]  # kinds of attention, layer by layer


def decoder(title: str, prefix: str, defaults: dict = COMMON, suffix: str = "ForCausalLM", **settings) -> Family:
    """A text model whose classes are named by `prefix`; `embedding` and `head` are weights' sizes, not settings."""
    sizes = {
        name: settings.pop(name)
        for name in ("embedding", "head", "outputs", "attention", "tokenizer")
        if name in settings
    }
    configuration = settings.pop("configuration", f"{prefix}Config")
    return Family(title, prefix + suffix, configuration, settings, defaults=defaults, **sizes)


FAMILIES = {
    "llama2": decoder("Llama 2", "Llama", num_key_value_heads=4),
    "llama3": decoder(
        "Llama 3",
        "Llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": decoder("Mistral 0.3", "Mistral", sliding_window=None),
    "mistral_window": decoder("Mistral 0.1, with a window", "Mistral", sliding_window=WINDOW),
    "mixtral": decoder("Mixtral", "Mixtral", num_local_experts=8, num_experts_per_tok=2),
    "qwen2": decoder("Qwen2", "Qwen2"),
    "qwen2_moe": decoder("Qwen2-MoE", "Qwen2Moe", **EXPERTS, shared_expert_intermediate_size=64),
    "qwen3": decoder("Qwen3", "Qwen3", head_dim=32),
    "qwen3_moe": decoder("Qwen3-MoE", "Qwen3Moe", **EXPERTS, head_dim=32, norm_topk_prob=True),
    "gemma": decoder("Gemma", "Gemma", head_dim=32, num_key_value_heads=2, **SCALED),
    "gemma2": decoder(
        "Gemma 2",
        "Gemma2",
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=WINDOW,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
        **SCALED,
    ),
    "gemma3": decoder(
        "Gemma 3",
        "Gemma3",
        configuration="Gemma3TextConfig",
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=WINDOW,
        layer_types=MIXED,
        **SCALED,
    ),
    "phi": decoder("Phi-2", "Phi", num_key_value_heads=4),
    "phi3": decoder("Phi-3", "Phi3", num_key_value_heads=4),
    "glm": decoder("GLM", "Glm", head_dim=32),
    "glm4": decoder("GLM-4", "Glm4", head_dim=32),
    "glm4_moe": decoder(
        "GLM-4.5",
        "Glm4Moe",
        head_dim=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=64,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        use_qk_norm=True,
    ),
    "minicpm3": decoder("MiniCPM3", "MiniCPM3", **LATENT, tie_word_embeddings=False, dim_model_base=128, scale_emb=4),
    "cohere": decoder("Cohere", "Cohere", logit_scale=1.0, **TIED),
    "cohere2": decoder("Cohere 2", "Cohere2", logit_scale=1.0, **TIED, sliding_window=WINDOW, layer_types=MIXED),
    "ernie4_5": decoder("ERNIE-4.5", "Ernie4_5", **TIED, head_dim=32),
    "exaone4": decoder("EXAONE-4", "Exaone4", sliding_window=WINDOW, layer_types=MIXED),
    "exaone4_small": decoder(
        "EXAONE-4 1.2B, without a window", "Exaone4", sliding_window=None, layer_types=["full_attention"] * LAYERS
    ),
    "olmo": decoder("OLMo", "Olmo", num_key_value_heads=4),
    "olmo2": decoder("OLMo2", "Olmo2", num_key_value_heads=4),
    "olmoe": decoder(
        "OLMoE", "Olmoe", num_key_value_heads=4, intermediate_size=64, num_experts=8, num_experts_per_tok=2
    ),
    "granite": decoder(
        "Granite",
        "Granite",
        embedding_multiplier=2.0,
        residual_multiplier=0.7,
        attention_multiplier=0.2,
        logits_scaling=1.5,
    ),
    "granitemoe": decoder(
        "GraniteMoE",
        "GraniteMoe",
        intermediate_size=64,
        num_local_experts=8,
        num_experts_per_tok=2,
        embedding_multiplier=2.0,
        residual_multiplier=0.7,
        attention_multiplier=0.2,
        logits_scaling=1.5,
    ),
    # As its Lite form chooses experts: 5.12 of transformers fails at groups of them.
    "deepseek_v2": decoder("DeepSeek-V2", "DeepseekV2", **DEEPSEEK, topk_method="greedy", n_group=1, topk_group=1),
    # The last two are fixed in transformers' class; engines read them.
    "deepseek_v3": decoder(
        "DeepSeek-V3",
        "DeepseekV3",
        **DEEPSEEK,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
    ),
    "opt": decoder(
        "OPT",
        "OPT",
        OLDER,
        **TIED,
        ffn_dim=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=512,
        word_embed_proj_dim=128,
        do_layer_norm_before=True,
    ),
    "gpt2": decoder(
        "GPT-2", "GPT2", TOKENS, "LMHeadModel", **TIED, n_embd=128, n_layer=LAYERS, n_head=4, n_positions=512
    ),
    "gpt_neox": decoder("GPT-NeoX", "GPTNeoX", UNGROUPED, rotary_pct=0.5),
    "gptj": decoder(
        "GPT-J", "GPTJ", TOKENS, n_embd=128, n_layer=LAYERS, n_head=4, n_positions=512, rotary_dim=16, n_inner=256
    ),
    "bloom": decoder("Bloom", "Bloom", OLDER, **TIED, outputs=6.0, n_layer=LAYERS, n_head=4),
    "falcon": decoder(
        "Falcon",
        "Falcon",
        OLDER,
        **TIED,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_kv_heads=2,
        new_decoder_architecture=True,
        max_position_embeddings=512,
    ),
    "stablelm": decoder("StableLM", "StableLm"),
    "starcoder2": decoder("StarCoder2", "Starcoder2", **TIED, sliding_window=WINDOW),
    "nemotron": decoder("Nemotron", "Nemotron"),
    "llava": Family(
        "LLaVA",
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": {**COMMON, "model_type": "llama"},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "projection_dim": 64,
                "image_size": vision.SIDE,
                "patch_size": vision.PATCH,
            },
            "image_token_index": VOCABULARY - 1,
            "image_seq_length": (vision.SIDE // vision.PATCH) ** 2,
        },
        kind="vision",
        tokenizer=vision.processor,
        reference=vision.answers,
        defaults={"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS},
        loader="AutoProcessor",
        packages=("PIL",),
        published_names={"vision_tower.": "vision_tower.vision_model."},
    ),
    "bert": Family(
        "BERT",
        "BertModel",
        "BertConfig",
        {},
        kind="embedding",
        tokenizer=word_pieces,
        reference=vectors.embed,
        is_fair=vectors.differ,
        embedding=1.0,
        outputs=4.0,
        defaults=UNGROUPED,
    ),
    "bert_reranker": Family(
        "BERT as a reranker",
        "BertForSequenceClassification",
        "BertConfig",
        {"num_labels": 1},
        kind="score",
        tokenizer=word_pieces,
        reference=vectors.score,
        is_fair=vectors.are_apart,
        embedding=1.0,
        outputs=4.0,
        defaults=UNGROUPED,
    ),
}
