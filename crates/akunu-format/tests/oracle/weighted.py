"""Prints ggml's weighted errors for tests/quantise_error.rs. Needs: pip install numpy; a folder with libggml-base.so.

    python weighted.py FOLDER        such as bins/linux-x64 of npm's @node-llama-cpp/linux-x64
"""

import ctypes
import sys

import numpy as np

# ggml's ids of types, elements and bytes of a block.
TYPES = {
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
    "Q2K": (10, 256, 84), "Q3K": (11, 256, 110), "Q4K": (12, 256, 144), "Q5K": (13, 256, 176), "Q6K": (14, 256, 210),
    "IQ1S": (19, 256, 50), "IQ1M": (29, 256, 56), "IQ2XXS": (16, 256, 66), "IQ2XS": (17, 256, 74), "IQ2S": (22, 256, 82),
    "IQ3XXS": (18, 256, 98), "IQ3S": (21, 256, 110), "IQ4NL": (20, 32, 18), "IQ4XS": (23, 256, 136),
}  # fmt: skip
COUNT, COLUMNS = 32_768, 256


def uniform(seed: int):
    """SplitMix64's top 24 bits."""
    state, mask = seed, 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield ((z ^ (z >> 31)) >> 40) / 2**24


def near_normal(rng) -> float:
    return sum(next(rng) for _ in range(12)) - 6.0


def normal():
    rng = uniform(11)
    return [0.02 * near_normal(rng) for _ in range(COUNT)]


def heavy():
    rng = uniform(12)
    out = []
    for _ in range(COUNT):
        above = near_normal(rng)
        squares = sum(near_normal(rng) ** 2 for _ in range(3))
        out.append(0.02 * above / (squares / 3.0) ** 0.5)
    return out


rng = uniform(13)
weights = np.array([1.0 / (0.05 + next(rng)) ** 2 for _ in range(COLUMNS)], np.float32)
lib = ctypes.CDLL(sys.argv[1] + "/libggml-base.so")
lib.ggml_quantize_chunk.restype = ctypes.c_size_t
lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [
    ctypes.c_void_p
]
names = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 10: "q2_K", 11: "q3_K", 12: "q4_K", 13: "q5_K", 14: "q6_K",
         19: "iq1_s", 29: "iq1_m", 16: "iq2_xxs", 17: "iq2_xs", 22: "iq2_s", 18: "iq3_xxs", 21: "iq3_s",
         20: "iq4_nl", 23: "iq4_xs"}  # fmt: skip
for name, (kind, length, size) in TYPES.items():
    found = []
    lib.ggml_quantize_init(kind)
    for values in (normal(), heavy()):
        x = np.array(values, np.float32)
        rows = COUNT // COLUMNS
        out = np.zeros(COUNT // length * size, np.uint8)
        lib.ggml_quantize_chunk(kind, x.ctypes.data, out.ctypes.data, 0, rows, COLUMNS, weights.ctypes.data)
        y = np.zeros(COUNT, np.float32)
        decode = getattr(lib, "dequantize_row_" + names[kind])
        decode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        decode.restype = None
        decode(out.ctypes.data, y.ctypes.data, COUNT)
        w = np.tile(weights.astype(np.float64), rows)
        off = x.astype(np.float64) - y.astype(np.float64)
        found.append((w * off * off).sum() / w.sum())
    print(f"    (DType::{name}, {found[0] ** 0.5:.9}, {found[1] ** 0.5:.9}),")
