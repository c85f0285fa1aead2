"""Writes a trained Hugging Face folder as GGUF, with matrices in Q8_0.

    python export.py /tmp/akunu-tales ../crates/akunu/embedded/akunu-tales.gguf

A GGUF v3 file consists of a header, key-value metadata, tensor descriptions, and
the tensors, each aligned to 32 bytes.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np
from chatml import STOP, TEMPLATE
from safetensors.numpy import load_file

ALIGNMENT = 32
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5  # metadata value types
TENSOR_F32, TENSOR_Q8_0 = 0, 8
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3


# ---- Q8_0: 32 weights as one f16 scale and 32 int8 ----


def quantize_q8_0(x: np.ndarray) -> bytes:
    blocks = x.astype(np.float32).reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1) / 127).astype(np.float16)
    inverse = np.where(scale > 0, 1 / np.maximum(scale.astype(np.float32), 1e-30), 0)
    q = np.clip(np.round(blocks * inverse[:, None]), -127, 127).astype(np.int8)
    return np.concatenate([scale[:, None].view(np.uint8), q.view(np.uint8)], axis=1).tobytes()


def dequantize_q8_0(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    raw = np.frombuffer(data, dtype=np.uint8).reshape(-1, 34)
    scale = raw[:, :2].copy().view(np.float16).astype(np.float64)
    return (scale * raw[:, 2:].view(np.int8)).reshape(shape)


# ---- names and rows ----


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.split(".", 3)
    parts = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }
    return f"blk.{layer}.{parts[part.removesuffix('.weight')]}.weight"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Q and K rows from Hugging Face's half-split RoPE order to GGUF's interleaved one."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """The way back."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


# ---- the file ----


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value) -> bytes:
    match kind:
        case 4 | 5 | 6:
            return struct.pack({U32: "<I", I32: "<i", F32: "<f"}[kind], value)
        case 7:
            return struct.pack("<?", value)
        case 8:
            return _string(value)
    raise ValueError(kind)


def metadata(config: dict, tokenizer: dict) -> list[tuple[str, int, object]]:
    """(key, type, value); arrays as (key, ARRAY, (element type, values))."""
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return [
        ("general.architecture", STRING, "llama"),
        ("general.type", STRING, "model"),
        ("general.name", STRING, "akunu-tales"),
        ("general.description", STRING, "Tells little stories and talks about them. Trained on text made by the story grammar in Akunu's training folder."),
        ("general.license", STRING, "MIT"),
        ("general.size_label", STRING, "4M"),
        ("general.languages", ARRAY, (STRING, ["en"])),
        ("general.file_type", U32, 7),  # mostly Q8_0
        ("general.quantization_version", U32, 2),
        ("general.alignment", U32, ALIGNMENT),
        ("llama.block_count", U32, config["num_hidden_layers"]),
        ("llama.context_length", U32, config["max_position_embeddings"]),
        ("llama.embedding_length", U32, config["hidden_size"]),
        ("llama.feed_forward_length", U32, config["intermediate_size"]),
        ("llama.attention.head_count", U32, config["num_attention_heads"]),
        ("llama.attention.head_count_kv", U32, config["num_key_value_heads"]),
        ("llama.attention.key_length", U32, config["head_dim"]),
        ("llama.attention.value_length", U32, config["head_dim"]),
        ("llama.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"]),
        ("llama.rope.dimension_count", U32, config["head_dim"]),
        ("llama.rope.freq_base", F32, config["rope_theta"]),
        ("llama.vocab_size", U32, config["vocab_size"]),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, [token for token, _ in vocab])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [CONTROL_TOKEN if token in special else NORMAL_TOKEN for token, _ in vocab])),
        ("tokenizer.ggml.merges", ARRAY, (STRING, merges)),
        ("tokenizer.ggml.bos_token_id", U32, config["bos_token_id"]),
        ("tokenizer.ggml.eos_token_id", U32, config["eos_token_id"]),
        ("tokenizer.ggml.eot_token_id", U32, tokenizer["model"]["vocab"][STOP]),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.ggml.add_eos_token", BOOL, False),
        ("tokenizer.chat_template", STRING, TEMPLATE),
    ]


def write_gguf(path: Path, meta: list, tensors: list[tuple[str, tuple[int, ...], int, bytes]]) -> None:
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)))
    for key, kind, value in meta:
        out += _string(key) + struct.pack("<I", kind)
        if kind == ARRAY:
            element, values = value
            out += struct.pack("<IQ", element, len(values)) + b"".join(_value(element, v) for v in values)
        else:
            out += _value(kind, value)
    offset = 0
    for name, shape, kind, data in tensors:
        dims = shape[::-1]  # GGUF counts dimensions from the fastest
        out += _string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
    out += bytes(-len(out) % ALIGNMENT)
    for _, _, _, data in tensors:
        out += data + bytes(-len(data) % ALIGNMENT)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out)


def convert(folder: Path, as_q8_0: bool = True) -> list[tuple[str, tuple[int, ...], int, bytes]]:
    config = json.loads((folder / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    weights = load_file(folder / "model.safetensors")
    tensors = []
    for name, weight in sorted(weights.items()):
        part = name.split(".")[-2]
        if part in heads:
            weight = interleave(weight, heads[part])
        if weight.ndim == 2 and as_q8_0:
            tensors.append((gguf_name(name), weight.shape, TENSOR_Q8_0, quantize_q8_0(weight)))
        else:
            tensors.append((gguf_name(name), weight.shape, TENSOR_F32, weight.astype(np.float32).tobytes()))
    return tensors


def dequantized(folder: Path) -> dict[str, np.ndarray]:
    """The weights that the GGUF holds, in float64 under their Hugging Face names."""
    return {name: dequantize_q8_0(quantize_q8_0(w), w.shape) if w.ndim == 2 else w.astype(np.float64)
            for name, w in load_file(folder / "model.safetensors").items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("gguf", type=Path)
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    tokenizer = json.loads((args.folder / "tokenizer.json").read_text())
    write_gguf(args.gguf, metadata(config, tokenizer), convert(args.folder))
    print(f"{args.gguf}: {args.gguf.stat().st_size} bytes")


if __name__ == "__main__":
    main()
