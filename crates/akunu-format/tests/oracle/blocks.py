"""Prints the table in tests/format/oracle_blocks.rs. Needs: pip install gguf numpy. Takes a second.

Blocks are bytes of a fixed generator with sane half-precision scales put in; their values as gguf-py
dequantises them go into one hash. The other way, fixed numbers are quantised and the bytes hashed.
"""

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

BLOCKS = 8
# Where the half-precision numbers are in a block.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ1_S: [0], T.IQ1_M: [], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [],
}
# MXFP4's scale is a byte: subnormal, ordinary and overflowing ones.
EXPONENTS = [0, 1, 2, 3, 127, 130, 252, 255]


def fnv(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) % 2**64
    return h


def numbers(count: int):
    """The top 24 bits of a 64-bit linear congruential generator."""
    state = 1
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 40


for t in HALVES:
    size = GGML_QUANT_SIZES[t][1]
    data = bytearray(n & 255 for n in numbers(BLOCKS * size))
    for block in range(BLOCKS):
        for k, at in enumerate(HALVES[t]):
            half = np.float16(0.01 * (block + 1) * (1 if k == 0 else -3)).tobytes()
            data[block * size + at : block * size + at + 2] = half
    if t == T.IQ1_M:
        # The four nibbles of the scale are in the upper bytes of the last eight; those of real files are small.
        data[55::size] = bytes((data[block * size + 55] & 15) | 0x20 for block in range(BLOCKS))
    if t == T.MXFP4:
        data[::size] = bytes(EXPONENTS)
    values = dequantize(np.frombuffer(bytes(data), np.uint8).reshape(1, -1), t).astype(np.float32)
    print(f"    (DType::{t.name.replace('_K', 'K') if 'IQ' not in t.name else t.name.replace('_', '')}, {HALVES[t]}, 0x{fnv(values.tobytes()):016x}),")
print()
values = np.array([n / 2**23 - 1 for n in numbers(64 * 32)], np.float32).reshape(1, -1)
values[0, 32:64] = 0
values[0, 64:96] *= 1e-6
values[0, 96:128] *= 1e3
for t in [T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1]:
    print(f"    (DType::{t.name}, 0x{fnv(quantize(values, t).tobytes()):016x}),")
