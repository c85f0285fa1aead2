// Weights whose activations are f32: WEIGHT_TYPE 0 is f32, 1 f16, 2 bf16, 3 FP8, codes of E4M3 with an f32 scale for
// each GROUP weights of a row. A block is BLOCK of them: 16 bytes, or 8 of FP8, if rows are
// aligned to that, otherwise one number.

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
    u32 words[2];
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
#endif

struct Block {
    f32 values[BLOCK];
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
#else
    const u32x2 a = weights8(from);
    raw.words[0] = a.x; raw.words[1] = a.y;
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
    UNROLL for (u32 i = 0; i < BLOCK; i++) {
#if WEIGHT_TYPE == 0
        block.values[i] = as_f32(raw.words[i]);
#elif WEIGHT_TYPE == 1
        block.values[i] = f16_to_f32((u16)(raw.words[i / 2] >> (i % 2 * 16)));
#elif WEIGHT_TYPE == 3
        block.values[i] = raw.scale * e4m3_to_f32(raw.words[i / 4] >> (i % 4 * 8) & 255);
#else
        block.values[i] = as_f32(i % 2 == 0 ? raw.words[i / 2] << 16 : raw.words[i / 2] & 0xffff0000u);
#endif
    }
    return block;
}

INLINE Input load_input(const INPUT u8* x, u32 row, u32 block) {
    const INPUT u8* from = x + row * INPUT_ROW_BYTES + (u64)block * BLOCK * 4;
    Input input;
#if BLOCK == 1
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
    UNROLL for (u32 i = 0; i < BLOCK; i++) sum += block.values[i] * input.values[i];
    return sum;
}

INLINE f32 element(Block block, u32 i) {
    f32 found = block.values[0];
    UNROLL for (u32 j = 1; j < BLOCK; j++) found = j == i ? block.values[j] : found;
    return found;
}
