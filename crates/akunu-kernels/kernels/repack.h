// Repacks a matrix from the file's blocks (argument `file`) to planes in the order of codes.h and quants.h (`planes`);
// the size stays the same. A thread repacks 32 weights. ORDER is the order of the codes in a file's block:
//   0 nibbles of i and i + 16 in a byte, fifth bits in a word    1 bytes    2 two bits, k-quants    3 nibbles, k-quants
//   4 nibbles and two bits, Q6_K    5 as 0, eight times    6 a bit stream (quants only)

#if SCALES >= SCALES_LATTICE
INLINE u32 field_at(u32 plane) {
    return plane == 0 ? FIELD_0 : plane == 1 ? FIELD_1 : plane == 2 ? FIELD_2 : plane == 3 ? FIELD_3 : FIELD_4;
}

// The fields of a file's block are distributed to planes; its eight threads take their bytes in turn.
BODY(repack) {
    const u64 b = (u64)at.group_x * THREADS + at.in_group, blocks = (u64)MATRIX_ROWS * BLOCKS;
    if (b >= blocks) return;
    const DEVICE u8* file = in.file + b / 8 * FILE_BYTES;
    DEVICE u8* to = in.planes;
    UNROLL for (u32 k = 0; k < PLANES; k++) {
        const u32 bytes = plane_bytes(k);
        for (u32 i = (u32)(b % 8); i < bytes; i += 8) to[b / 8 * bytes + i] = file[field_at(k) + i];
        to += blocks / 8 * bytes;
    }
}
#else
INLINE u32 half_at(const DEVICE u8* p) { return p[0] | (u32)p[1] << 8; }

// The code of element e of sub-block `sub` (32 elements) of the file's block.
INLINE u32 file_code(const DEVICE u8* file, u32 sub, u32 e) {
    const u32 i = sub * 32 + e;
    const DEVICE u8* low = file + LOW_AT;
#if ORDER == 0
    u32 code = low[e % 16] >> (e / 16 * 4) & 15;
#if BITS == 5
    code |= (file[HIGH_AT + e / 8] >> (e % 8) & 1) << 4;
#endif
    return code;
#elif ORDER == 1
    return low[e];
#elif ORDER == 2
    u32 code = low[i / 128 * 32 + e] >> (i / 32 % 4 * 2) & 3;
#if BITS == 3
    code |= (file[HIGH_AT + e] >> sub & 1) << 2;
#endif
    return code;
#elif ORDER == 3
    u32 code = low[i / 64 * 32 + e] >> (sub % 2 * 4) & 15;
#if BITS == 5
    code |= (file[HIGH_AT + e] >> sub & 1) << 4;
#endif
    return code;
#elif ORDER == 4
    const u32 r = i % 128;
    const u32 code = low[i / 128 * 64 + r % 64] >> (r / 64 * 4) & 15;
    return code | (file[HIGH_AT + i / 128 * 32 + e] >> (r / 32 * 2) & 3) << 4;
#elif ORDER == 5
    return low[sub * 16 + e % 16] >> (e / 16 * 4) & 15;
#else
    // A block's bit stream begins on a byte boundary.
    const u32 at = e * BITS / 8, shift = e * BITS % 8;
    const u32 both = file[at] | (shift + BITS > 8 ? (u32)file[at + 1] << 8 : 0);
    return both >> shift & ((1 << BITS) - 1);
#endif
}

INLINE void put_half(DEVICE u8* p, u32 v) {
    p[0] = (u8)v;
    p[1] = (u8)(v >> 8);
}

// The two 6-bit numbers of sub-block `sub`: low 4 bits and upper 2 bits go to separate planes. Two adjacent sub-blocks
// share a byte of the upper plane, which the even one writes.
#if SCALES == SCALES_Q3_K || SCALES == SCALES_K
INLINE u32 six_bits(const DEVICE u8* packed, u32 sub, u32 which) {
#if SCALES == SCALES_Q3_K
    const u32 j = 2 * sub + which;
    return (j < 8 ? packed[j] & 15 : packed[j - 8] >> 4) | (packed[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
#else
    const u32 j = sub % 4;
    if (sub < 4) return packed[j + 4 * which] & 63;
    return (packed[j + 8] >> (4 * which) & 15) | packed[j + 4 * which] >> 6 << 4;
#endif
}

INLINE u32 upper_bits(const DEVICE u8* packed, u32 sub) {
    return six_bits(packed, sub, 0) >> 4 | six_bits(packed, sub, 1) >> 4 << 2;
}

INLINE void put_six_bits(const DEVICE u8* packed, u32 sub, DEVICE u8* low, DEVICE u8* upper, u64 b) {
    low[b] = (u8)((six_bits(packed, sub, 0) & 15) | (six_bits(packed, sub, 1) & 15) << 4);
    if (sub % 2 == 0) upper[b / 2] = (u8)(upper_bits(packed, sub) | upper_bits(packed, sub + 1) << 4);
}
#endif

// Repacks the scales of block `b`, which is sub-block `sub` of the file's block.
INLINE void repack_scales(const DEVICE u8* file, DEVICE u8* end, u64 blocks, u64 b, u32 sub) {
#if SCALES == SCALES_F16
    put_half(end + b * 2, half_at(file + D_AT));
#elif SCALES == SCALES_F16_PAIR
    put_half(end + b * 4, half_at(file + D_AT));
    put_half(end + b * 4 + 2, half_at(file + D_AT + 2));
#elif SCALES == SCALES_EXPONENT
    end[b] = file[D_AT];
#elif SCALES == SCALES_Q2_K
    if (sub == 0) {
        put_half(end + b / 8 * 4, half_at(file + D_AT));
        put_half(end + b / 8 * 4 + 2, half_at(file + D_AT + 2));
    }
    put_half(end + blocks / 2 + b * 2, half_at(file + SCALES_AT + sub * 2));
#elif SCALES == SCALES_Q3_K
    if (sub == 0) put_half(end + b / 8 * 2, half_at(file + D_AT));
    put_six_bits(file + SCALES_AT, sub, end + blocks / 4, end + blocks / 4 * 5, b);
#elif SCALES == SCALES_K
    if (sub == 0) {
        put_half(end + b / 8 * 4, half_at(file + D_AT));
        put_half(end + b / 8 * 4 + 2, half_at(file + D_AT + 2));
    }
    put_six_bits(file + SCALES_AT, sub, end + blocks / 2, end + blocks / 2 * 3, b);
#elif SCALES == SCALES_Q6_K
    put_half(end + b * 2, half_at(file + SCALES_AT + sub * 2));
    if (sub == 0) put_half(end + blocks * 2 + b / 8 * 2, half_at(file + D_AT));
#elif SCALES == SCALES_IQ4_XS
    if (sub == 0) put_half(end + b / 8 * 2, half_at(file + D_AT));
    // The file's bytes are kept: two nibbles per byte, then four 2-bit fields per byte.
    if (sub % 2 == 0) end[blocks / 4 + b / 2] = file[SCALES_AT + 2 + sub / 2];
    if (sub % 4 == 0) end[blocks / 4 * 3 + b / 4] = file[SCALES_AT + sub / 4];
#endif
}

BODY(repack) {
    const u64 b = (u64)at.group_x * THREADS + at.in_group, blocks = (u64)MATRIX_ROWS * BLOCKS;
    if (b >= blocks) return;
#if ORDER == 6
    const u32 sub = 0;
    const DEVICE u8* file = in.file + b * (BITS * 4);
#elif ORDER >= 2
    const u32 sub = (u32)(b % 8);
    const DEVICE u8* file = in.file + b / 8 * FILE_BYTES;
#else
    const u32 sub = 0;
    const DEVICE u8* file = in.file + b * FILE_BYTES;
#endif
    u32 low[LOW_WORDS];
    UNROLL for (u32 j = 0; j < LOW_WORDS; j++) low[j] = 0;
#if HIGH_WORDS > 0
    u32 high[HIGH_WORDS];
    UNROLL for (u32 j = 0; j < HIGH_WORDS; j++) high[j] = 0;
#endif
    // The inverse of code_word.
    UNROLL for (u32 e = 0; e < 32; e++) {
        const u32 code = file_code(file, sub, e), j = e / 4, shift = e % 4 * 8;
#if BITS == 8
        low[j] |= code << shift;
#elif BITS >= 4
        low[j % 4] |= (code & 15) << (shift + j / 4 * 4);
#else
        low[j / 4] |= (code & 3) << (shift + j % 4 * 2);
#endif
#if BITS == 5
        high[0] |= (code >> 4) << (shift + j);
#elif BITS == 3
        high[0] |= (code >> 2) << (shift + j);
#elif BITS == 6
        high[j / 4] |= (code >> 4) << (shift + j % 4 * 2);
#endif
    }
    DEVICE u32* to = (DEVICE u32*)in.planes;
    UNROLL for (u32 j = 0; j < LOW_WORDS; j++) to[b * LOW_WORDS + j] = low[j];
#if HIGH_WORDS > 0
    UNROLL for (u32 j = 0; j < HIGH_WORDS; j++) to[blocks * LOW_WORDS + b * HIGH_WORDS + j] = high[j];
#endif
    repack_scales(file, in.planes + blocks * ((LOW_WORDS + HIGH_WORDS) * 4), blocks, b, sub);
}
#endif
