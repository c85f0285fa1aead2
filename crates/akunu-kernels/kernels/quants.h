// Blocks of 32 quantised weights as the matrix kernels take them: 8 words of int8, and scale · (quant − ZERO) + offset
// for each half of 16 (HALVES == 2) or for all 32. SCALES is how a type stores its scales, in planes that follow those
// of the quants:
//
//   F16        d: f16 per block
//   F16_PAIR   d and offset: 2 × f16 per block
//   EXPONENT   half of 2^(e − 127): u8 per block
//   Q2_K       d and m: 2 × f16 per 256; scale and offset of each half: 4 + 4 bits
//   Q3_K       d: f16 per 256; scale of each half, minus 32: two low 4 bits in a byte; two upper 2 bits in a nibble
//   K          d and m: 2 × f16 per 256; scale and offset: stored as Q3_K's two scales, nothing subtracted
//   Q6_K       scale of each half: i8; d: f16 per 256
//   IQ4_XS     d: f16 per 256; scale minus 32: low 4 bits in a nibble, upper 2 bits
//   LATTICE    as the file's blocks, each of their fields in a plane (lattices.h)
//   AFFINE     scale and offset in separate buffers, per GROUP weights; f16, bf16 or f32 by SCALE_TYPE (0, 1, 2)

#define SCALES_F16 0
#define SCALES_F16_PAIR 1
#define SCALES_EXPONENT 2
#define SCALES_Q2_K 3
#define SCALES_Q3_K 4
#define SCALES_K 5
#define SCALES_Q6_K 6
#define SCALES_IQ4_XS 7
#define SCALES_AFFINE 8
#define SCALES_LATTICE 9
#define SCALES_LATTICE_HALVES 10

#if SCALES == SCALES_Q2_K || SCALES == SCALES_Q3_K || SCALES == SCALES_Q6_K || SCALES == SCALES_LATTICE_HALVES
#define HALVES 2
#else
#define HALVES 1
#endif
#if SCALES == SCALES_F16_PAIR || SCALES == SCALES_Q2_K || SCALES == SCALES_K || SCALES == SCALES_AFFINE
#define OFFSETS 1
#else
#define OFFSETS 0
#endif

// Elements per block.
#define BLOCK 32
#define BLOCKS (INPUTS / 32)

struct Matrix {
    const DEVICE u8 *weight, *scales, *offsets;
    // Blocks of the whole matrix.
    u64 blocks;
};

// A block as loaded, before any arithmetic, so that several loads can be in flight.
struct Raw {
#if SCALES >= SCALES_LATTICE
    u32 points[2], signs, high;
#else
    Codes codes;
#endif
    u32 scale, more;
};

struct Block {
    u32 quants[8];
    f32 scale[HALVES];
    f32 offset[HALVES];
};

// A block of activations: q8.
struct Input {
    u32 quants[8];
    f32 scale;
    // The sum of the quants: of each half where scales are per half, otherwise of all 32.
    i32 sum[HALVES];
};

// The start of each plane (low bits, high bits, scales), either of the whole matrix or of a part of its rows copied
// elsewhere.
struct Planes {
    const DEVICE u8* at[PLANES];
};

#define SCALE_PLANE (1 + (HIGH_WORDS > 0))

INLINE Planes planes_of(Matrix m) {
    Planes planes;
    planes.at[0] = m.weight;
    UNROLL for (u32 i = 1; i < PLANES; i++) planes.at[i] = planes.at[i - 1] + m.blocks * plane_bytes(i - 1) / 8;
#if SCALES == SCALES_AFFINE
    planes.at[SCALE_PLANE] = m.scales;
    planes.at[SCALE_PLANE + 1] = m.offsets;
#endif
    return planes;
}

#if SCALES == SCALES_AFFINE
INLINE u32 raw_affine(const DEVICE u8* scales, u64 group) {
    return SCALE_TYPE == 2 ? weights4(scales + group * 4) : weights2(scales + group * 2);
}

INLINE f32 affine(u32 raw) {
    return SCALE_TYPE == 0 ? f16_to_f32((u16)raw) : SCALE_TYPE == 1 ? bf16_to_f32(raw) : as_f32(raw);
}
#endif

// Loads block `b`, counted from the start of the planes.
#if SCALES >= SCALES_LATTICE
INLINE Raw load_block(Planes planes, u64 b);
INLINE Block decode(Raw raw);
#else
INLINE Raw load_block(Planes planes, u64 b) {
    Raw raw;
    raw.codes = load_codes(planes.at[0], planes.at[SCALE_PLANE - 1], b);
    raw.more = 0;
    const DEVICE u8* const scales = planes.at[SCALE_PLANE];
#if SCALES == SCALES_F16
    raw.scale = weights2(scales + b * 2);
#elif SCALES == SCALES_F16_PAIR
    raw.scale = weights4(scales + b * 4);
#elif SCALES == SCALES_EXPONENT
    raw.scale = weights1(scales + b);
#elif SCALES == SCALES_Q2_K
    raw.scale = weights4(scales + b / 8 * 4);
    raw.more = weights2(planes.at[SCALE_PLANE + 1] + b * 2);
#elif SCALES == SCALES_Q3_K || SCALES == SCALES_K
    raw.scale = SCALES == SCALES_K ? weights4(scales + b / 8 * 4) : weights2(scales + b / 8 * 2);
    raw.more = weights1(planes.at[SCALE_PLANE + 1] + b);
    raw.more |= (weights1(planes.at[SCALE_PLANE + 2] + b / 2) >> (b % 2 * 4) & 15) << 8;
#elif SCALES == SCALES_Q6_K
    raw.more = weights2(scales + b * 2);
    raw.scale = weights2(planes.at[SCALE_PLANE + 1] + b / 8 * 2);
#elif SCALES == SCALES_IQ4_XS
    raw.scale = weights2(scales + b / 8 * 2);
    raw.more = weights1(planes.at[SCALE_PLANE + 1] + b / 2) >> (b % 2 * 4) & 15;
    raw.more |= (weights1(planes.at[SCALE_PLANE + 2] + b / 4) >> (b % 4 * 2) & 3) << 4;
#elif SCALES == SCALES_AFFINE
    raw.scale = raw_affine(scales, b / (GROUP / 32));
    raw.more = raw_affine(planes.at[SCALE_PLANE + 1], b / (GROUP / 32));
#endif
    return raw;
}

#if TABLE_OF == 1 // IQ4: −127 −104 −83 −65, −49 −35 −22 −10, 1 13 25 38, 53 69 89 113
#define TABLE 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u
#elif TABLE_OF == 2 // FP4, doubled: 0 1 2 3, 4 6 8 12, and their negatives
#define TABLE 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu
#endif

// Looks up the eight nibbles of a word in a table of 16 int8: `low` gets the entries of the low nibbles of bytes 0 …
// 3, `high` those of the high nibbles.
INLINE void look_up(u32 word, u32 t0, u32 t1, u32 t2, u32 t3, THREAD_PTR u32* low, THREAD_PTR u32* high) {
    u32 found[2];
    UNROLL for (u32 i = 0; i < 2; i++) {
        const u32 four = word >> (16 * i), upper = 0x3210u | (four & 0x8888u) >> 1;
        found[i] = byte_perm(byte_perm(t0, t1, four & 0x7777u), byte_perm(t2, t3, four & 0x7777u), upper);
    }
    *low = byte_perm(found[0], found[1], 0x6420u);
    *high = byte_perm(found[0], found[1], 0x7531u);
}

INLINE Block decode(Raw raw) {
    Block block;
#if TABLE_OF
    UNROLL for (u32 j = 0; j < 4; j++) look_up(raw.codes.low[j], TABLE, &block.quants[j], &block.quants[4 + j]);
#else
    UNROLL for (u32 j = 0; j < 8; j++) block.quants[j] = code_word(raw.codes, j);
#endif
#if SCALES == SCALES_F16
    block.scale[0] = f16_to_f32((u16)raw.scale);
#elif SCALES == SCALES_F16_PAIR
    block.scale[0] = f16_to_f32((u16)raw.scale);
    block.offset[0] = f16_to_f32((u16)(raw.scale >> 16));
#elif SCALES == SCALES_EXPONENT
    block.scale[0] = as_f32(raw.scale < 2 ? 0x00200000u << raw.scale : (raw.scale - 1) << 23);
#elif SCALES == SCALES_Q2_K
    const f32 d = f16_to_f32((u16)raw.scale), m = f16_to_f32((u16)(raw.scale >> 16));
    UNROLL for (u32 h = 0; h < 2; h++) {
        block.scale[h] = d * (f32)(raw.more >> (8 * h) & 15);
        block.offset[h] = -m * (f32)(raw.more >> (8 * h + 4) & 15);
    }
#elif SCALES == SCALES_Q3_K
    const f32 d = f16_to_f32((u16)raw.scale);
    UNROLL for (u32 h = 0; h < 2; h++)
        block.scale[h] = d * (f32)((i32)((raw.more >> (4 * h) & 15) | (raw.more >> (8 + 2 * h) & 3) << 4) - 32);
#elif SCALES == SCALES_K
    const u32 scale = (raw.more & 15) | (raw.more >> 8 & 3) << 4, offset = (raw.more >> 4 & 15) | (raw.more >> 10 & 3) << 4;
    block.scale[0] = f16_to_f32((u16)raw.scale) * (f32)scale;
    block.offset[0] = -f16_to_f32((u16)(raw.scale >> 16)) * (f32)offset;
#elif SCALES == SCALES_Q6_K
    UNROLL for (u32 h = 0; h < 2; h++) block.scale[h] = f16_to_f32((u16)raw.scale) * (f32)(i8)(raw.more >> (8 * h) & 255);
#elif SCALES == SCALES_IQ4_XS
    block.scale[0] = f16_to_f32((u16)raw.scale) * (f32)((i32)raw.more - 32);
#elif SCALES == SCALES_AFFINE
    block.scale[0] = affine(raw.scale);
    block.offset[0] = affine(raw.more);
#if BITS == 8 // Unsigned codes: shift them to −128 … 127, and add 128 steps to the offset.
    UNROLL for (u32 j = 0; j < 8; j++) block.quants[j] ^= 0x80808080u;
    block.offset[0] += 128.0f * block.scale[0];
#endif
#endif
#if !OFFSETS
    UNROLL for (u32 h = 0; h < HALVES; h++) block.offset[h] = 0;
#endif
    return block;
}
#endif

INLINE Raw load_raw(Matrix m, u32 row, u32 block) { return load_block(planes_of(m), (u64)row * BLOCKS + block); }

#define INPUT_ROW_BYTES Q8_ROW_BYTES(INPUTS)

INLINE Input load_input(const INPUT u8* x, u32 row, u32 block) {
    const INPUT u8* from = x + row * INPUT_ROW_BYTES;
    const INPUT u8* quants = from + block * 32;
    Input input;
    // A q8 row takes 40 bytes per block, so all rows are aligned to 16 bytes only if the number of blocks is even.
    if (BLOCKS % 2 == 0) {
        const u32x4 a = read16(quants), b = read16(quants + 16);
        input.quants[0] = a.x; input.quants[1] = a.y; input.quants[2] = a.z; input.quants[3] = a.w;
        input.quants[4] = b.x; input.quants[5] = b.y; input.quants[6] = b.z; input.quants[7] = b.w;
    } else {
        UNROLL for (u32 j = 0; j < 4; j++) {
            const u32x2 a = read8(quants + 8 * j);
            input.quants[2 * j] = a.x; input.quants[2 * j + 1] = a.y;
        }
    }
    input.scale = ((const INPUT f32*)(from + INPUTS))[block];
    input.sum[0] = ((const INPUT i32*)(from + INPUTS))[BLOCKS + block];
#if HALVES == 2
    i32 first = 0;
    UNROLL for (u32 j = 0; j < 4; j++) first = dp4a(0x01010101u, input.quants[j], first);
    input.sum[1] = input.sum[0] - first;
    input.sum[0] = first;
#endif
    return input;
}

INLINE f32 multiply(Block block, Input input, f32 sum) {
    f32 both = 0;
    UNROLL for (u32 h = 0; h < HALVES; h++) {
        i32 products = -(i32)ZERO * input.sum[h];
        UNROLL for (u32 j = 0; j < 8 / HALVES; j++) {
            const u32 word = h * 4 + j;
            products = dp4a(block.quants[word], input.quants[word], products);
        }
        both += block.scale[h] * (f32)products;
        if (OFFSETS) both += block.offset[h] * (f32)input.sum[h];
    }
    return sum + input.scale * both;
}

// Weight `i` of a block.
INLINE f32 element(Block block, u32 i) {
    u32 word = 0;
    UNROLL for (u32 j = 0; j < 8; j++) word = j == i / 4 ? block.quants[j] : word;
    const i32 quant = (i32)(i8)(word >> (i % 4 * 8) & 255) - (i32)ZERO;
    const f32 scale = HALVES == 2 && i >= 16 ? block.scale[HALVES - 1] : block.scale[0];
    const f32 offset = HALVES == 2 && i >= 16 ? block.offset[HALVES - 1] : block.offset[0];
    return scale * (f32)quant + offset;
}
