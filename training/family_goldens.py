"""Golden logits in float64 of further families, from Hugging Face transformers.

    python family_goldens.py ../testdata/models [NAME]

A row of `FAMILIES` is a `config.json` in the form of published files, including those
for remote code. If transformers has no such class, or the file wraps the text model,
`twin` is the config of an equivalent class, and `store` converts its weights to the
published names and layout.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import goldens
from goldens import DTYPES, VOCAB, size, wide

Tensors = dict[str, torch.Tensor]


@dataclass
class Family:
    config: dict
    twin: dict | None = None
    store: Callable[[Tensors, dict], Tensors] = lambda stored, config: stored
    # Of the random weights and texts; without one, 100 and the family's place. Where experts are chosen, one without near
    # ties: with a cache in half precision, other experts would be chosen.
    seed: int | None = None
    # Rounds the random weights to what the published layout holds, where that is not the dtype. Such folders are
    # written to `quantised` beside the others.
    rounded: Callable[[str, torch.Tensor], torch.Tensor] | None = None
    # Further files of the folder, by name, from the stored tensors.
    files: Callable[[Tensors], dict[str, dict]] = lambda stored: {}
    # Of the texts.
    lengths: list[int] = field(default_factory=lambda: goldens.LENGTHS)


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


def llama4(stored: Tensors, config: dict) -> Tensors:
    """The text model beside a vision model, whose layers have the same names."""
    dtype = DTYPES[config["torch_dtype"]]
    layer = "vision_model.model.layers.0."
    return {**{f"language_model.{name}": values for name, values in stored.items()},
            "multi_modal_projector.linear_1.weight": torch.ones(config["text_config"]["hidden_size"], 8, dtype=dtype),
            "vision_model.class_embedding": torch.ones(8, dtype=dtype),
            layer + "self_attn.q_proj.weight": torch.ones(8, 8, dtype=dtype),
            layer + "input_layernorm.weight": torch.ones(8, dtype=dtype)}


def experts_apart(gate: str, up: str, down: str) -> Callable[[Tensors, dict], Tensors]:
    """A matrix of each expert, as all published files have them; transformers 5 stacks them, and gate and up."""

    def store(stored: Tensors, config: dict) -> Tensors:
        out = {}
        for name, values in stored.items():
            before, _, part = name.partition(".experts.")
            for expert, matrix in enumerate(values if part else []):
                of = f"{before}.experts.{expert}."
                if part == "gate_up_proj":
                    out[f"{of}{gate}.weight"], out[f"{of}{up}.weight"] = matrix.chunk(2)
                else:
                    out[f"{of}{down}.weight"] = matrix
            if not part:
                out[name] = values
        return out

    return store


def glm_moe(stored: Tensors, config: dict) -> Tensors:
    """With a layer that predicts a further token."""
    out = experts_apart("gate_proj", "up_proj", "down_proj")(stored, config)
    layers = config["num_hidden_layers"]
    last, further = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    copied = {name.replace(last, further): values.clone() for name, values in out.items() if name.startswith(last)}
    width, dtype = config["hidden_size"], DTYPES[config["torch_dtype"]]
    return {**out, **copied, further + "eh_proj.weight": torch.ones(width, 2 * width, dtype=dtype),
            further + "shared_head.norm.weight": torch.ones(width, dtype=dtype)}


def mixtral(stored: Tensors, config: dict) -> Tensors:
    return renamed(experts_apart("w1", "w3", "w2")(stored, config), {".mlp.": ".block_sparse_moe."})


def is_experts(name: str) -> bool:
    return ".experts." in name and not name.endswith("bias")


def to_mxfp4(values: torch.Tensor) -> np.ndarray:
    """GGUF's blocks of the matrices of experts, which transformers has with inputs first: `[expert, output, bytes]`."""
    return gguf.quants.quantize(values.transpose(1, 2).float().contiguous().numpy(), gguf.GGMLQuantizationType.MXFP4)


def mxfp4_values(name: str, values: torch.Tensor) -> torch.Tensor:
    if not is_experts(name):
        return values
    blocks = gguf.quants.dequantize(to_mxfp4(values), gguf.GGMLQuantizationType.MXFP4)
    return torch.from_numpy(blocks).to(values.dtype).transpose(1, 2).contiguous()


def mxfp4(stored: Tensors, config: dict) -> Tensors:
    """Codes of two neighbouring inputs in a byte, and exponents in a tensor of their own."""
    out = {}
    for name, values in stored.items():
        if not is_experts(name):
            out[name] = values
            continue
        blocks = to_mxfp4(values)
        blocks = torch.from_numpy(blocks).view(*blocks.shape[:2], -1, 17)
        codes = torch.cat([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], dim=-1)
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        out[f"{name}_blocks"], out[f"{name}_scales"] = packed, blocks[..., 0]
        assert torch.equal(convert_moe_packed_tensors(packed, blocks[..., 0].contiguous()), values), name
    return out


def mxfp4_blocks(stored: Tensors) -> dict[str, dict]:
    """Some rows of the first layer's experts as the gguf package makes them, under GGUF's names."""
    rows = {}
    for name, values in stored.items():
        if is_experts(name) and ".layers.0." in name:
            blocks = to_mxfp4(values)
            parts = {"gate": blocks[:, ::2], "up": blocks[:, 1::2]} if "gate_up" in name else {"down": blocks}
            for part, blocks in parts.items():
                experts, outputs = blocks.shape[:2]
                rows[f"blk.0.ffn_{part}_exps.weight"] = {
                    str(expert * outputs + output): blocks[expert, output].tobytes().hex()
                    for expert in range(experts) for output in (0, 1, outputs - 1)}
    return {"blocks.json": {"made_by": "training/family_goldens.py, gguf " + version("gguf"), "rows": rows}}
def phimoe(stored: Tensors, config: dict) -> Tensors:
    return renamed(mixtral(stored, config), {".router.": ".gate."})


def ernie_moe(stored: Tensors, config: dict) -> Tensors:
    out = experts_apart("gate_proj", "up_proj", "down_proj")(stored, config)
    return renamed(out, {".gate.moe_statics.": ".moe_statics."}) | {
        "model.mtp_linear_proj.0.weight": torch.ones(1, 1, dtype=DTYPES[config["torch_dtype"]])}


def granite_moe(stored: Tensors, config: dict) -> Tensors:
    return renamed(stored, {".experts.gate_up_proj": ".input_linear.weight", ".router.": ".router.layer.",
                            ".experts.down_proj": ".output_linear.weight"})


# ---- configs ----

ROPE_MINISTRAL3 = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                   "mscale_all_dim": 1.0, "original_max_position_embeddings": 8, "rope_theta": 1000000.0,
                   "rope_type": "yarn", "type": "yarn"}
ROPE_LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
               "rope_type": "llama3"}
VISION = {"attention_dropout": 0.0, "head_dim": 4, "hidden_act": "gelu", "hidden_size": 8, "image_size": 28,
          "initializer_range": 0.02, "intermediate_size": 16, "model_type": "pixtral", "num_attention_heads": 2,
          "num_channels": 3, "num_hidden_layers": 1, "patch_size": 4, "rope_theta": 10000.0}


def mamba_layers(config: dict) -> dict:
    """The names that transformers gives the types of layers."""
    names = {"attention": "full_attention", "mamba": "linear_attention"}
    return {**config, "layer_types": [names[kind] for kind in config["layer_types"]]}


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


def gpt_oss(seed: int, dtype: str, ffn: int, store=lambda stored, config: stored, **fields) -> Family:
    """Wide enough for its feed-forward size that some gates and ups are beyond the limit of 7."""
    config = published(
        "gpt_oss", "GptOssForCausalLM", dtype, **size(128, 2, 4, 2, 32, ffn), attention_bias=True,
        attention_dropout=0.0, experts_per_token=2, hidden_act="silu", initial_context_length=1024, num_local_experts=4,
        num_experts_per_tok=2, output_router_logits=False, pad_token_id=0, rms_norm_eps=1e-5,
        rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 1024,
                      "rope_type": "yarn", "truncate": False},
        rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=8, swiglu_limit=7.0, tie_word_embeddings=False,
        **fields) | {"max_position_embeddings": 8192}
    return Family(config, twin=without(config, "quantization_config"), store=store, seed=seed)


def yarn(factor: int, scale: float) -> dict:
    return {"beta_fast": 32, "beta_slow": 1, "factor": factor, "mscale": scale, "mscale_all_dim": scale,
            "original_max_position_embeddings": 8, "type": "yarn"}


def deepseek(kind: str, architecture: str, dtype: str, sizes: dict, latent: tuple, rank: int | None, **fields) -> dict:
    """`latent`: values of the latent vector, and of a head without RoPE, with it, and of its values. The first layer is
    dense."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return published(kind, architecture, dtype, **sizes, **dict(zip(names, latent)), attention_bias=False,
                     attention_dropout=0.0, first_k_dense_replace=1, hidden_act="silu", moe_intermediate_size=24,
                     moe_layer_freq=1, n_shared_experts=2, pretraining_tp=1, q_lora_rank=rank, rms_norm_eps=1e-6,
                     rope_theta=10000, tie_word_embeddings=False, **fields)


def deepseek_v2(seed: int, *of, **fields) -> Family:
    config = deepseek("deepseek_v2", "DeepseekV2ForCausalLM", *of, norm_topk_prob=False, scoring_func="softmax", **fields)
    return Family(config, store=experts_apart("gate_proj", "up_proj", "down_proj"), seed=seed)


def deepseek_v3(seed: int, kind: str, *of, **fields) -> Family:
    """Kimi K2 is one, too."""
    config = deepseek(kind, "DeepseekV3ForCausalLM", *of, norm_topk_prob=True, scoring_func="sigmoid",
                      topk_method="noaux_tc", **fields)
    store = glm_moe if fields["num_nextn_predict_layers"] else experts_apart("gate_proj", "up_proj", "down_proj")
    return Family(config, twin={**config, "model_type": "deepseek_v3"}, store=store, seed=seed)


def glm4_moe_lite(seed: int, *of, **fields) -> Family:
    config = deepseek("glm4_moe_lite", "Glm4MoeLiteForCausalLM", *of, norm_topk_prob=True, scoring_func="sigmoid",
                      topk_method="noaux_tc", **fields) | {"n_shared_experts": 1, "rms_norm_eps": 1e-5}
    return Family(config, store=glm_moe, seed=seed)


def llama_twin(config: dict, **fields) -> dict:
    """The LLaMA that computes the same."""
    shared = ("torch_dtype", "vocab_size", "max_position_embeddings", "hidden_size", "num_attention_heads", "head_dim",
              "num_key_value_heads", "intermediate_size", "rope_theta", "tie_word_embeddings")
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            **{name: config[name] for name in shared if name in config}, **fields}


GRANITE = dict(hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, attention_dropout=0.1,
               pad_token_id=0, attention_multiplier=0.4, embedding_multiplier=3.0, logits_scaling=2.5,
               residual_multiplier=0.7)
GRANITE4_DENSE = published(  # the sizes of Mamba layers are stated all the same
    "granitemoehybrid", "GraniteMoeHybridForCausalLM", "bfloat16", **wide(64, 2, 4, 2, 56), attention_bias=False,
    init_method="mup", layer_types=["attention"] * 2, mamba_chunk_size=256, mamba_conv_bias=True, mamba_d_conv=4,
    mamba_d_head=4, mamba_d_state=8, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=32, mamba_proj_bias=False,
    normalization_function="rmsnorm", num_experts_per_tok=0, num_local_experts=0, output_router_logits=False,
    position_embedding_type="rope", router_aux_loss_coef=0.01, shared_intermediate_size=72, tie_word_embeddings=True,
    **GRANITE)
GRANITE4_H_DENSE = {
    **GRANITE4_DENSE, "layer_types": ["mamba", "attention", "mamba"], "num_hidden_layers": 3, "mamba_d_head": 16,
    "mamba_d_state": 10, "mamba_n_groups": 2, "mamba_n_heads": 8, "position_embedding_type": "nope"}
GRANITE4_MOE = {**GRANITE4_DENSE, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 20,
                "position_embedding_type": None, "torch_dtype": "float16", "tie_word_embeddings": False}
GRANITE4_H_MOE = {
    **GRANITE4_MOE, "hidden_size": 72, "layer_types": ["mamba", "mamba", "attention", "mamba"], "mamba_d_conv": 3,
    "mamba_d_head": 24, "mamba_d_state": 7, "mamba_n_heads": 6, "num_hidden_layers": 4, "position_embedding_type": "nope"}
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

MINIMAX_M2 = published(
    "minimax_m2", "MiniMaxM2ForCausalLM", "bfloat16", **size(48, 2, 4, 2, 20, 24), attn_type_list=[1, 1],
    attention_dropout=0.0, hidden_act="silu", mtp_transformer_layers=1, num_experts_per_tok=3, num_local_experts=7,
    num_mtp_modules=3, output_router_logits=False, qk_norm_type="per_layer", rms_norm_eps=1e-6, rope_theta=5000000,
    rotary_dim=10, router_aux_loss_coef=0.001, router_jitter_noise=0.0, scoring_func="sigmoid", shared_intermediate_size=0,
    sliding_window=None, tie_word_embeddings=False, use_mtp=True, use_qk_norm=True, use_routing_bias=True)
PHIMOE = published(  # within the original context: transformers applies the short factors to all
    "phimoe", "PhimoeForCausalLM", "bfloat16", **wide(48, 2, 4, 2, 20), attention_bias=True, attention_dropout=0.0,
    hidden_act="silu", hidden_dropout=0.0, input_jitter_noise=0.01, lm_head_bias=True, num_experts_per_tok=2,
    num_local_experts=6, original_max_position_embeddings=256, output_router_logits=False, rms_norm_eps=1e-5,
    rope_scaling={"long_factor": [1.5 + i for i in range(6)], "long_mscale": 1.2431, "short_mscale": 1.2431,
                  "original_max_position_embeddings": 256, "short_factor": [1 + i / 16 for i in range(6)],
                  "type": "longrope"},
    rope_theta=10000.0, router_aux_loss_coef=0.0, router_jitter_noise=0.2, sliding_window=256,
    tie_word_embeddings=False)
HUNYUAN_MOE = published(  # some numbers are in lists, one for each layer
    "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", "bfloat16", **size(48, 2, 4, 2, 20, 28), attention_bias=False,
    attention_dropout=0.0, cla_share_factor=2, hidden_act="silu", mlp_bias=False, moe_intermediate_size=[28, 28],
    moe_topk=[3, 3], num_experts=7, num_shared_expert=[1, 1], pad_token_id=0, rms_norm_eps=1e-5, rope_theta=10000.0,
    rope_scaling={"alpha": 50.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                  "type": "dynamic"},
    tie_word_embeddings=True, use_cla=False, use_mixed_mlp_moe=True, use_qk_norm=True)


def llama4_text(dtype: str, **fields) -> dict:
    """Layers 1, 3, … are mixtures. Queries grow after few positions, and texts have several chunks."""
    return published("llama4_text", "Llama4ForCausalLM", dtype, attention_bias=False, attention_dropout=0.0,
                     attn_scale=0.4, hidden_act="silu", interleave_moe_layer_step=2, num_experts_per_tok=1,
                     output_router_logits=False, pad_token_id=0, rms_norm_eps=1e-5, rope_theta=500000.0,
                     router_aux_loss_coef=0.001, router_jitter_noise=0.0, **fields)


# Rows of its matrices are whole blocks of quantised types.
LLAMA4_TEXT = llama4_text(
    "float16", **size(64, 4, 3, 1, 32, 32), attention_chunk_size=8, floor_scale=4, intermediate_size_mlp=96,
    no_rope_layers=[1, 1, 1, 0], num_local_experts=4, tie_word_embeddings=False, use_qk_norm=True,
    rope_scaling={"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                  "original_max_position_embeddings": 32, "rope_type": "llama3"})
LLAMA4 = {"architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 10, "eoi_token_index": 11,
          "image_token_index": 12, "model_type": "llama4",
          "text_config": without(LLAMA4_TEXT, "architectures", "torch_dtype"), "tie_word_embeddings": False,
          "torch_dtype": "float16", "vision_config": {"hidden_size": 8, "model_type": "llama4_vision_model"}}
EXPERTS = experts_apart("gate_proj", "up_proj", "down_proj")
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
    "mixtral": Family(published(
        "mixtral", "MixtralForCausalLM", "bfloat16", **size(48, 2, 4, 2, 16, 40), attention_dropout=0.0,
        hidden_act="silu", num_local_experts=5, num_experts_per_tok=2, output_router_logits=False, rms_norm_eps=1e-5,
        rope_theta=1000000.0, router_aux_loss_coef=0.02, sliding_window=None, tie_word_embeddings=False),
        store=mixtral),
    "qwen2-moe-shared": Family(published(  # the first layer is dense
        "qwen2_moe", "Qwen2MoeForCausalLM", "bfloat16", **wide(48, 3, 3, 3, 72), attention_dropout=0.0,
        decoder_sparse_step=1, hidden_act="silu", max_window_layers=3, mlp_only_layers=[0], moe_intermediate_size=24,
        norm_topk_prob=False, num_experts=6, num_experts_per_tok=3, output_router_logits=False, rms_norm_eps=1e-6,
        rope_theta=1000000.0, router_aux_loss_coef=0.001, shared_expert_intermediate_size=56, sliding_window=8,
        tie_word_embeddings=False, use_sliding_window=False), store=EXPERTS),
    "qwen3-moe": Family(published(
        "qwen3_moe", "Qwen3MoeForCausalLM", "bfloat16", **size(48, 2, 4, 2, 32, 72), attention_bias=False,
        attention_dropout=0.0, decoder_sparse_step=1, hidden_act="silu", max_window_layers=2, mlp_only_layers=[],
        moe_intermediate_size=40, norm_topk_prob=True, num_experts=7, num_experts_per_tok=3, output_router_logits=False,
        rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000.0, router_aux_loss_coef=0.001, sliding_window=None,
        tie_word_embeddings=False, use_sliding_window=False), store=EXPERTS),
    "qwen3-moe-every-expert": Family(published(
        "qwen3_moe", "Qwen3MoeForCausalLM", "float16", **size(48, 1, 4, 2, 16, 72), attention_bias=False,
        attention_dropout=0.0, decoder_sparse_step=1, hidden_act="silu", max_window_layers=2, mlp_only_layers=[],
        moe_intermediate_size=24, norm_topk_prob=False, num_experts=3, num_experts_per_tok=3,
        output_router_logits=False, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000.0,
        router_aux_loss_coef=0.001, sliding_window=None, tie_word_embeddings=True, use_sliding_window=False),
        store=EXPERTS),
    "olmoe": Family(published(
        "olmoe", "OlmoeForCausalLM", "bfloat16", **wide(64, 2, 4, 4, 24), attention_bias=False, attention_dropout=0.0,
        clip_qkv=None, hidden_act="silu", norm_topk_prob=False, num_experts=9, num_experts_per_tok=1,
        output_router_logits=False, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000.0,
        router_aux_loss_coef=0.01, tie_word_embeddings=False), store=EXPERTS),
    # Rows of its matrices are whole blocks of quantised types.
    "qwen3-moe-hd64": Family(published(
        "qwen3_moe", "Qwen3MoeForCausalLM", "float16", **size(64, 2, 3, 1, 64, 96), attention_bias=False,
        attention_dropout=0.0, decoder_sparse_step=1, hidden_act="silu", max_window_layers=2, mlp_only_layers=[],
        moe_intermediate_size=32, norm_topk_prob=True, num_experts=5, num_experts_per_tok=2, output_router_logits=False,
        rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000.0, router_aux_loss_coef=0.001, sliding_window=None,
        tie_word_embeddings=False, use_sliding_window=False), store=EXPERTS, seed=501),
    # The first layer has a window.
    "gpt-oss": gpt_oss(401, "bfloat16", 24),
    "gpt-oss-layer-types": gpt_oss(402, "float16", 24, layer_types=["full_attention", "sliding_attention"]),
    "gpt-oss-mxfp4": replace(gpt_oss(
        403, "bfloat16", 32, store=mxfp4,
        quantization_config={"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                        "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}),
        rounded=mxfp4_values, files=mxfp4_blocks),
    "glm4-moe": Family(published(  # the first layer is dense; GLM 4.5 Air has no norms of queries and keys
        "glm4_moe", "Glm4MoeForCausalLM", "bfloat16", **size(48, 3, 3, 1, 20, 72), attention_bias=True,
        attention_dropout=0.0, first_k_dense_replace=1, hidden_act="silu", moe_intermediate_size=24, n_group=1,
        n_routed_experts=7, n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=3, num_nextn_predict_layers=1,
        partial_rotary_factor=0.5, pad_token_id=0, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=1000000,
        routed_scaling_factor=2.5, tie_word_embeddings=False, topk_group=1, use_qk_norm=False), store=glm_moe, seed=301),
    "glm4-moe-groups": Family(published(
        "glm4_moe", "Glm4MoeForCausalLM", "float16", **size(40, 2, 4, 2, 16, 56), attention_bias=True,
        attention_dropout=0.0, first_k_dense_replace=0, hidden_act="silu", moe_intermediate_size=20, n_group=3,
        n_routed_experts=9, n_shared_experts=2, norm_topk_prob=False, num_experts_per_tok=4, num_nextn_predict_layers=0,
        partial_rotary_factor=0.5, pad_token_id=0, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=1000000,
        routed_scaling_factor=1.0, tie_word_embeddings=False, topk_group=2, use_qk_norm=True), store=EXPERTS, seed=322),
    "minimax-m2": Family(MINIMAX_M2, twin={**without(MINIMAX_M2, "rotary_dim"), "partial_rotary_factor": 0.5},
                         store=mixtral, seed=303),
    "ernie4-5-moe": Family(published(  # the first layer is dense; the experts that all tokens share are one matrix
        "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", "bfloat16", **wide(48, 3, 4, 2, 72), hidden_act="silu",
        moe_capacity=[64, 64, 64], moe_gate="topk", moe_intermediate_size=20, moe_k=3, moe_layer_end_index=2,
        moe_layer_interval=1, moe_layer_start_index=1, moe_num_experts=7, moe_num_shared_experts=2, moe_use_aux_free=True,
        num_nextn_predict_layers=0, pad_token_id=0, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=500000.0,
        tie_word_embeddings=True, use_bias=False), store=ernie_moe, seed=312),
    "granite-moe": Family(published(
        "granitemoe", "GraniteMoeForCausalLM", "bfloat16", **wide(48, 2, 4, 2, 20), attention_bias=False,
        num_local_experts=5, num_experts_per_tok=2, output_router_logits=False, router_aux_loss_coef=0.001,
        tie_word_embeddings=True, **GRANITE), store=granite_moe, seed=305),
    "granite-moe-shared": Family(published(
        "granitemoeshared", "GraniteMoeSharedForCausalLM", "float16", **wide(48, 2, 4, 2, 20), attention_bias=False,
        num_local_experts=6, num_experts_per_tok=3, output_router_logits=False, router_aux_loss_coef=0.001,
        shared_intermediate_size=36, tie_word_embeddings=False, **GRANITE), store=granite_moe, seed=306),
    "phimoe": Family(PHIMOE, store=phimoe, seed=307),
    "hunyuan-moe": Family(HUNYUAN_MOE, twin={**without(HUNYUAN_MOE, "moe_intermediate_size"), "moe_topk": 3},
                          store=EXPERTS, seed=318),
    "deepseek-v2-lite": deepseek_v2(601, "bfloat16", wide(48, 2, 3, 3, 72), (20, 12, 8, 10), None, n_group=1,
                                    n_routed_experts=7, num_experts_per_tok=3, routed_scaling_factor=1.0, topk_group=1,
                                    topk_method="greedy", rope_scaling=yarn(4, 0.707)),
    "deepseek-v2": deepseek_v2(602, "float16", wide(40, 2, 4, 4, 56), (28, 10, 6, 14), 18, n_group=3,
                               n_routed_experts=9, num_experts_per_tok=3, routed_scaling_factor=16.0, topk_group=2,
                               topk_method="group_limited_greedy", rope_scaling=None),
    "deepseek-v3": deepseek_v3(623, "deepseek_v3", "bfloat16", wide(48, 3, 3, 3, 72), (24, 14, 6, 10), 20, n_group=4,
                               n_routed_experts=12, num_experts_per_tok=4, num_nextn_predict_layers=1, topk_group=2,
                               routed_scaling_factor=2.5, rope_scaling=yarn(8, 1.0)),
    "kimi-k2": deepseek_v3(604, "kimi_k2", "bfloat16", wide(40, 2, 5, 5, 64), (18, 8, 4, 12), 22, n_group=1,
                           n_routed_experts=9, num_experts_per_tok=3, num_nextn_predict_layers=0, topk_group=1,
                           routed_scaling_factor=2.827, rope_scaling=yarn(32, 1.0)),
    "glm4-moe-lite": glm4_moe_lite(627, "bfloat16", wide(48, 3, 3, 3, 80), (20, 18, 6, 22), 26, n_group=1,
                                   n_routed_experts=8, num_experts_per_tok=3, num_nextn_predict_layers=1, topk_group=1,
                                   routed_scaling_factor=1.8, rope_scaling=None),
    # Rows of its matrices are whole blocks of quantised types.
    "deepseek-v3-hd32": deepseek_v3(613, "deepseek_v3", "float16", wide(64, 2, 3, 3, 96), (64, 32, 32, 32), 32,
                                    n_group=2, n_routed_experts=6, num_experts_per_tok=2, num_nextn_predict_layers=0,
                                    topk_group=1, routed_scaling_factor=2.5, rope_scaling=None),
    "llama4-hd32": Family(LLAMA4, twin=LLAMA4_TEXT, store=llama4, seed=701),
    # As Maverick: without norms of queries and keys.
    "llama4-maverick": Family(llama4_text(
        "bfloat16", **size(40, 4, 3, 3, 20, 12), attention_chunk_size=6, attn_temperature_tuning=True, floor_scale=3,
        intermediate_size_mlp=28, no_rope_layers=[1, 0, 1, 0], num_local_experts=5, rope_scaling=None,
        tie_word_embeddings=False, use_qk_norm=False), seed=702),
    "granite4-dense": Family(GRANITE4_DENSE, twin={**GRANITE4_DENSE, "layer_types": ["full_attention"] * 2}, seed=711),
    "granite4-moe-nope": Family(
        GRANITE4_MOE, twin={**GRANITE4_MOE, "layer_types": ["full_attention"] * 2}, store=granite_moe, seed=712),
    # The texts are longer than a block of the cache.
    "granite4-h-dense": Family(GRANITE4_H_DENSE, twin=mamba_layers(GRANITE4_H_DENSE), seed=713, lengths=[70, 24]),
    "granite4-h-moe": Family(
        GRANITE4_H_MOE, twin=mamba_layers(GRANITE4_H_MOE), store=granite_moe, seed=714, lengths=[29, 135]),
    "seed-oss": Family(published(
        "seed_oss", "SeedOssForCausalLM", "bfloat16", **size(48, 2, 4, 2, 20, 56), attention_bias=True,
        attention_dropout=0.1, attention_out_bias=False, hidden_act="silu", mlp_bias=False, pad_token_id=1,
        pretraining_tp=1, residual_dropout=0.1, rms_norm_eps=1e-6, rope_scaling={"rope_type": "default"},
        rope_theta=10000000.0, tie_word_embeddings=False), seed=721),
    "dots1": Family(published(  # the first layer is dense, the last one has a window
        "dots1", "Dots1ForCausalLM", "bfloat16", **wide(48, 3, 4, 4, 72), attention_bias=False, attention_dropout=0.0,
        first_k_dense_replace=1, hidden_act="silu", max_window_layers=2, moe_intermediate_size=20, moe_layer_freq=1,
        n_group=1, n_routed_experts=7, n_shared_experts=2, norm_topk_prob=True, num_experts_per_tok=3,
        pretraining_tp=1, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000000, routed_scaling_factor=2.5,
        scoring_func="noaux_tc", sliding_window=8, tie_word_embeddings=False, topk_group=1, use_cache=True),
        store=EXPERTS, seed=722),
}


def make(name: str, family: Family, seed: int, out: Path) -> None:
    twin = family.twin or family.config
    seed = family.seed or seed
    made = goldens.build(twin)
    print(name, made.config.rope_parameters)
    stored = goldens.randomize(made, twin, seed)
    if family.rounded:
        stored = {key: family.rounded(key, values) for key, values in stored.items()}
        for key, parameter in made.named_parameters():
            parameter.data.copy_(stored[key].double())
    dtypes = {values.dtype for name, values in stored.items() if not name.endswith(goldens.CORRECTION)}
    assert dtypes == {DTYPES[twin["torch_dtype"]]}
    folder = (out.parent / "quantised" if family.rounded else out) / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in family.files(stored).items():
        goldens.write_json(folder / file, content)
    stored = {key: values.contiguous() for key, values in family.store(stored, family.config).items()}
    save_file(stored, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")
    goldens.write_json(folder / "golden.json", goldens.golden(made, seed, family.lengths, by="family_goldens.py"))


if __name__ == "__main__":
    goldens.command(__doc__, FAMILIES, 100, make)
