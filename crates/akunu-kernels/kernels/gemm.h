// Product of many rows: a threadgroup computes a tile of 64 rows × 64 outputs, each thread 4 × 4 of it. DEEP blocks
// along the inputs are decoded to threadgroup memory per iteration. Words of a struct are stored SIDE apart, so that
// adjacent threads hit different banks.

#define SIDE 64
#define BLOCK_WORDS (sizeof(Block) / 4)
#define INPUT_WORDS (sizeof(Input) / 4)
#define INPUT_SPACE (DEEP * INPUT_WORDS * SIDE)

INLINE void put_block(THREADGROUP u32* space, u32 depth, u32 column, Block block) {
    const THREAD_PTR u32* words = (const THREAD_PTR u32*)&block;
    UNROLL for (u32 i = 0; i < BLOCK_WORDS; i++) space[(depth * BLOCK_WORDS + i) * SIDE + column] = words[i];
}

INLINE Block get_block(const THREADGROUP u32* space, u32 depth, u32 column) {
    Block block;
    THREAD_PTR u32* words = (THREAD_PTR u32*)&block;
    UNROLL for (u32 i = 0; i < BLOCK_WORDS; i++) words[i] = space[(depth * BLOCK_WORDS + i) * SIDE + column];
    return block;
}

INLINE void put_input(THREADGROUP u32* space, u32 depth, u32 column, Input input) {
    const THREAD_PTR u32* words = (const THREAD_PTR u32*)&input;
    UNROLL for (u32 i = 0; i < INPUT_WORDS; i++) space[(depth * INPUT_WORDS + i) * SIDE + column] = words[i];
}

INLINE Input get_input(const THREADGROUP u32* space, u32 depth, u32 column) {
    Input input;
    THREAD_PTR u32* words = (THREAD_PTR u32*)&input;
    UNROLL for (u32 i = 0; i < INPUT_WORDS; i++) words[i] = space[(depth * INPUT_WORDS + i) * SIDE + column];
    return input;
}

// Stages DEEP blocks from `from` on of the group's rows and outputs; zeros where there are none.
INLINE void stage(Bindings in, Place at, Span span, u32 from, THREADGROUP u32* inputs, THREADGROUP u32* blocks) {
    for (u32 i = at.in_group; i < SIDE * DEEP; i += THREADS) {
        const u32 column = i / DEEP, depth = i % DEEP, row = span.first + column, b = from + depth;
        Input input = {};
        if (row < span.end && b < BLOCKS) input = load_input(in.x, row, b);
        put_input(inputs, depth, column, input);
        UNROLL for (u32 s = 0; s < STREAMS; s++) {
            u32 o = at.group_x * SIDE + column;
            Block block = {};
            if (o < OUTPUTS && b < BLOCKS) {
                const Matrix m = matrix_of(in, s, &o);
                block = decode(load_raw(m, o, b));
            }
            put_block(blocks + s * (DEEP * BLOCK_WORDS * SIDE), depth, column, block);
        }
    }
}

BODY(gemm) {
    const Span span = rows_of(&in, pass, at.group_y, SIDE, LANE);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (span.first >= span.end) return;
    TG_ARRAY(u32, inputs, 0);
    THREADGROUP u32* const blocks = inputs + INPUT_SPACE;
    const u32 across = at.in_group % 16, down = at.in_group / 16;
    f32 sums[STREAMS][4][4];
    UNROLL for (u32 s = 0; s < STREAMS; s++)
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 j = 0; j < 4; j++) sums[s][i][j] = 0;

    for (u32 from = 0; from < BLOCKS; from += DEEP) {
        stage(in, at, span, from, inputs, blocks);
        BARRIER();
        for (u32 depth = 0; depth < DEEP; depth++) {
            Input input[4];
            UNROLL for (u32 i = 0; i < 4; i++) input[i] = get_input(inputs, depth, down + 16 * i);
            UNROLL for (u32 s = 0; s < STREAMS; s++)
                UNROLL for (u32 j = 0; j < 4; j++) {
                    const Block block = get_block(blocks + s * (DEEP * BLOCK_WORDS * SIDE), depth, across + 16 * j);
                    UNROLL for (u32 i = 0; i < 4; i++) sums[s][i][j] = multiply(block, input[i], sums[s][i][j]);
                }
        }
        BARRIER();
    }

    TG_ARRAY(f32, together, 0);
    UNROLL for (u32 i = 0; i < 4; i++)
        UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 row = span.first + down + 16 * i, o = at.group_x * SIDE + across + 16 * j;
            f32 value = 0;
            if (row < span.end && o < OUTPUTS) {
                value = finished(params, sums[0][i][j], sums[STREAMS - 1][i][j], addend(in, row, o));
                if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
            }
            if (OUT_Q8) together[(down + 16 * i) * SIDE + across + 16 * j] = value;
        }
    if (OUT_Q8) {
        BARRIER();
        for (u32 i = SIMD; i < SIDE * 2; i += SIMDS) {
            const u32 row = span.first + i / 2, o = at.group_x * SIDE + i % 2 * 32;
            if (row >= span.end || o >= OUTPUTS) continue;
            store_q8(in.out_q8 + row * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, o / 32, together[i * 32 + LANE], LANE);
        }
    }
}
