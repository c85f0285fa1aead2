// Exact int8 products of blocks on tensor cores, and how they are scaled.
//
// A block's int32 sum of products is exact. The accumulator starts at START, the bits of the float 9 · 2^20, so that
// the result read as a float is 9 · 2^20 + sum: sums are less than 2^20 in magnitude, and floats in that range have
// whole steps. No conversion is needed: fma(value, scale, −9 · 2^20 · scale) is sum · scale, rounded once. Scales are
// truncated to 20 significant bits so that 9 · scale is exact. So scaling costs two fma per element of a tile.

#define START 0x4b100000u
#define START_VALUE 9437184.0f

// A scale truncated to 20 significant bits.
INLINE f32 short_scale(f32 scale) { return as_f32(as_u32(scale) & 0xfffffff0u); }

// The products of half a block (HALVES == 2), or of a whole one.
INLINE Quad products(Quad a, u32 b0, u32 b1, u32 half, u32 start) {
#if HALVES == 2
    return multiply_16(a.v[half * 2], a.v[half * 2 + 1], half == 0 ? b0 : b1, start);
#else
    return multiply_32(a, b0, b1, start);
#endif
}

// Copies 16 bytes of a row's quants, which are aligned to 16 bytes if the number of blocks is even, otherwise to 8.
INLINE void copy_chunk(THREADGROUP u8* to, const DEVICE u8* from, bool there) {
    if (BLOCKS % 2 == 0) {
        copy16(to, from, there);
    } else {
        copy8(to, from, there);
        copy8(to + 8, from + 8, there);
    }
}
