"""A Whisper model of a Hugging Face folder as a file of whisper.cpp, as its convert-h5-to-ggml.py writes it.

    python whisper_ggml.py ../testdata/whisper/whisper-128-turbo ../testdata/whisper/whisper-128-turbo.bin
    python whisper_ggml.py FOLDER OUT [--vocabulary multilingual.tiktoken] [--filters mel_filters.npz] [--f32]

Without a vocabulary, the tokens are the 256 bytes and numbers, or the control tokens of a small vocabulary at its end. Without filters,
the file has one frequency a band, which is 0.
"""

import argparse
import base64
import json
import struct
from pathlib import Path

import numpy as np

PARTS = {
    "self_attn_layer_norm": "attn_ln",
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
WHOLE = {
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
}
SMALL = ["endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps",
         "0.00", "0.02"]
# Always F32, however many dimensions they have.
FULL = {"encoder.conv1.bias", "encoder.conv2.bias", "encoder.positional_embedding", "decoder.positional_embedding"}


def tensors(path: Path):
    """Name and float32 values of each tensor of a SafeTensors file, in its order."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = (8 + length + at for at in entry["data_offsets"])
        bits = data[first:last]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(bits, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(bits, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]).astype(np.float32)
        yield name.removeprefix("model."), values.reshape(entry["shape"])


def renamed(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    module, kind = name.rsplit(".", 1)
    if module in WHOLE:
        return f"{WHOLE[module]}.{kind}"
    words = module.split(".")
    if words[1] != "layers":
        return name
    return f"{words[0]}.blocks.{words[2]}.{PARTS['.'.join(words[3:])]}.{kind}"


def small_vocabulary(rows: int) -> list[bytes]:
    numbers = [str(n).encode() for n in range(10, rows)][: rows - 256 - len(SMALL)]
    return [bytes([n]) for n in range(256)] + numbers + [f"<|{name}|>".encode() for name in SMALL]


def main(args: argparse.Namespace) -> None:
    config = json.loads((args.folder / "config.json").read_text())
    default = {"max_source_positions": 1500, "max_target_positions": 448}
    field = lambda name: config.get(name, default.get(name))
    width, bands, rows = field("d_model"), field("num_mel_bins") or 80, field("vocab_size") or 51865
    out = [b"lmgg", struct.pack("<11i", rows, field("max_source_positions"), width, field("encoder_attention_heads"), field("encoder_layers"),
                                field("max_target_positions"), width, field("decoder_attention_heads"), field("decoder_layers"), bands,
                                0 if args.f32 else 1)]
    filters = np.load(args.filters)[f"mel_{bands}"] if args.filters else np.zeros((bands, 1))
    out += [struct.pack("<2i", *filters.shape), filters.astype("<f4").tobytes()]
    if args.vocabulary:
        tokens = [base64.b64decode(line.split()[0]) for line in args.vocabulary.read_text().splitlines()]
    else:
        tokens = small_vocabulary(rows)
    out.append(struct.pack("<i", len(tokens)))
    out += [struct.pack("<i", len(token)) + token for token in tokens]
    for name, values in tensors(args.folder / "model.safetensors"):
        name = renamed(name).encode()
        if name.decode() in ("encoder.conv1.bias", "encoder.conv2.bias"):
            values = values.reshape(-1, 1)
        full = args.f32 or values.ndim < 2 or name.decode() in FULL
        out.append(struct.pack(f"<{3 + values.ndim}i", values.ndim, len(name), 0 if full else 1, *reversed(values.shape)))
        out += [name, values.astype("<f4" if full else "<f2").tobytes()]
    args.out.write_bytes(b"".join(out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--filters", type=Path)
    parser.add_argument("--f32", action="store_true")
    main(parser.parse_args())
