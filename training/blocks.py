"""Blocks of every dtype, with PyPI's `gguf` as an independent reference.

It quantises the plain formats and MXFP4. It only dequantises the others, so their
blocks are random bits with scales that keep the weights in a normal range.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

from export import ALIGNMENT, ARRAY, F32, I32, STRING, U32, interleave, write_gguf

BLOCKS = 8
PLAIN = [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]
K_QUANTS = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
TABLES = [Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4]
# Byte offsets of the f16 scales of values and of minimums in a block.
SCALES = {Type.Q2_K: (80, 82), Type.Q3_K: (108, None), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208, None),
          Type.IQ4_NL: (0, None), Type.IQ4_XS: (0, None), Type.IQ1_S: (0, None), Type.IQ1_M: (48, None), Type.IQ2_XXS: (0, None),
          Type.IQ2_XS: (0, None), Type.IQ2_S: (0, None), Type.IQ3_XXS: (0, None), Type.IQ3_S: (0, None)}
LEVELS = {Type.Q2_K: 1.5, Type.Q4_K: 7.5, Type.Q5_K: 15.5}  # the middle value, which the minimums cancel

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "vocab_size": 64, "hidden_size": 256,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 256,
          "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu"}

FILES = {
    "mixed-legacy": {"token_embd": Type.Q8_0, "attn_q": Type.Q4_0, "attn_k": Type.F16, "attn_v": Type.BF16, "attn_output": Type.Q5_1,
                     "ffn_gate": Type.Q4_0, "ffn_up": Type.Q4_1, "ffn_down": Type.Q5_0},
    "mixed-k": {"token_embd": Type.Q6_K, "attn_q": Type.Q4_K, "attn_k": Type.Q5_K, "attn_v": Type.Q6_K, "attn_output": Type.Q3_K,
                "ffn_gate": Type.Q2_K, "ffn_up": Type.Q3_K, "ffn_down": Type.Q4_K},
    "mixed-tables": {"token_embd": Type.MXFP4, "attn_q": Type.IQ4_NL, "attn_k": Type.IQ4_XS, "attn_v": Type.MXFP4, "attn_output": Type.IQ4_XS,
                     "ffn_gate": Type.IQ4_NL, "ffn_up": Type.IQ4_NL, "ffn_down": Type.MXFP4},
    "mixed-lattices": {"token_embd": Type.IQ3_S, "attn_q": Type.IQ2_XS, "attn_k": Type.IQ3_XXS, "attn_v": Type.IQ2_S, "attn_output": Type.IQ1_M,
                       "ffn_gate": Type.IQ2_XXS, "ffn_up": Type.IQ1_S, "ffn_down": Type.IQ2_S},
}


def random_blocks(kind: Type, count: int, std: float, random: np.random.Generator) -> np.ndarray:
    """`count` blocks as bytes, one per row; the weights have a standard deviation of about `std`."""
    length, width = gguf.GGML_QUANT_SIZES[kind]
    if kind in PLAIN or kind == Type.MXFP4:
        length = max(length, 32)
        values = (random.standard_normal((count, length)) * std).astype(np.float32)
        return quants.quantize(values, kind).view(np.uint8).reshape(count, -1)
    raw = random.integers(0, 256, (count, width), dtype=np.uint8)
    value_at, minimum_at = SCALES[kind]

    def set_scale(offset: int, scale: np.ndarray) -> None:
        if kind == Type.IQ1_M:  # four bits of it in each of four words
            bits = scale.astype(np.float16).view(np.uint16)
            for i in range(4):
                high = offset + 2 * i + 1
                raw[:, high] = raw[:, high] & 15 | (bits >> (4 * i) & 15) << 4
            return
        raw[:, offset:offset + 2] = scale.astype(np.float16)[:, None].view(np.uint8)

    ones = np.ones(count)
    set_scale(value_at, ones)
    if minimum_at is not None:
        set_scale(minimum_at, ones * LEVELS[kind])
    spread = quants.dequantize(raw, kind).std()
    scale = std / spread * random.uniform(0.7, 1.3, count)
    set_scale(value_at, scale)
    if minimum_at is not None:
        set_scale(minimum_at, scale * LEVELS[kind])
    return raw


def oracle() -> dict:
    """{dtype: [{"hex", "values"}]}; values are exact float32 numbers and must be parsed as float32."""
    random = np.random.default_rng(1)
    table = {}
    for kind in PLAIN + K_QUANTS + TABLES:
        raw = random_blocks(kind, BLOCKS, 1.0, random)
        values = quants.dequantize(raw, kind).reshape(BLOCKS, -1)
        table[kind.name] = [{"hex": row.tobytes().hex(), "values": [float(str(v)) for v in floats]} for row, floats in zip(raw, values)]
    return {"made_by": "training/goldens.py gguf, PyPI gguf", "blocks": table}


def write_model(path: Path, dtypes: dict[str, Type], seed: int) -> dict[str, np.ndarray]:
    """Writes a one-layer LLaMA; returns its dequantised weights with Hugging Face names."""
    random = np.random.default_rng(seed)
    hidden, ffn, head_dim = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    q, kv = CONFIG["num_attention_heads"] * head_dim, CONFIG["num_key_value_heads"] * head_dim
    shapes = {"token_embd": (CONFIG["vocab_size"], hidden), "attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden),
              "attn_output": (hidden, q), "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
    names = {"token_embd": "model.embed_tokens", "attn_q": "model.layers.0.self_attn.q_proj", "attn_k": "model.layers.0.self_attn.k_proj",
             "attn_v": "model.layers.0.self_attn.v_proj", "attn_output": "model.layers.0.self_attn.o_proj",
             "ffn_gate": "model.layers.0.mlp.gate_proj", "ffn_up": "model.layers.0.mlp.up_proj", "ffn_down": "model.layers.0.mlp.down_proj",
             "attn_norm": "model.layers.0.input_layernorm", "ffn_norm": "model.layers.0.post_attention_layernorm", "output_norm": "model.norm"}
    heads = {"attn_q": CONFIG["num_attention_heads"], "attn_k": CONFIG["num_key_value_heads"]}
    place = lambda part: f"{part}.weight" if part in ("token_embd", "output_norm") else f"blk.0.{part}.weight"
    tensors, weights = [], {}
    for part, kind in dtypes.items():
        rows, columns = shapes[part]
        per_row = columns // max(gguf.GGML_QUANT_SIZES[kind][0], 32)
        std = (2.0 if part == "token_embd" else 1.4) / columns**0.5
        raw = random_blocks(kind, rows * per_row, std, random)
        values = quants.dequantize(raw.reshape(rows, -1), kind).reshape(rows, columns)
        tensors.append((place(part), (rows, columns), int(kind), raw.tobytes()))
        weights[names[part] + ".weight"] = undo(values, heads[part]) if part in heads else values
    for part in ("attn_norm", "ffn_norm", "output_norm"):
        values = (1 + 0.3 * random.standard_normal(hidden)).astype(np.float32)
        tensors.append((place(part), (hidden,), int(Type.F32), values.tobytes()))
        weights[names[part] + ".weight"] = values
    write_gguf(path, metadata(path.stem), tensors)
    return weights


def undo(values: np.ndarray, heads: int) -> np.ndarray:
    """Converts GGUF's interleaved rows to Hugging Face's half-split ones, the inverse of `export`."""
    order = interleave(np.arange(len(values))[:, None], heads)[:, 0]
    back = np.empty_like(values)
    back[order] = values
    return back


def metadata(name: str) -> list[tuple[str, int, object]]:
    tokens = ["<unk>", "<s>", "</s>"] + [chr(ord("!") + i) for i in range(CONFIG["vocab_size"] - 3)]
    return [
        ("general.architecture", STRING, "llama"), ("general.name", STRING, name), ("general.alignment", U32, ALIGNMENT),
        ("llama.block_count", U32, CONFIG["num_hidden_layers"]), ("llama.context_length", U32, CONFIG["max_position_embeddings"]),
        ("llama.embedding_length", U32, CONFIG["hidden_size"]), ("llama.feed_forward_length", U32, CONFIG["intermediate_size"]),
        ("llama.attention.head_count", U32, CONFIG["num_attention_heads"]),
        ("llama.attention.head_count_kv", U32, CONFIG["num_key_value_heads"]),
        ("llama.attention.key_length", U32, CONFIG["head_dim"]), ("llama.attention.value_length", U32, CONFIG["head_dim"]),
        ("llama.attention.layer_norm_rms_epsilon", F32, CONFIG["rms_norm_eps"]),
        ("llama.rope.dimension_count", U32, CONFIG["head_dim"]), ("llama.rope.freq_base", F32, CONFIG["rope_theta"]),
        ("llama.vocab_size", U32, CONFIG["vocab_size"]),
        ("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.scores", ARRAY, (F32, [float(-i) for i in range(len(tokens))])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [2, 3, 3] + [1] * (len(tokens) - 3))),
        ("tokenizer.ggml.bos_token_id", U32, 1), ("tokenizer.ggml.eos_token_id", U32, 2),
    ]
