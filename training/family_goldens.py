"""Golden logits in float64 of further families, from Hugging Face transformers.

    python family_goldens.py ../testdata/models [NAME]

A row of `FAMILIES` is a `config.json` in the form of published files, including those
for remote code. If transformers has no such class, or the file wraps the text model,
`twin` is the config of an equivalent class, and `store` converts its weights to the
published names and layout.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

import goldens
from goldens import DTYPES, VOCAB, size, wide

Tensors = dict[str, torch.Tensor]


@dataclass
class Family:
    config: dict
    twin: dict | None = None
    store: Callable[[Tensors, dict], Tensors] = lambda stored, config: stored


def published(kind: str, architecture: str, dtype: str, **fields) -> dict:
    """What nearly every file of a causal model says."""
    return {"architectures": [architecture], "model_type": kind, "torch_dtype": dtype, "vocab_size": VOCAB,
            "max_position_embeddings": 256, "initializer_range": 0.02, "use_cache": True, "bos_token_id": 1,
            "eos_token_id": 2, **fields}


# ---- published names and layouts ----


def renamed(stored: Tensors, names: dict[str, str]) -> Tensors:
    """Every part of a name that is listed is replaced."""
    out = {}
    for name, values in stored.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        out[name] = values
    return out


def gpt_neox(stored: Tensors, config: dict) -> Tensors:
    return renamed(stored, {"lm_head": "embed_out"})


def pythia(stored: Tensors, config: dict) -> Tensors:
    """Pythia's files hold the causal mask and the frequencies, too."""
    stored = gpt_neox(stored, config)
    positions = config["max_position_embeddings"]
    rotated = int(config["rotary_pct"] * config["hidden_size"] // config["num_attention_heads"])
    for layer in range(config["num_hidden_layers"]):
        attention = f"gpt_neox.layers.{layer}.attention."
        stored[attention + "bias"] = torch.ones(1, 1, positions, positions, dtype=torch.bool).tril()
        stored[attention + "masked_bias"] = torch.tensor(-1e9, dtype=torch.float16)
        frequencies = config["rotary_emb_base"] ** (-torch.arange(0, rotated, 2) / rotated)
        stored[attention + "rotary_emb.inv_freq"] = frequencies.to(torch.float16)
    return stored


def falcon_with_head(stored: Tensors, config: dict) -> Tensors:
    """The head is the embedding, and is stored all the same."""
    return {**stored, "lm_head.weight": stored["transformer.word_embeddings.weight"].clone()}


def internlm2(stored: Tensors, config: dict) -> Tensors:
    """One matrix of Q, K and V: for each KV head its query heads, its key, its value."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["hidden_size"]
    dim = width // heads
    out = {}
    for name, values in stored.items():
        if "q_proj" in name:
            key, value = (stored[name.replace("q_proj", part)].view(kv, 1, dim, width) for part in ("k_proj", "v_proj"))
            together = torch.cat([values.view(kv, heads // kv, dim, width), key, value], dim=1)
            out[name.replace("q_proj", "wqkv")] = together.reshape(-1, width).contiguous()
        elif "k_proj" not in name and "v_proj" not in name:
            out[name] = values
    return renamed(out, {
        "embed_tokens": "tok_embeddings", "self_attn.wqkv": "attention.wqkv", "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "lm_head": "output"})


def exaone(stored: Tensors, config: dict) -> Tensors:
    return renamed(stored, {
        "model.embed_tokens": "transformer.wte", "model.layers": "transformer.h", "model.norm": "transformer.ln_f",
        "self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2", "gate_proj": "c_fc_0", "up_proj": "c_fc_1", "down_proj": "c_proj"})


def multimodal(stored: Tensors, config: dict) -> Tensors:
    """The text model beside a tower and a projector, which a text engine leaves alone."""
    vision = config["vision_config"]
    width, text = vision["hidden_size"], config["text_config"]["hidden_size"]
    noise = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=noise).to(next(iter(stored.values())).dtype)

    layer = "vision_tower.transformer.layers.0."
    return {**{f"language_model.{name}": values for name, values in stored.items()},
            "multi_modal_projector.norm.weight": random(width),
            "multi_modal_projector.linear_1.weight": random(text, width),
            "multi_modal_projector.linear_2.weight": random(text, text),
            "multi_modal_projector.patch_merger.merging_layer.weight": random(width, 4 * width),
            "vision_tower.patch_conv.weight": random(width, 3, vision["patch_size"], vision["patch_size"]),
            "vision_tower.ln_pre.weight": random(width), layer + "attention.q_proj.weight": random(width, width),
            layer + "attention_norm.weight": random(width), layer + "feed_forward.gate_proj.weight": random(16, width)}


# ---- configs ----

ROPE_MINISTRAL3 = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                   "mscale_all_dim": 1.0, "original_max_position_embeddings": 8, "rope_theta": 1000000.0,
                   "rope_type": "yarn", "type": "yarn"}
ROPE_LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
               "rope_type": "llama3"}
VISION = {"attention_dropout": 0.0, "head_dim": 4, "hidden_act": "gelu", "hidden_size": 8, "image_size": 28,
          "initializer_range": 0.02, "intermediate_size": 16, "model_type": "pixtral", "num_attention_heads": 2,
          "num_channels": 3, "num_hidden_layers": 1, "patch_size": 4, "rope_theta": 10000.0}


def stablelm(dtype: str, **fields) -> dict:
    return published("stablelm", "StableLmForCausalLM", dtype, hidden_act="silu", layer_norm_eps=1e-5, rope_theta=10000,
                     partial_rotary_factor=0.25, tie_word_embeddings=False, **fields)


def cohere(kind: str, dtype: str, **fields) -> dict:
    return published(kind, kind.capitalize() + "ForCausalLM", dtype, attention_bias=False, attention_dropout=0.0,
                     hidden_act="silu", layer_norm_eps=1e-5, pad_token_id=0, **fields)


def neox(dtype: str, **fields) -> dict:
    return published("gpt_neox", "GPTNeoXForCausalLM", dtype, layer_norm_eps=1e-5, tie_word_embeddings=False, **fields)


def falcon(dtype: str, **fields) -> dict:
    """Without `max_position_embeddings`, as the files."""
    config = published("falcon", "FalconForCausalLM", dtype, alibi=False, attention_dropout=0.0, bias=False,
                       hidden_dropout=0.0, layer_norm_epsilon=1e-5, parallel_attn=True, **fields)
    return {name: value for name, value in config.items() if name != "max_position_embeddings"}


def glm(kind: str, architecture: str, dtype: str, **fields) -> dict:
    return published(kind, architecture, dtype, attention_dropout=0.0, hidden_act="silu", partial_rotary_factor=0.5,
                     pad_token_id=0, tie_word_embeddings=False, **fields)


def without(config: dict, *names: str) -> dict:
    return {name: value for name, value in config.items() if name not in names}


def wrapper(dtype: str, text: dict, **fields) -> dict:
    return {"architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
            "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
            "text_config": without(text, "architectures", "torch_dtype", "bos_token_id", "eos_token_id"),
            "torch_dtype": dtype, "vision_config": VISION, "vision_feature_layer": -1, **fields}


def llama_twin(config: dict, **fields) -> dict:
    """The LLaMA that computes the same."""
    shared = ("torch_dtype", "vocab_size", "max_position_embeddings", "hidden_size", "num_attention_heads", "head_dim",
              "num_key_value_heads", "intermediate_size", "rope_theta", "tie_word_embeddings")
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            **{name: config[name] for name in shared if name in config}, **fields}


GRANITE = dict(hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, attention_dropout=0.1,
               pad_token_id=0, attention_multiplier=0.4, embedding_multiplier=3.0, logits_scaling=2.5,
               residual_multiplier=0.7)
INTERNLM2 = published(
    "internlm2", "InternLM2ForCausalLM", "bfloat16", **wide(64, 2, 8, 2, 56), attn_implementation="eager", bias=False,
    auto_map={"AutoConfig": "configuration_internlm2.InternLM2Config",
              "AutoModel": "modeling_internlm2.InternLM2ForCausalLM",
              "AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
    hidden_act="silu", pad_token_id=2, rms_norm_eps=1e-5, rope_scaling={"type": "dynamic", "factor": 2.0},
    rope_theta=1000000, tie_word_embeddings=False)
MISTRAL_TEXT = published(
    "mistral", "MistralForCausalLM", "bfloat16", **size(48, 2, 4, 2, 32, 72), attention_dropout=0.0, hidden_act="silu",
    rms_norm_eps=1e-5, rope_theta=1000000000.0, sliding_window=None)
MINISTRAL3 = published(
    "ministral3", "Ministral3ForCausalLM", "bfloat16", **size(48, 2, 4, 2, 32, 72), attention_dropout=0.0,
    hidden_act="silu", rms_norm_eps=1e-5, rope_parameters=ROPE_MINISTRAL3, sliding_window=None,
    tie_word_embeddings=False) | {"max_position_embeddings": 32}
MINISTRAL3_TIED = {**MINISTRAL3, "tie_word_embeddings": True}
EXAONE = without(published(
    "exaone", "ExaoneForCausalLM", "bfloat16", **size(64, 2, 4, 2, 16, 72), activation_function="silu",
    attention_dropout=0.0, embed_dropout=0.0, layer_norm_epsilon=1e-5, num_layers=2, pad_token_id=0,
    auto_map={"AutoConfig": "configuration_exaone.ExaoneConfig",
              "AutoModelForCausalLM": "modeling_exaone.ExaoneForCausalLM"},
    rope_scaling=ROPE_LLAMA3, rope_theta=1000000, tie_word_embeddings=True), "num_hidden_layers")

FAMILIES = {
    "smollm3-nope": Family(published(  # tied by default
        "smollm3", "SmolLM3ForCausalLM", "bfloat16", **wide(32, 5, 2, 1, 40), attention_bias=False,
        attention_dropout=0.0, hidden_act="silu", layer_types=["full_attention"] * 5, max_window_layers=28,
        mlp_bias=False, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0, 1], pad_token_id=0, pretraining_tp=2,
        rms_norm_eps=1e-6, rope_scaling=None, rope_theta=5000000.0, sliding_window=None, use_sliding_window=False)),
    "olmo2": Family(published(
        "olmo2", "Olmo2ForCausalLM", "bfloat16", **wide(64, 2, 4, 2, 48), attention_bias=False, attention_dropout=0.0,
        hidden_act="silu", pad_token_id=0, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=500000,
        tie_word_embeddings=False)),
    "granite-multipliers": Family(published(
        "granite", "GraniteForCausalLM", "bfloat16", **wide(64, 2, 4, 2, 56), attention_bias=False, mlp_bias=False,
        tie_word_embeddings=True, **GRANITE)),
    "granite-biases": Family(published(
        "granite", "GraniteForCausalLM", "float16", **wide(64, 1, 4, 2, 56), attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False, **GRANITE)),
    "stablelm-qkv-bias": Family(stablelm("float16", **wide(64, 2, 2, 2, 56), use_qkv_bias=True)),
    "stablelm-gqa": Family(stablelm("bfloat16", **wide(64, 2, 4, 2, 56), use_qkv_bias=False)),
    "stablelm-parallel-qk-norm": Family(stablelm(
        "bfloat16", **wide(64, 2, 4, 2, 56), use_qkv_bias=False, qk_layernorm=True, use_parallel_residual=True)),
    "starcoder2-window": Family(published(  # tied by default
        "starcoder2", "Starcoder2ForCausalLM", "bfloat16", **wide(64, 2, 4, 2, 112), attention_dropout=0.1,
        residual_dropout=0.1, embedding_dropout=0.1, hidden_act="gelu_pytorch_tanh", mlp_type="default",
        norm_epsilon=1e-5, norm_type="layer_norm", rope_theta=999999.4420358813, sliding_window=8, use_bias=True)),
    "cohere": Family(cohere(
        "cohere", "float16", **wide(64, 2, 4, 4, 56), logit_scale=0.625, model_max_length=1024, rope_theta=8000000.0)),
    "cohere-qk-norm": Family(cohere(
        "cohere", "bfloat16", **wide(64, 2, 4, 2, 56), logit_scale=0.8333, model_max_length=1024, rope_theta=75000000.0,
        use_qk_norm=True)),
    "cohere2-window": Family(cohere(
        "cohere2", "bfloat16", **wide(32, 4, 2, 1, 40), cache_implementation="hybrid", head_dim=16, layer_switch=4,
        logit_scale=0.75, order_of_interleaved_layers="local_attn_first", position_embedding_type="rope_gptj",
        rope_scaling=None, rope_theta=50000, rotary_pct=1.0, sliding_window=6, sliding_window_pattern=4,
        use_embedding_sharing=True, use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=False,
        use_qk_norm=False)),
    "gpt-neox-pythia": Family(neox(
        "float16", **without(wide(64, 1, 2, 2, 256), "num_key_value_heads"), hidden_act="gelu", rotary_emb_base=10000,
        rotary_pct=0.25, use_parallel_residual=True) | {"max_position_embeddings": 64}, store=pythia),
    "gpt-neox-gelu-fast": Family(neox(
        "bfloat16", **without(wide(64, 1, 4, 4, 256), "num_key_value_heads"), attention_dropout_prob=0,
        hidden_dropout_prob=0, hidden_act="gelu_fast", rotary_emb_base=10000, rotary_pct=0.25), store=gpt_neox),
    "gpt-neox-sequential": Family(neox(
        "float16", **without(wide(64, 1, 2, 2, 256), "num_key_value_heads"), hidden_act="gelu", rotary_emb_base=10000,
        rotary_pct=1.0, use_parallel_residual=False), store=gpt_neox),
    "phi2": Family(published(  # the head's bias, 12 of 32 dimensions rotated
        "phi", "PhiForCausalLM", "float16", **wide(64, 1, 2, 2, 256), attention_dropout=0.0, embd_pdrop=0.0,
        hidden_act="gelu_new", layer_norm_eps=1e-5, partial_rotary_factor=0.4, qk_layernorm=False, resid_pdrop=0.1,
        rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False)),
    "falcon-7b": Family(falcon(
        "bfloat16", **without(wide(64, 1, 4, 1, 0), "num_key_value_heads", "intermediate_size"),
        apply_residual_connection_post_layernorm=False, multi_query=True, new_decoder_architecture=False)),
    "falcon-40b": Family(falcon(
        "bfloat16", **without(wide(64, 1, 8, 2, 0), "num_key_value_heads", "intermediate_size"), num_kv_heads=2,
        new_decoder_architecture=True), store=falcon_with_head),
    "falcon-11b": Family(falcon(
        "bfloat16", **without(wide(64, 2, 4, 2, 0), "num_key_value_heads", "intermediate_size"), num_kv_heads=2,
        activation="gelu", ff_factor=2, ffn_hidden_size=128, new_decoder_architecture=True, multi_query=True,
        num_ln_in_parallel_attn=1, rope_scaling=None, rope_theta=500042.0, tie_word_embeddings=False)),
    "internlm2": Family(INTERNLM2, store=internlm2, twin=llama_twin(INTERNLM2, rms_norm_eps=1e-5, num_hidden_layers=2)),
    "glm4": Family(glm(
        "glm4", "Glm4ForCausalLM", "bfloat16", **size(48, 2, 4, 2, 32, 56), attention_bias=True, rms_norm_eps=1e-5,
        rope_theta=10000.0)),
    "glm": Family(glm(
        "glm", "GlmForCausalLM", "bfloat16", **size(64, 2, 4, 2, 16, 56), attention_bias=True, rms_norm_eps=1.5625e-7,
        rope_theta=10000.0)),
    "mistral3-wrapper": Family(
        wrapper("bfloat16", MISTRAL_TEXT, tie_word_embeddings=False),
        twin={**MISTRAL_TEXT, "tie_word_embeddings": False}, store=multimodal),
    "mistral3-wrapper-ministral3": Family(wrapper("bfloat16", MINISTRAL3_TIED), twin=MINISTRAL3_TIED, store=multimodal),
    "ministral-layer-types": Family(published(
        "ministral", "MinistralForCausalLM", "bfloat16", **size(48, 2, 4, 2, 32, 72), attention_dropout=0.0,
        hidden_act="silu", layer_types=["sliding_attention", "full_attention"], rms_norm_eps=1e-5,
        rope_theta=100000000.0, sliding_window=8, tie_word_embeddings=False)),
    "ministral3": Family(MINISTRAL3),
    "exaone": Family(EXAONE, store=exaone, twin=llama_twin(
        EXAONE, rms_norm_eps=1e-5, num_hidden_layers=2, rope_scaling=ROPE_LLAMA3)),
}


def make(name: str, family: Family, seed: int, out: Path) -> None:
    twin = family.twin or family.config
    made = goldens.build(twin)
    print(name, made.config.rope_parameters)
    stored = goldens.randomize(made, twin, seed)
    assert all(values.dtype == DTYPES[twin["torch_dtype"]] for values in stored.values())
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    stored = {key: values.contiguous() for key, values in family.store(stored, family.config).items()}
    save_file(stored, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")
    goldens.write_json(folder / "golden.json", goldens.golden(made, seed, by="family_goldens.py"))


if __name__ == "__main__":
    goldens.command(__doc__, FAMILIES, 100, make)
