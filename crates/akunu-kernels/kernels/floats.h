// Unquantised weights: WEIGHT_TYPE 0 is f32, 1 f16, 2 bf16. A block is BLOCK of them: 16 bytes if rows are aligned to
// that, otherwise one number. Activations are f32.

#define BLOCKS (INPUTS / BLOCK)
#define WEIGHT_BYTES (WEIGHT_TYPE == 0 ? 4 : 2)
#define INPUT_ROW_BYTES ((u64)(INPUTS) * 4)

struct Matrix {
    const DEVICE u8 *weight, *scales, *offsets;
    u64 blocks;
};

struct Raw {
#if BLOCK == 1
    u32 words[1];
#else
    u32 words[4];
#endif
};

struct Block {
    f32 values[BLOCK];
};

struct Input {
    f32 values[BLOCK];
};

INLINE Raw load_raw(Matrix m, u32 row, u32 block) {
    const DEVICE u8* from = m.weight + ((u64)row * INPUTS + (u64)block * BLOCK) * WEIGHT_BYTES;
    Raw raw;
#if BLOCK == 1
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
