"""Goldens of MLX's affine quantisation, from MLX itself.

    pip install "mlx[cpu]" mlx-lm
    python mlx_goldens.py ../testdata/mlx

`blocks.safetensors` has two rows of 384 weights for every number of bits, group size and type of scales, quantised by `mx.quantize` and
saved by MLX; `blocks.json` has their values: the hash of the result of `mx.dequantize` with scales converted to float32, and
the float64 products with `x`. The folders are random models quantised and saved by mlx-lm, with the logits that mlx-lm computes in
float64 from these weights.
"""

import argparse
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model, quantize_model, save_model
from mlx_lm.models import gemma3_text, llama, phi3

BITS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
SCALES = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}
ROWS, COLS = 2, 384


def widened(quants: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> np.ndarray:
    """What the weights stand for, no operation rounded to less than float32."""
    values = mx.dequantize(quants, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group_size, bits=bits)
    return np.array(values)


def fnv(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def blocks(folder: Path) -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal(COLS).astype(np.float32)
    tensors, expected = {"x": mx.array(x)}, []
    for bits in BITS:
        for group in GROUPS:
            for name, dtype in SCALES.items():
                weights = mx.array((random.standard_normal((ROWS, COLS)) * 0.1).astype(np.float32)).astype(dtype)
                quants, scales, biases = mx.quantize(weights, group_size=group, bits=bits)
                key = f"{bits}.{group}.{name}"
                tensors |= {f"{key}.weight": quants, f"{key}.scales": scales, f"{key}.biases": biases}
                values = widened(quants, scales, biases, group, bits)
                expected.append({"bits": bits, "group": group, "scales": name, "hash": fnv(values.tobytes()),
                                 "first": values[0, :4].tolist(), "products": (values.astype(np.float64) @ x).tolist()})
    mx.save_safetensors(str(folder / "blocks.safetensors"), tensors)
    (folder / "blocks.json").write_text("[\n" + ",\n".join(json.dumps(e) for e in expected) + "\n]\n")


SIZE = {"vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}

# (module of mlx-lm, config, stored type, bits, group, settings of single modules)
MODELS = {
    # Every number of bits, every group size that rows of 64 and 128 allow, and unquantised modules.
    "llama-mixed": (llama, {"model_type": "llama", **SIZE, "intermediate_size": 128, "rope_theta": 10000.0, "tie_word_embeddings": False},
                    mx.bfloat16, 4, 32, {
        "model.embed_tokens": {"group_size": 64, "bits": 6}, "lm_head": {"group_size": 32, "bits": 8},
        "model.layers.0.self_attn.v_proj": {"group_size": 32, "bits": 6}, "model.layers.0.mlp.down_proj": {"group_size": 128, "bits": 5},
        "model.layers.1.self_attn.q_proj": False, "model.layers.1.self_attn.o_proj": {"group_size": 64, "bits": 3},
        "model.layers.1.mlp.gate_proj": {"group_size": 64, "bits": 8}, "model.layers.1.mlp.up_proj": {"group_size": 32, "bits": 2}}),
    # Tied and quantised embeddings, norms of the form 1 + w, a window.
    "gemma3-tied": (gemma3_text, {"model_type": "gemma3_text", **SIZE, "intermediate_size": 64, "rope_theta": 1000000.0,
                                  "rope_local_base_freq": 10000.0, "sliding_window": 6, "sliding_window_pattern": 2,
                                  "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
                    mx.float16, 5, 64, {}),
    # Fused Q, K and V, and fused gate and up, in all three planes.
    "phi3-stacked": (phi3, {"model_type": "phi3", **SIZE, "num_hidden_layers": 1, "intermediate_size": 64, "rope_theta": 10000.0,
                            "original_max_position_embeddings": 64, "tie_word_embeddings": False},
                     mx.float32, 3, 32, {}),
}


def flat(tree, prefix: str = "") -> dict:
    if isinstance(tree, mx.array):
        return {prefix[:-1]: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {name: value for key, part in items for name, value in flat(part, f"{prefix}{key}.").items()}


def filled(module, config: dict, dtype: mx.Dtype, seed: int):
    """A model of random weights, with logits of order one."""
    model = module.Model(module.ModelArgs.from_dict(config))
    random = np.random.default_rng(seed)
    gemma = config["model_type"].startswith("gemma")
    weights = []
    for name, value in sorted(flat(model.parameters()).items()):
        noise = random.standard_normal(value.shape)
        if len(value.shape) == 1:
            noise = 0.3 * noise + (0 if gemma else 1)
        else:
            noise *= (2 if "embed" in name or "lm_head" in name else 1.4) / np.sqrt(value.shape[1])
        weights.append((name, mx.array(noise.astype(np.float32)).astype(dtype)))
    if config["tie_word_embeddings"]:
        weights = [(name, value) for name, value in weights if not name.startswith("lm_head")]
        model.sanitize(dict(weights))
    model.load_weights(weights)
    return model


def logits(module, folder: Path, config: dict, sequences: list[list[int]]) -> list:
    """mlx-lm's own loader and model, with quantised modules replaced by what they stand for, in float64."""
    quantised, _ = load_model(folder, lazy=False)
    modules = {name: m for name, m in quantised.named_modules() if hasattr(m, "scales")}
    weights = {}
    for name, value in flat(quantised.parameters()).items():
        owner, _, part = name.rpartition(".")
        if owner not in modules:
            weights[name] = value.astype(mx.float64)
        elif part == "weight":
            m = modules[owner]
            weights[name] = mx.array(widened(m.weight, m.scales, m.biases, m.group_size, m.bits)).astype(mx.float64)
    plain = module.Model(module.ModelArgs.from_dict(config))
    if config["tie_word_embeddings"]:
        plain.sanitize(weights)
    plain.load_weights(list(weights.items()))
    return [np.array(plain(mx.array([ids]))[0]).tolist() for ids in sequences]


def models(folder: Path) -> None:
    for seed, (name, (module, config, dtype, bits, group, own)) in enumerate(MODELS.items()):
        model = filled(module, config, dtype, seed)
        chosen = lambda path, _: own.get(path, True)  # noqa: E731
        model, written = quantize_model(model, config, group, bits, quant_predicate=chosen)
        # mlx-lm writes only differing settings, and recognises unquantised modules by missing scales; converters write `false` too.
        written["quantization"] |= {path: value for path, value in own.items() if value is False}
        written["quantization_config"] = written["quantization"]
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        save_model(place, model)
        (place / "model.safetensors.index.json").unlink()
        (place / "config.json").write_text(json.dumps(written, indent=1) + "\n")
        random = np.random.default_rng(100 + seed)
        sequences = [random.integers(3, config["vocab_size"], n).tolist() for n in (13, 9)]
        golden = {"sequences": sequences, "logits": [[[float(f"{v:.12g}") for v in row] for row in one]
                                                     for one in logits(module, place, config, sequences)]}
        (place / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    blocks(arguments.folder)
    models(arguments.folder)
