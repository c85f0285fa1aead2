// Product of many f32 rows with f32, f16 or bf16 weights on tensor cores. tf32 is f32 without its last 13 bits of
// mantissa, so it has 11: a weight of 16 bits is exactly representable, and of a number in f32 two parts have 22 of its
// 24. The product of two second parts is left out. An infinite number gives a NaN. DEEP inputs of each row and column
// are multiplied while those of the STAGES − 1 next iterations are copied. The reduction order is free, so of each 8
// inputs lane t of four has inputs 2t and 2t + 1 of both sides. Of the tiles of 16 rows only those with live rows are
// copied and multiplied.

#define DEEP 16
// Strides of a row and of a column in threadgroup memory, padded to avoid bank conflicts.
#define INPUT_LINE (DEEP * 4 + 32)
#define WEIGHT_LINE (DEEP * WEIGHT_BYTES + (WEIGHT_TYPE == 0 ? 32 : 16))
#define CHUNK_WEIGHTS (16 / WEIGHT_BYTES)
#define AT_WEIGHTS (ROWS * INPUT_LINE)
#define STAGE_BYTES (AT_WEIGHTS + COLUMNS * WEIGHT_LINE)

INLINE void copy_stage(Bindings in, Place at, u32 first_row, u32 first_out, u32 live, u32 from, THREADGROUP u8* stage) {
    const u32 lines = (live - first_row + 15) / 16 * 16;
    UNROLL for (u32 i = at.in_group; i < ROWS * (DEEP / 4); i += WORKERS) {
        const u32 line = i / (DEEP / 4), chunk = i % (DEEP / 4), first = from + chunk * 4;
        if (line >= lines) break;
        const u32 row = first_row + line < live ? first_row + line : live - 1;
        const bool there = first < INPUTS;
        copy16(stage + line * INPUT_LINE + chunk * 16, in.x + ((u64)row * INPUTS + (there ? first : 0)) * 4, there);
    }
    UNROLL for (u32 i = at.in_group; i < COLUMNS * (DEEP / CHUNK_WEIGHTS); i += WORKERS) {
        const u32 line = i / (DEEP / CHUNK_WEIGHTS), chunk = i % (DEEP / CHUNK_WEIGHTS);
        const u32 first = from + chunk * CHUNK_WEIGHTS;
        const bool there = first < INPUTS;
        const Column of = column_of(in, first_out, line);
        const DEVICE u8* source = of.matrix.weight + ((u64)of.row * INPUTS + (there ? first : 0)) * WEIGHT_BYTES;
        copy16(stage + AT_WEIGHTS + line * WEIGHT_LINE + chunk * 16, source, there);
    }
}

// A number as the sum of two in tf32, each truncated.
struct Split {
    u32 high, low;
};

INLINE Split split(f32 value) {
    Split s;
    s.high = as_u32(value) & 0xffffe000u;
    s.low = as_u32(value - as_f32(s.high)) & 0xffffe000u;
    return s;
}

struct Pair {
    Split first, second;
};

// Pair `place` of a line of weights.
INLINE Pair weights_of(const THREADGROUP u8* line, u32 place) {
    Pair pair = {};
#if WEIGHT_TYPE == 0
    pair.first = split(((const THREADGROUP f32*)line)[place * 2]);
    pair.second = split(((const THREADGROUP f32*)line)[place * 2 + 1]);
#else
    const u32 word = ((const THREADGROUP u32*)line)[place];
#if WEIGHT_TYPE == 1
    pair.first.high = as_u32(f16_to_f32((u16)word));
    pair.second.high = as_u32(f16_to_f32((u16)(word >> 16)));
#else
    pair.first.high = word << 16;
    pair.second.high = word & 0xffff0000u;
#endif
#endif
    return pair;
}

// Two inputs of rows g and g + 8 of each tile.
struct Rows {
    Quad high[ROW_TILES], low[ROW_TILES];
};

// Of the first `tiles` tiles.
INLINE Rows load_rows(Place at, const THREADGROUP u8* stage, u32 step, u32 tiles) {
    Rows rows;
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        if (m >= tiles) break;
        UNROLL for (u32 w = 0; w < 4; w++) {
            const u32 row = TOP + m * 16 + w % 2 * 8 + LANE / 4;
            const f32 value = ((const THREADGROUP f32*)(stage + row * INPUT_LINE))[step * 8 + LANE % 4 * 2 + w / 2];
            const Split s = split(value);
            rows.high[m].v[w] = s.high;
            rows.low[m].v[w] = s.low;
        }
    }
    return rows;
}

INLINE void multiply_stage(THREAD_PTR Sums* sums, Place at, const THREADGROUP u8* stage, u32 tiles) {
    UNROLL for (u32 step = 0; step < DEEP / 8; step++) {
        const Rows rows = load_rows(at, stage, step, tiles);
        UNROLL for (u32 n = 0; n < COLUMN_TILES; n++) {
            const u32 column = LEFT + n * 8 + LANE / 4;
            const THREADGROUP u8* line = stage + AT_WEIGHTS + column * WEIGHT_LINE;
            const Pair w = weights_of(line, step * 4 + LANE % 4);
            UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
                if (m >= tiles) break;
                sums->v[m][n] = multiply_tf32(rows.low[m], w.first.high, w.second.high, sums->v[m][n]);
#if WEIGHT_TYPE == 0
                sums->v[m][n] = multiply_tf32(rows.high[m], w.first.low, w.second.low, sums->v[m][n]);
#endif
                sums->v[m][n] = multiply_tf32(rows.high[m], w.first.high, w.second.high, sums->v[m][n]);
            }
        }
    }
}

// Threadgroups with the same outputs are adjacent in launch order, so weights are read from device memory once.
BODY(gemm_tf32) {
    const Span span = rows_of(&in, pass, at.group_x, ROWS, LANE);
    const u32 first_row = span.first, live = span.end, first_out = at.group_y * OUTS;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (first_row >= live) return;
    // Tiles of the SIMD group that have live rows; maybe none.
    const u32 tiles = first_row + TOP < live ? (live - first_row - TOP + 15) / 16 : 0;
    Sums sums = {};
    UNROLL for (u32 i = 0; i < STAGES - 1; i++) {
        if (i * DEEP < INPUTS) copy_stage(in, at, first_row, first_out, live, i * DEEP, at.shared + i * STAGE_BYTES);
        COPY_GROUP();
    }
    u32 stage = 0;
    for (u32 from = 0; from < INPUTS; from += DEEP) {
        COPIES_DONE_BUT(STAGES - 2);
        // The stage before this one has been multiplied as well.
        BARRIER();
        const u32 next = from + (STAGES - 1) * DEEP, last = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < INPUTS) copy_stage(in, at, first_row, first_out, live, next, at.shared + last * STAGE_BYTES);
        COPY_GROUP();
        const THREADGROUP u8* const now = at.shared + stage * STAGE_BYTES;
        // Without branches in between if all tiles are live.
        if (tiles >= ROW_TILES) multiply_stage(&sums, at, now, ROW_TILES);
        else if (tiles > 0) multiply_stage(&sums, at, now, tiles);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    BARRIER();
    store_sums(in, params, at, &sums, first_row, first_out, live);
}
