// Product of many f32 rows with f16 or bf16 weights on tensor cores. tf32 is f32 without its last 13 bits of mantissa:
// a weight is exactly representable, and an activation is split into the sum of two. DEEP inputs of each row and
// column are multiplied while the next ones are copied. The reduction order is free, so of each 8 inputs lane t of
// four has inputs 2t and 2t + 1 of both sides.

#define DEEP 16
// Strides of a row and of a column in threadgroup memory, padded to avoid bank conflicts.
#define INPUT_LINE (DEEP * 4 + 32)
#define WEIGHT_LINE (DEEP * 2 + 16)
#define AT_WEIGHTS (ROWS * INPUT_LINE)
#define STAGE_BYTES (AT_WEIGHTS + COLUMNS * WEIGHT_LINE)

INLINE void copy_stage(Bindings in, Place at, u32 first_row, u32 first_out, u32 live, u32 from, THREADGROUP u8* stage) {
    UNROLL for (u32 i = at.in_group; i < ROWS * (DEEP / 4); i += WORKERS) {
        const u32 line = i / (DEEP / 4), chunk = i % (DEEP / 4), first = from + chunk * 4;
        const u32 row = first_row + line < live ? first_row + line : live - 1;
        const bool there = first < INPUTS;
        copy16(stage + line * INPUT_LINE + chunk * 16, in.x + ((u64)row * INPUTS + (there ? first : 0)) * 4, there);
    }
    UNROLL for (u32 i = at.in_group; i < COLUMNS * (DEEP / 8); i += WORKERS) {
        const u32 line = i / (DEEP / 8), chunk = i % (DEEP / 8), first = from + chunk * 8;
        const bool there = first < INPUTS;
        const Column of = column_of(in, first_out, line);
        const DEVICE u8* source = of.matrix.weight + ((u64)of.row * INPUTS + (there ? first : 0)) * 2;
        copy16(stage + AT_WEIGHTS + line * WEIGHT_LINE + chunk * 16, source, there);
    }
}

// Number i of the two in a word, as an f32 whose last 13 bits are zero.
INLINE u32 weight_of(u32 word, u32 i) {
#if WEIGHT_TYPE == 1
    return as_u32(f16_to_f32((u16)(word >> (i * 16))));
#else
    return i == 0 ? word << 16 : word & 0xffff0000u;
#endif
}

// Two inputs of rows g and g + 8 of each tile: rounded to tf32 (truncated), and the remainder as tf32.
struct Rows {
    Quad high[ROW_TILES], low[ROW_TILES];
};

INLINE Rows load_rows(Place at, const THREADGROUP u8* stage, u32 step) {
    Rows rows;
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        UNROLL for (u32 w = 0; w < 4; w++) {
            const u32 row = TOP + m * 16 + w % 2 * 8 + LANE / 4;
            const f32 value = ((const THREADGROUP f32*)(stage + row * INPUT_LINE))[step * 8 + LANE % 4 * 2 + w / 2];
            rows.high[m].v[w] = as_u32(value) & 0xffffe000u;
            rows.low[m].v[w] = as_u32(value - as_f32(rows.high[m].v[w])) & 0xffffe000u;
        }
    }
    return rows;
}

INLINE void multiply_stage(THREAD_PTR Sums* sums, Place at, const THREADGROUP u8* stage) {
    UNROLL for (u32 step = 0; step < DEEP / 8; step++) {
        const Rows rows = load_rows(at, stage, step);
        UNROLL for (u32 n = 0; n < COLUMN_TILES; n++) {
            const u32 column = LEFT + n * 8 + LANE / 4;
            const u32 word = *(const THREADGROUP u32*)(stage + AT_WEIGHTS + column * WEIGHT_LINE + step * 16 + LANE % 4 * 4);
            const u32 b0 = weight_of(word, 0), b1 = weight_of(word, 1);
            UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
                sums->v[m][n] = multiply_tf32(rows.low[m], b0, b1, sums->v[m][n]);
                sums->v[m][n] = multiply_tf32(rows.high[m], b0, b1, sums->v[m][n]);
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
    // A SIMD group may have no live row.
    const bool holds = first_row + TOP < live;
    Sums sums = {};
    THREADGROUP u8* stage = at.shared;
    THREADGROUP u8* other = at.shared + STAGE_BYTES;
    copy_stage(in, at, first_row, first_out, live, 0, stage);
    COPIES_DONE();
    BARRIER();
    for (u32 from = 0; from < INPUTS; from += DEEP) {
        if (from + DEEP < INPUTS) copy_stage(in, at, first_row, first_out, live, from + DEEP, other);
        if (holds) multiply_stage(&sums, at, stage);
        COPIES_DONE();
        BARRIER();
        THREADGROUP u8* const done = stage;
        stage = other;
        other = done;
    }
    store_sums(in, params, at, &sums, first_row, first_out, live);
}
