// Weights whose activations are f32: WEIGHT_TYPE 0 is f32, 1 f16, 2 bf16, 3 FP8, codes of E4M3 with an f32 scale for
// each GROUP weights of a row. A block is BLOCK of them: 16 bytes, or 8 of FP8, if rows are whole blocks of that, otherwise
// one number.

#define BLOCKS (INPUTS / BLOCK)
#define WEIGHT_BYTES (WEIGHT_TYPE == 0 ? 4 : WEIGHT_TYPE == 3 ? 1 : 2)
#define INPUT_ROW_BYTES ((u64)(INPUTS) * 4)

struct Matrix {
    const DEVICE u8 *weight, *scales, *offsets;
    u64 blocks;
};

struct Raw {
#if BLOCK == 1
    u32 words[1];
#elif WEIGHT_TYPE == 3
    u32 words[BLOCK / 4];
#else
    u32 words[4];
#endif
#if WEIGHT_TYPE == 3
    f32 scale;
#endif
};

#if WEIGHT_TYPE == 3
// With the exponent and mantissa of E4M3 in their places, an f16 is the number divided by 2^8.
INLINE f32 e4m3_to_f32(u32 code) {
    const u32 magnitude = code & 127;
    const f32 value = f16_to_f32((u16)((code & 128) << 8 | magnitude << 7)) * 256.0f;
    return magnitude == 127 ? as_f32(0x7fc00000u) : value;
}

// Two codes. The first is in the low byte.
INLINE void eights_to_f32(u32 codes, THREAD_PTR f32* to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)codes));
    to[0] = f16_to_f32((u16)halves);
    to[1] = f16_to_f32((u16)(halves >> 16));
#else
    to[0] = e4m3_to_f32(codes & 255);
    to[1] = e4m3_to_f32(codes >> 8 & 255);
#endif
}
#endif

// Numbers of FP8 are not yet multiplied by their scale.
struct Block {
    f32 values[BLOCK];
#if WEIGHT_TYPE == 3
    f32 scale;
#endif
};

struct Input {
    f32 values[BLOCK];
};

INLINE Raw load_raw(Matrix m, u32 row, u32 block) {
    const DEVICE u8* from = m.weight + ((u64)row * INPUTS + (u64)block * BLOCK) * WEIGHT_BYTES;
    Raw raw;
#if WEIGHT_TYPE == 3
    const u64 scale = (u64)row * ((INPUTS + GROUP - 1) / GROUP) + block * BLOCK / GROUP;
    raw.scale = as_f32(weights4(m.scales + scale * 4));
#if BLOCK == 1
    raw.words[0] = weights1(from);
#elif BLOCK == 8
    const u32x2 a = weights8(from);
    raw.words[0] = a.x; raw.words[1] = a.y;
#else
    const u32x4 a = weights16(from);
    raw.words[0] = a.x; raw.words[1] = a.y; raw.words[2] = a.z; raw.words[3] = a.w;
#endif
#elif BLOCK == 1
    raw.words[0] = WEIGHT_TYPE == 0 ? weights4(from) : weights2(from);
#else
    const u32x4 a = weights16(from);
    raw.words[0] = a.x; raw.words[1] = a.y; raw.words[2] = a.z; raw.words[3] = a.w;
#endif
    return raw;
}

INLINE Block decode(Raw raw) {
    Block block;
#if WEIGHT_TYPE == 3
    block.scale = raw.scale;
#if BLOCK == 1
    block.values[0] = e4m3_to_f32(raw.words[0] & 255);
#else
    UNROLL for (u32 i = 0; i < BLOCK; i += 2) eights_to_f32(raw.words[i / 4] >> (i % 4 * 8), block.values + i);
#endif
#else
    UNROLL for (u32 i = 0; i < BLOCK; i++) {
#if WEIGHT_TYPE == 0
        block.values[i] = as_f32(raw.words[i]);
#elif WEIGHT_TYPE == 1
        block.values[i] = f16_to_f32((u16)(raw.words[i / 2] >> (i % 2 * 16)));
#else
        block.values[i] = as_f32(i % 2 == 0 ? raw.words[i / 2] << 16 : raw.words[i / 2] & 0xffff0000u);
#endif
    }
#endif
    return block;
}

// A staged row has the first pieces of 16 bytes of all blocks, then the second pieces, and so on: lanes read consecutive
// blocks, and so each piece without conflicts between banks. Planes are a part of 128 bytes apart, so that a row is also
// written without.
#if INPUT_PIECES && BLOCK > 4
#define BLOCK_PIECES (BLOCK / 4)
#define PIECE_PLANE ((BLOCKS + 7) / 8 * 8 + 8 / BLOCK_PIECES)
#define STAGED_PLACE(piece) ((piece) % BLOCK_PIECES * PIECE_PLANE + (piece) / BLOCK_PIECES)
#endif

INLINE Input load_input(const INPUT u8* x, u32 row, u32 block) {
    const INPUT u8* from = x + row * INPUT_ROW_BYTES + (u64)block * BLOCK * 4;
    Input input;
#ifdef STAGED_PLACE
    UNROLL for (u32 p = 0; p < BLOCK_PIECES; p++) {
        const u32x4 a = read16(x + (p * PIECE_PLANE + block) * 16);
        input.values[4 * p] = as_f32(a.x); input.values[4 * p + 1] = as_f32(a.y);
        input.values[4 * p + 2] = as_f32(a.z); input.values[4 * p + 3] = as_f32(a.w);
    }
#elif BLOCK == 1
    input.values[0] = *(const INPUT f32*)from;
#else
    UNROLL for (u32 i = 0; i < BLOCK; i += 4) {
        const u32x4 a = read16(from + i * 4);
        input.values[i] = as_f32(a.x); input.values[i + 1] = as_f32(a.y);
        input.values[i + 2] = as_f32(a.z); input.values[i + 3] = as_f32(a.w);
    }
#endif
    return input;
}

INLINE f32 multiply(Block block, Input input, f32 sum) {
#if WEIGHT_TYPE == 3
    f32 part = 0;
    UNROLL for (u32 i = 0; i < BLOCK; i++) part += block.values[i] * input.values[i];
    return sum + block.scale * part;
#else
    UNROLL for (u32 i = 0; i < BLOCK; i++) sum += block.values[i] * input.values[i];
    return sum;
#endif
}

INLINE f32 weight_at(const THREAD_PTR Block* block, u32 i) {
#if WEIGHT_TYPE == 3
    return block->scale * block->values[i];
#else
    return block->values[i];
#endif
}

INLINE f32 element(Block block, u32 i) {
    f32 found = weight_at(&block, 0);
    UNROLL for (u32 j = 1; j < BLOCK; j++) found = j == i ? weight_at(&block, j) : found;
    return found;
}
