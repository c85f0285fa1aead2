"""Writes ../../src/blocks/lattices.bin from PyPI's `gguf`. Needs: pip install gguf numpy.

The tables of the IQ1 to IQ3 types, one after the other. A point is 16 bits, little-endian: eight coordinates of two
bits or four of three bits, the first one lowest; a coordinate is its place among the values of the type.
"""

from pathlib import Path

import numpy as np
from gguf import quants

TYPES = [quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S, quants.IQ1_S]

tables = []
for kind in TYPES:
    kind.init_grid()
    places = np.searchsorted(np.array(kind.grid_map), kind.grid.reshape(kind.grid_shape))
    bits = 2 if kind.grid_shape[1] == 8 else 3
    tables.append((places << (bits * np.arange(kind.grid_shape[1]))).sum(1).astype("<u2"))
Path(__file__).parents[2].joinpath("src/blocks/lattices.bin").write_bytes(np.concatenate(tables).tobytes())
