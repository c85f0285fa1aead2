// Dequantises a matrix to row-major f16. One thread per block.

#ifdef BITS
// A block is four pieces of 16 bytes. With one piece of padding between blocks, eight lanes hit different banks.
#define PIECES 4
#define APART (PIECES + 1)

// Piece `p` of a block: elements 8p … 8p + 7.
INLINE u32x4 piece_of(const THREAD_PTR Block* block, u32 p) {
    const u32 h = HALVES == 2 && p >= 2 ? HALVES - 1 : 0;
    const f32 scale = block->scale[h], offset = block->offset[h];
    u32 words[4];
    UNROLL for (u32 j = 0; j < 4; j++) {
        const u32 quants = block->quants[2 * p + j / 2] >> (j % 2 * 16);
        const f32 a = (f32)((i32)(i8)(quants & 255) - (i32)ZERO), b = (f32)((i32)(i8)(quants >> 8 & 255) - (i32)ZERO);
        words[j] = OFFSETS ? two_halves(scale * a + offset, scale * b + offset) : two_halves(scale * a, scale * b);
    }
    const u32x4 piece = {words[0], words[1], words[2], words[3]};
    return piece;
}
#endif

BODY(unpack) {
    const Matrix matrix = {in.weight, in.weight_scales, in.weight_offsets, (u64)OUTPUTS * BLOCKS};
    const u32 all = OUTPUTS * BLOCKS, mine = at.group_x * THREADS + at.in_group;
    const u32 b = mine < all ? mine : all - 1;
    const Raw raw = load_raw(matrix, b / BLOCKS, b % BLOCKS);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const Block block = decode(raw);
#ifdef BITS
    // The blocks of a SIMD group are transposed through threadgroup memory, so that adjacent lanes write adjacent
    // addresses.
    TG_ARRAY(u32x4, together, 0);
    THREADGROUP u32x4* const met = together + SIMD * (32 * APART);
    UNROLL for (u32 p = 0; p < PIECES; p++) met[LANE * APART + p] = piece_of(&block, p);
    SIMD_SYNC();
    const u32 first = mine - LANE;
    UNROLL for (u32 k = 0; k < PIECES; k++) {
        const u32 i = k * 32 + LANE, beside = i / PIECES;
        if (first + beside < all) *(DEVICE u32x4*)(in.out_f16 + ((u64)first * PIECES + i) * 16) = met[beside * APART + i % PIECES];
    }
#else
    UNROLL for (u32 k = 0; k < BLOCK; k += 8) {
        u32 words[4];
        UNROLL for (u32 j = 0; j < 4; j++) words[j] = two_halves(weight_at(&block, k + 2 * j), weight_at(&block, k + 2 * j + 1));
        const u32x4 piece = {words[0], words[1], words[2], words[3]};
        if (mine < all) *(DEVICE u32x4*)(in.out_f16 + ((u64)mine * BLOCK + k) * 2) = piece;
    }
#endif
}
