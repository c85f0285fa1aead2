// Simdgroup matrices of 8 × 8, distributed over the lanes of a SIMD group in an unspecified layout: Metal from family
// Apple7 on. Must be reached by all 32 lanes, with the same pointer. The emulator has its own implementation.
//
// Tiles of f32, f16 or bf16 can be mixed in a product; sums are f32.

#if defined(__METAL_VERSION__)
typedef simdgroup_matrix<f32, 8, 8> Tile;
typedef simdgroup_matrix<half, 8, 8> HalfTile;

INLINE Tile filled_tile(f32 value) { return make_filled_simdgroup_matrix<f32, 8, 8>(value); }

// Loads a tile whose rows are `stride` numbers apart.
INLINE void load_tile(THREAD_PTR Tile* tile, const THREADGROUP f32* from, u32 stride) { simdgroup_load(*tile, from, stride); }
INLINE void load_tile(THREAD_PTR HalfTile* tile, const THREADGROUP u16* from, u32 stride) {
    simdgroup_load(*tile, (const THREADGROUP half*)from, stride);
}
// Loads a tile transposed.
INLINE void load_tile_transposed(THREAD_PTR Tile* tile, const THREADGROUP f32* from, u32 stride) {
    simdgroup_load(*tile, from, stride, ulong2(0), true);
}
INLINE void load_tile_transposed(THREAD_PTR HalfTile* tile, const THREADGROUP u16* from, u32 stride) {
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
