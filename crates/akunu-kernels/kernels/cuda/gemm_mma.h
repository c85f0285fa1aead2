// Product of many q8 rows on tensor cores. While DEEP blocks (2) are multiplied the next ones are loaded: activations
// by asynchronous copies, weights to registers, from where they are decoded to int8 in threadgroup memory.
//
// products.h explains how a block's exact sum of products is scaled.

// Blocks of weights that a thread loads per iteration.
#define OWN (COLUMNS * DEEP / WORKERS)

// Offsets in a stage (one iteration's data), of which threadgroup memory has two (double buffering). A line is DEEP
// blocks of a row or column, in chunks of 16 bytes.
#define LINE (DEEP * 32)
#define AT_WEIGHTS (ROWS * LINE)
#define AT_INPUT_SCALES (AT_WEIGHTS + COLUMNS * LINE)
#define AT_SCALES (AT_INPUT_SCALES + ROWS * DEEP * 4)
#define AT_OFFSETS (AT_SCALES + COLUMNS * DEEP * HALVES * 8)
#define STAGE_BYTES (AT_OFFSETS + COLUMNS * DEEP * HALVES * 4 * OFFSETS)

// XOR swizzle: the same chunk of eight consecutive lines is in eight different groups of banks.
INLINE u32 chunk_at(u32 line, u32 chunk) { return line * LINE + (chunk ^ line / 2 % 4) * 16; }

// For each half, the scales of all columns are adjacent.
INLINE u32 scale_at(u32 column, u32 depth, u32 half) { return (depth * HALVES + half) * COLUMNS + column; }

INLINE void copy_inputs(Bindings in, Place at, u32 first_row, u32 live, u32 from, THREADGROUP u8* stage) {
    UNROLL for (u32 i = at.in_group; i < ROWS * DEEP * 2; i += WORKERS) {
        const u32 line = i / (DEEP * 2), chunk = i % (DEEP * 2), block = from + chunk / 2;
        // Past the last row, use the last one again; past the last block, zeros.
        const u32 row = first_row + line < live ? first_row + line : live - 1;
        const bool there = block < BLOCKS;
        const DEVICE u8* source = in.x + row * INPUT_ROW_BYTES + (there ? from * 32 + chunk * 16 : 0);
        copy_chunk(stage + chunk_at(line, chunk), source, there);
    }
    UNROLL for (u32 i = at.in_group; i < ROWS * DEEP; i += WORKERS) {
        const u32 line = i / DEEP, block = from + i % DEEP;
        const u32 row = first_row + line < live ? first_row + line : live - 1;
        const bool there = block < BLOCKS;
        const DEVICE u8* scales = in.x + row * INPUT_ROW_BYTES + INPUTS;
        copy4(stage + AT_INPUT_SCALES + i * 4, scales + (there ? block : 0) * 4, there);
    }
}

INLINE void load_weights(Bindings in, Place at, u32 first_out, u32 from, THREAD_PTR Raw* raw) {
    UNROLL for (u32 i = 0; i < OWN; i++) {
        const u32 column = (at.in_group + i * WORKERS) / DEEP, block = from + (at.in_group + i * WORKERS) % DEEP;
        const Column of = column_of(in, first_out, column);
        raw[i] = load_raw(of.matrix, of.row, block < BLOCKS ? block : BLOCKS - 1);
    }
}

INLINE void put_weights(Place at, u32 from, const THREAD_PTR Raw* raw, THREADGROUP u8* stage) {
    UNROLL for (u32 i = 0; i < OWN; i++) {
        const u32 column = (at.in_group + i * WORKERS) / DEEP, depth = (at.in_group + i * WORKERS) % DEEP;
        Block block = decode(raw[i]);
        if (ZERO != 0) {
            // Codes are below 2 · ZERO, so no byte carries over.
            UNROLL for (u32 j = 0; j < 8; j++) block.quants[j] = (block.quants[j] + (128 - ZERO) * 0x01010101u) ^ 0x80808080u;
        }
        UNROLL for (u32 h = 0; h < 2; h++) {
            const u32x4 words = {block.quants[4 * h], block.quants[4 * h + 1], block.quants[4 * h + 2], block.quants[4 * h + 3]};
            *(THREADGROUP u32x4*)(stage + AT_WEIGHTS + chunk_at(column, depth * 2 + h)) = words;
        }
        const bool there = from + depth < BLOCKS;
        UNROLL for (u32 h = 0; h < HALVES; h++) {
            const f32 scale = there ? short_scale(block.scale[h]) : 0.0f;
            THREADGROUP f32* to = (THREADGROUP f32*)(stage + AT_SCALES) + scale_at(column, depth, h) * 2;
            to[0] = scale;
            to[1] = -START_VALUE * scale;
            if (OFFSETS) ((THREADGROUP f32*)(stage + AT_OFFSETS))[scale_at(column, depth, h)] = there ? block.offset[h] : 0.0f;
        }
    }
}

// A block of the SIMD group's rows: rows g and g + 8 of each tile.
struct Rows {
    Quad quants[ROW_TILES];
    f32 scale[ROW_TILES][2];
    // The sum of a row's elements times the row's scale.
    f32 sum[ROW_TILES][2][HALVES];
};

INLINE Rows load_rows(Place at, const THREADGROUP u8* stage, u32 depth) {
    Rows rows;
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        rows.quants[m] = load_lines(stage + chunk_at(TOP + m * 16 + LANE % 16, depth * 2 + LANE / 16));
        UNROLL for (u32 r = 0; r < 2; r++) {
            const u32 row = TOP + m * 16 + r * 8 + LANE / 4;
            rows.scale[m][r] = ((const THREADGROUP f32*)(stage + AT_INPUT_SCALES))[row * DEEP + depth];
        }
        if (OFFSETS) {
            // A product with ones: every column of it is the sum.
            UNROLL for (u32 h = 0; h < HALVES; h++) {
                const Quad sums = products(rows.quants[m], 0x01010101u, 0x01010101u, h, 0);
                UNROLL for (u32 r = 0; r < 2; r++) rows.sum[m][r][h] = (f32)(i32)sums.v[2 * r] * rows.scale[m][r];
            }
        }
    }
    return rows;
}

INLINE void multiply_column(THREAD_PTR Sums* sums, const THREAD_PTR Rows* rows, u32 n, u32 b0, u32 b1, const THREADGROUP u8* stage,
                            u32 column, u32 depth) {
    UNROLL for (u32 h = 0; h < HALVES; h++) {
        const u32 first = scale_at(column, depth, h);
        // The scales and −START_VALUE · scale of two columns.
        const f32x4 s = *(const THREADGROUP f32x4*)(stage + AT_SCALES + first * 8);
        const f32 scale[2] = {s.x, s.z}, less[2] = {s.y, s.w};
        const THREADGROUP f32* offset = (const THREADGROUP f32*)(stage + AT_OFFSETS) + first;
        UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
            const Quad found = products(rows->quants[m], b0, b1, h, START);
            UNROLL for (u32 e = 0; e < 4; e++) {
                f32 sum = sums->v[m][n].v[e];
                sum = fused(fused(as_f32(found.v[e]), scale[e % 2], less[e % 2]), rows->scale[m][e / 2], sum);
                if (OFFSETS) sum = fused(offset[e % 2], rows->sum[m][e / 2][h], sum);
                sums->v[m][n].v[e] = sum;
            }
        }
    }
}

INLINE void multiply_stage(THREAD_PTR Sums* sums, Place at, const THREADGROUP u8* stage) {
    UNROLL for (u32 depth = 0; depth < DEEP; depth++) {
        const Rows rows = load_rows(at, stage, depth);
        UNROLL for (u32 n = 0; n < COLUMN_TILES; n += 2) {
            const u32 first = LEFT + n * 8, line = first + LANE / 16 * 8 + LANE % 8;
            const Quad b = load_lines(stage + AT_WEIGHTS + chunk_at(line, depth * 2 + LANE / 8 % 2));
            multiply_column(sums, &rows, n, b.v[0], b.v[1], stage, first + LANE % 4 * 2, depth);
            multiply_column(sums, &rows, n + 1, b.v[2], b.v[3], stage, first + 8 + LANE % 4 * 2, depth);
        }
    }
}

// Threadgroups with the same outputs are adjacent in launch order, so weights are read from device memory once.
BODY(gemm_mma) {
    const Span span = rows_of(&in, pass, at.group_x, ROWS, LANE);
    const u32 first_row = span.first, live = span.end, first_out = at.group_y * OUTS;
    if (ROUTED && first_row >= live) return;
    Raw raw[OWN];
    load_weights(in, at, first_out, 0, raw);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (first_row >= live) return;
    // A SIMD group may have no live row.
    const bool holds = first_row + TOP < live;
    Sums sums = {};
    THREADGROUP u8* stage = at.shared;
    THREADGROUP u8* other = at.shared + STAGE_BYTES;
    copy_inputs(in, at, first_row, live, 0, stage);
    put_weights(at, 0, raw, stage);
    COPIES_DONE();
    BARRIER();
    for (u32 from = 0; from < BLOCKS; from += DEEP) {
        const u32 next = from + DEEP;
        if (next < BLOCKS) {
            copy_inputs(in, at, first_row, live, next, other);
            load_weights(in, at, first_out, next, raw);
        }
        if (holds) multiply_stage(&sums, at, stage);
        if (next < BLOCKS) {
            put_weights(at, next, raw, other);
            COPIES_DONE();
        }
        BARRIER();
        THREADGROUP u8* const done = stage;
        stage = other;
        other = done;
    }
    store_sums(in, params, at, &sums, first_row, first_out, live);
}
