// Exact products of q8 blocks on tensor cores, and what scales them.
//
// A block's sum of products is exact. It lies on top of START in the bits of a float, so it is there as a float at once: less than
// 2^20 in magnitude, it moves 9 · 2^20 by whole steps. Then fma(sum, scale, −9 · 2^20 · scale) is sum · scale, rounded once: no scale
// has more than 20 bits, so that 9 · scale is exact. Two fma for each element of a tile are all that its scales cost.

#define START 0x4b100000u
#define START_VALUE 9437184.0f

// A scale's first 20 bits.
INLINE f32 short_scale(f32 scale) { return as_f32(as_u32(scale) & 0xfffffff0u); }

// The products of a tile's half block (HALVES == 2), or of a whole one.
INLINE Quad products(Quad a, u32 b0, u32 b1, u32 half, u32 start) {
#if HALVES == 2
    return multiply_16(a.v[half * 2], a.v[half * 2 + 1], half == 0 ? b0 : b1, start);
#else
    return multiply_32(a, b0, b1, start);
#endif
}

// 16 bytes of a row's quants, which lie on 16 bytes where blocks are even.
INLINE void copy_chunk(THREADGROUP u8* to, const DEVICE u8* from, bool there) {
    if (BLOCKS % 2 == 0) {
        copy16(to, from, there);
    } else {
        copy8(to, from, there);
        copy8(to + 8, from + 8, there);
    }
}
