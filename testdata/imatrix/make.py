"""Makes the importance matrices in this folder. Needs: pip install gguf numpy. Takes a second.

A forward pass of models/llama-hd64-gqa2 in float64, from nothing but its files. What every matrix is multiplied by is
squared and added up over two windows of the ids below. The sums are written as llama.cpp writes them, by gguf-py; and
in the older format, in which they are mean squares times the number of windows.
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).parent
MODEL = HERE.parent / "models" / "llama-hd64-gqa2"
IDS = [(7 * i * i + 3 * i + 1) % 64 for i in range(40)]
WINDOW = 24

config = json.loads((MODEL / "config.json").read_text())
heads, kv_heads, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
data = (MODEL / "model.safetensors").read_bytes()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + length])


def weight(name):
    entry = header[name]
    assert entry["dtype"] == "BF16"
    start, end = (8 + length + at for at in entry["data_offsets"])
    bits = np.frombuffer(data[start:end], "<u2").astype("<u4") << 16
    return bits.view("<f4").astype(np.float64).reshape(entry["shape"])


sums, counts = {}, {}


def product(name, x, hf):
    sums[name] = sums.get(name, 0) + (x * x).sum(axis=0)
    counts[name] = counts.get(name, 0) + len(x)
    return x @ weight(hf).T


def norm(x, name):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * weight(name)


def rotate(x):
    half = dim // 2
    angles = np.outer(np.arange(len(x)), config["rope_theta"] ** (-np.arange(half) / half))[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def window(ids):
    x = weight("model.embed_tokens.weight")[ids]
    n = len(ids)
    for i in range(config["num_hidden_layers"]):
        of = f"model.layers.{i}."
        h = norm(x, of + "input_layernorm.weight")
        q, k, v = (
            product(f"blk.{i}.attn_{p}.weight", h, f"{of}self_attn.{p}_proj.weight").reshape(n, -1, dim) for p in "qkv"
        )
        q, k = rotate(q), rotate(k)
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)
        x = x + product(f"blk.{i}.attn_output.weight", mixed, of + "self_attn.o_proj.weight")
        h = norm(x, of + "post_attention_layernorm.weight")
        gate = product(f"blk.{i}.ffn_gate.weight", h, of + "mlp.gate_proj.weight")
        up = product(f"blk.{i}.ffn_up.weight", h, of + "mlp.up_proj.weight")
        h = gate / (1 + np.exp(-gate)) * up
        x = x + product(f"blk.{i}.ffn_down.weight", h, of + "mlp.down_proj.weight")
    return product("output.weight", norm(x, "model.norm.weight"), "lm_head.weight")


chunks = [IDS[start : start + WINDOW] for start in range(0, len(IDS), WINDOW)]
# The forward pass gives transformers' logits.
golden = json.loads((MODEL / "golden.json").read_text())
for ids, logits in zip(golden["sequences"], golden["logits"]):
    assert np.abs(window(ids) - np.array(logits)).max() < 1e-9
sums.clear(), counts.clear()
for chunk in chunks:
    window(chunk)

writer = gguf.GGUFWriter(HERE / "llama-hd64-gqa2.gguf", "unused")
# llama.cpp writes no architecture.
writer.kv_data[0].clear()
writer.add_string("general.type", "imatrix")
writer.add_array("imatrix.datasets", ["make.py"])
writer.add_uint32("imatrix.chunk_count", len(chunks))
writer.add_uint32("imatrix.chunk_size", WINDOW)
for name in sums:
    writer.add_tensor(name + ".in_sum2", sums[name].astype(np.float32))
    writer.add_tensor(name + ".counts", np.array([counts[name]], np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()


def text(s):
    return struct.pack("<i", len(s)) + s.encode()


with open(HERE / "llama-hd64-gqa2.dat", "wb") as out:
    out.write(struct.pack("<i", len(sums)))
    for name in sums:
        values = (sums[name] / counts[name] * len(chunks)).astype("<f4")
        out.write(text(name) + struct.pack("<ii", len(chunks), len(values)) + values.tobytes())
    out.write(struct.pack("<i", len(chunks)) + text("make.py"))
