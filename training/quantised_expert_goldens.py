"""Goldens of mixtures of experts that other tools quantised, with a matrix of each expert as published folders have them.

    python quantised_expert_goldens.py ../testdata/quantised

What has to be installed, and what the files contain, is said in `quantised_goldens.py`, whose libraries pack each
matrix here too. transformers stacks the experts of a layer; here they are taken apart and get the names of published files.
"""

import argparse
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs

import float64
import quantised_goldens
from quantised_goldens import FP8, Model, awq, compressed, fp8_model, gptq_model, integer_model

# The names of the matrices of an expert: gate, up, down.
PLAIN = ("gate_proj", "up_proj", "down_proj")
MIXTRAL = ("w1", "w3", "w2")

COMMON = {"vocab_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}


def attention(hidden: int, head: int) -> dict:
    return {"hidden_size": hidden, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": head}


def deepseek(kind: str, hidden: int, latent: tuple[int, int, int, int], rank: int, ffn: int, **fields) -> dict:
    """`latent`: values of the latent vector, and of a head without RoPE, with it, and of its values."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {**COMMON, "model_type": kind, "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": hidden,
            "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": ffn, "moe_intermediate_size": ffn,
            "q_lora_rank": rank, **dict(zip(names, latent)), "first_k_dense_replace": 0, "n_shared_experts": 1,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0, "moe_layer_freq": 1,
            "rope_scaling": None, **fields}


# Blocks of keys and values reach from one head into the next, and the last ones are not whole.
DEEPSEEK = deepseek("deepseek_v3", 64, (152, 72, 8, 8), 16, 8, n_group=2, topk_group=1)
KIMI = deepseek("kimi_k2", 32, (32, 32, 32, 32), 32, 32, n_group=1, topk_group=1)
# Rows of more than a block that are not whole blocks.
MINIMAX = {**COMMON, "model_type": "minimax_m2", "architectures": ["MiniMaxM2ForCausalLM"], **attention(136, 32),
           "intermediate_size": 8, "num_local_experts": 3, "num_experts_per_tok": 2, "rotary_dim": 8,
           "scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True}
QWEN = {**COMMON, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **attention(64, 32),
        "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 3, "num_experts_per_tok": 2,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
MIXTRAL_CONFIG = {**COMMON, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **attention(64, 32),
                  "intermediate_size": 32, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}
LLAMA4 = {**COMMON, "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], **attention(32, 32),
          "intermediate_size": 32, "intermediate_size_mlp": 64, "num_local_experts": 3, "num_experts_per_tok": 1,
          "interleave_moe_layer_step": 1, "attention_chunk_size": 8, "no_rope_layers": [1], "use_qk_norm": True,
          "attn_temperature_tuning": True, "floor_scale": 4, "attn_scale": 0.4, "rope_scaling": None}

BLOCKS = QuantizationArgs(num_bits=8, type="float", strategy="block", symmetric=True, dynamic=False, block_structure=[128, 128])


def blocks(weight: torch.Tensor, _: str) -> quantised_goldens.Packed:
    """Under the name that DeepSeek gave the scales, which other files of `quant_method: fp8` use too."""
    parts, values = compressed(weight, BLOCKS, False, torch.float32)
    return {"weight": parts["weight"], "weight_scale_inv": parts["weight_scale"]}, values


def folder(config: dict, made: tuple, keep: tuple[str, ...], **change) -> dict:
    """`keep`: parts of the names of matrices that are not packed."""
    _, kind, settings, pack, _ = made
    return {"config": config, "kind": kind, "settings": {**settings, **change}, "pack": pack, "keep": ("embed", "lm_head", *keep)}


AWQ = {**quantised_goldens.AWQ, "group_size": 32, "modules_to_not_convert": ["gate"]}
FP8_V3 = {**FP8, "scale_fmt": "ue8m0"}
FP8_MINIMAX = {**FP8, "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}
FOLDERS = {
    "experts-fp8-deepseek": folder(DEEPSEEK, (None, torch.bfloat16, FP8_V3, blocks, {}), (".gate.",)),
    "experts-fp8-minimax": folder(MINIMAX, (None, torch.bfloat16, FP8_MINIMAX, blocks, {}), (".gate.",)),
    "experts-fp8-llama4": folder(LLAMA4, fp8_model(64, 32, "channel", False, torch.bfloat16), ("router",), ignore=["lm_head", "re:.*router"]),
    "experts-awq-qwen3": folder(QWEN, (None, torch.float16, AWQ, lambda weight, _: awq(weight, 32), {}), (".gate.",)),
    "experts-gptq-mixtral": folder(MIXTRAL_CONFIG, gptq_model(64, 64, 4, 32, True, False, False), (".gate.",)),
    "experts-integers-kimi": folder(KIMI, integer_model(4, 32, True, torch.bfloat16), (".gate.", "self_attn", "shared_experts"),
                                    ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]),
}
SEEDS = {"experts-fp8-deepseek": 1, "experts-fp8-minimax": 2, "experts-fp8-llama4": 3, "experts-awq-qwen3": 4,
         "experts-gptq-mixtral": 5, "experts-integers-kimi": 6}


class Mixture(Model):
    """A model whose experts are packed one by one."""

    lengths = (5, 2)

    def __init__(self, name: str, seed: int):
        made = FOLDERS[name]
        self.name, self.config, self.settings, self.kind = name, made["config"], made["settings"], made["kind"]
        self.pack = lambda weight, path: None if any(part in path for part in made["keep"]) else made["pack"](weight, path)
        self.fill(seed, {})

    def twin(self) -> dict:
        return {**self.config, "model_type": self.config["model_type"].replace("kimi_k2", "deepseek_v3")}

    def published(self, path: str) -> str:
        if self.config["model_type"] in ("mixtral", "minimax_m2"):
            return path.replace(".mlp.", ".block_sparse_moe.")
        return path

    def add(self, path: str, shape: tuple) -> None:
        before, stacked, part = path.partition(".experts.")
        if not stacked:
            super().add(path, shape)
            return
        # Llama 4 has a row for each input.
        transposed = self.config["model_type"] == "llama4_text"
        gate, up, down = MIXTRAL if "block_sparse_moe" in self.published(path) else PLAIN
        names = [gate, up] if part == "gate_up_proj" else [down]
        outputs, inputs = shape[:0:-1] if transposed else shape[1:]
        experts = []
        for expert in range(shape[0]):
            paths = [f"{before}.experts.{expert}.{name}.weight" for name in names]
            for path_of_one in paths:
                super().add(path_of_one, (outputs // len(names), inputs))
            experts.append(torch.cat([self.weights.pop(path_of_one) for path_of_one in paths]))
        whole = torch.stack(experts)
        self.weights[path] = whole.transpose(1, 2) if transposed else whole


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    models = [Mixture(name, SEEDS[name]) for name in FOLDERS]
    float64.everywhere()
    for model in models:
        model.write(arguments.folder)
