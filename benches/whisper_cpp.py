#!/usr/bin/env python3
"""Speed of whisper.cpp on Whisper's shapes with random weights: the encoder of one window of 30 s, and the greedy decoder a token.

    pip install --no-binary pywhispercpp pywhispercpp numpy     # builds whisper.cpp for this machine
    python benches/whisper_cpp.py [THREADS] [tiny base small]

A model file of whisper.cpp's own container is written for each shape, with weights in Q8_0, and read by the library that
pywhispercpp installs.
"""

import ctypes
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SHAPES = {"tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}
VOCABULARY, POSITIONS, CONTEXT, BANDS = 51865, 1500, 448, 80
Q8_0, F16, F32 = 8, 1, 0
MOSTLY_Q8_0 = 7 + 2 * 1000  # with the version of the block layouts


def q8_0(values: np.ndarray) -> bytes:
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1) / 127).astype("<f2")
    codes = np.rint(blocks / np.maximum(scales.astype(np.float32), 1e-8)[:, None]).astype(np.int8)
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = scales.view(np.uint8).reshape(-1, 2)
    out[:, 2:] = codes.view(np.uint8)
    return out.tobytes()


def tensors(width: int, layers: int):
    """Name, shape as in torch, and type of each tensor."""
    for tower, cross in (("encoder", False), ("decoder", True)):
        if tower == "encoder":
            yield "encoder.positional_embedding", (POSITIONS, width), F32
            yield "encoder.conv1.weight", (width, BANDS, 3), F16
            yield "encoder.conv1.bias", (width, 1), F32
            yield "encoder.conv2.weight", (width, width, 3), F16
            yield "encoder.conv2.bias", (width, 1), F32
        else:
            yield "decoder.positional_embedding", (CONTEXT, width), F32
            yield "decoder.token_embedding.weight", (VOCABULARY, width), Q8_0
        for layer in range(layers):
            at = f"{tower}.blocks.{layer}"
            for attention in ["attn"] + ["cross_attn"] * cross:
                for part in ("query", "key", "value", "out"):
                    yield f"{at}.{attention}.{part}.weight", (width, width), Q8_0
                    if part != "key":
                        yield f"{at}.{attention}.{part}.bias", (width,), F32
                yield f"{at}.{attention}_ln.weight", (width,), F32
                yield f"{at}.{attention}_ln.bias", (width,), F32
            yield f"{at}.mlp.0.weight", (4 * width, width), Q8_0
            yield f"{at}.mlp.0.bias", (4 * width,), F32
            yield f"{at}.mlp.2.weight", (width, 4 * width), Q8_0
            yield f"{at}.mlp.2.bias", (width,), F32
            yield f"{at}.mlp_ln.weight", (width,), F32
            yield f"{at}.mlp_ln.bias", (width,), F32
        norm = "encoder.ln_post" if tower == "encoder" else "decoder.ln"
        yield f"{norm}.weight", (width,), F32
        yield f"{norm}.bias", (width,), F32


def write(path: Path, width: int, heads: int, layers: int) -> None:
    random = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(b"lmgg")
        file.write(struct.pack("<11i", VOCABULARY, POSITIONS, width, heads, layers, CONTEXT, width, heads, layers, BANDS, MOSTLY_Q8_0))
        filters = random.random((BANDS, 201), np.float32)
        file.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
        words = [str(n).encode() for n in range(50257)]
        file.write(struct.pack("<i", len(words)))
        for word in words:
            file.write(struct.pack("<i", len(word)) + word)
        for name, shape, kind in tensors(width, layers):
            file.write(struct.pack(f"<{3 + len(shape)}i", len(shape), len(name), kind, *reversed(shape)) + name.encode())
            values = random.standard_normal(shape, np.float32) * 0.02 + (1.0 if name.endswith("ln.weight") or name.endswith("ln_post.weight") else 0.0)
            file.write(q8_0(values) if kind == Q8_0 else values.astype("<f2" if kind == F16 else "<f4").tobytes())


class Parameters(ctypes.Structure):
    """whisper_context_params: as of whisper.cpp 1.8."""

    _fields_ = [("use_gpu", ctypes.c_bool), ("flash_attn", ctypes.c_bool), ("gpu_device", ctypes.c_int), ("rest", ctypes.c_byte * 128)]


def library() -> ctypes.CDLL:
    for folder in map(Path, sys.path):
        for file in sorted(folder.glob("libwhisper.so*")) if folder.is_dir() else []:
            for needed in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
                for found in sorted(folder.glob(needed + "*")):
                    try:
                        ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
                        break
                    except OSError:
                        pass
            return ctypes.CDLL(str(file))
    sys.exit("libwhisper.so is not installed: pip install --no-binary pywhispercpp pywhispercpp")


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    whisper = library()
    whisper.whisper_context_default_params.restype = Parameters
    whisper.whisper_init_from_file_with_params.restype = ctypes.c_void_p
    whisper.whisper_init_from_file_with_params.argtypes = [ctypes.c_char_p, Parameters]
    whisper.whisper_set_mel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    whisper.whisper_encode.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    whisper.whisper_decode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    whisper.whisper_get_logits.restype = ctypes.POINTER(ctypes.c_float)
    whisper.whisper_get_logits.argtypes = [ctypes.c_void_p]
    for name in sys.argv[2:] or SHAPES:
        width, heads, layers = SHAPES[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.bin"
            write(path, width, heads, layers)
            parameters = whisper.whisper_context_default_params()
            parameters.use_gpu = False
            context = whisper.whisper_init_from_file_with_params(str(path).encode(), parameters)
            if not context:
                sys.exit(f"whisper.cpp refuses the {name} file")
            frames = np.random.default_rng(2).standard_normal((BANDS, 3000), np.float32)
            assert whisper.whisper_set_mel(context, frames.ctypes.data, 3000, BANDS) == 0
            took = []
            for _ in range(4):
                start = time.perf_counter()
                assert whisper.whisper_encode(context, 0, threads) == 0
                took.append(time.perf_counter() - start)
            tokens = (ctypes.c_int32 * 4)(50258, 50259, 50359, 50363)
            assert whisper.whisper_decode(context, tokens, 4, 0, threads) == 0
            each = []
            for step in range(64):
                token = (ctypes.c_int32 * 1)(1000 + step)
                start = time.perf_counter()
                assert whisper.whisper_decode(context, token, 1, 4 + step, threads) == 0
                whisper.whisper_get_logits(context)
                each.append(time.perf_counter() - start)
            print(f"{name} Q8_0: encoder {statistics.median(took[1:]) * 1e3:.0f} ms, "
                  f"decoder {statistics.median(each) * 1e3:.2f} ms a token", flush=True)


if __name__ == "__main__":
    main()
