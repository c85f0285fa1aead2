// Words for tiles of 8 × 8 numbers that a SIMD group holds between its lanes, nobody but the chip knows how: Metal from family Apple7
// on. All 32 lanes have to come, with the same pointer. The emulator has its own.
//
// Tiles of f32, f16 or bf16 are multiplied in any mixture; sums are f32.

#if defined(__METAL_VERSION__)
// Two to a power.
#define EXP2 precise::exp2

typedef simdgroup_matrix<f32, 8, 8> Tile;
typedef simdgroup_matrix<half, 8, 8> HalfTile;

INLINE Tile filled_tile(f32 value) { return make_filled_simdgroup_matrix<f32, 8, 8>(value); }

// A tile's rows, `stride` numbers apart.
INLINE void load_tile(THREAD_PTR Tile* tile, const THREADGROUP f32* from, u32 stride) { simdgroup_load(*tile, from, stride); }
INLINE void load_tile(THREAD_PTR HalfTile* tile, const THREADGROUP u16* from, u32 stride) {
    simdgroup_load(*tile, (const THREADGROUP half*)from, stride);
}
// Its columns.
INLINE void load_tile_aside(THREAD_PTR Tile* tile, const THREADGROUP f32* from, u32 stride) {
    simdgroup_load(*tile, from, stride, ulong2(0), true);
}
INLINE void load_tile_aside(THREAD_PTR HalfTile* tile, const THREADGROUP u16* from, u32 stride) {
    simdgroup_load(*tile, (const THREADGROUP half*)from, stride, ulong2(0), true);
}
INLINE void store_tile(THREAD_PTR Tile* tile, THREADGROUP f32* to, u32 stride) { simdgroup_store(*tile, to, stride); }

// sums + a · b
INLINE void multiply_tiles(THREAD_PTR Tile* sums, THREAD_PTR Tile* a, THREAD_PTR Tile* b) { simdgroup_multiply_accumulate(*sums, *a, *b, *sums); }
INLINE void multiply_tiles(THREAD_PTR Tile* sums, THREAD_PTR Tile* a, THREAD_PTR HalfTile* b) {
    simdgroup_multiply_accumulate(*sums, *a, *b, *sums);
}

#if BF16_TILES // Metal 3.1
typedef simdgroup_matrix<bfloat, 8, 8> Bf16Tile;
INLINE void load_tile(THREAD_PTR Bf16Tile* tile, const THREADGROUP u16* from, u32 stride) {
    simdgroup_load(*tile, (const THREADGROUP bfloat*)from, stride);
}
INLINE void multiply_tiles(THREAD_PTR Tile* sums, THREAD_PTR Tile* a, THREAD_PTR Bf16Tile* b) {
    simdgroup_multiply_accumulate(*sums, *a, *b, *sums);
}
#endif
#endif
