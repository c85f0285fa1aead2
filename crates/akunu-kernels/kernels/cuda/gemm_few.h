// Product of a few q8 rows on tensor cores, all rows (with ROUTED those of a tile) at once: weights are the rows ("lines") of the matrix
// product, q8 rows its columns. Codes are staged in threadgroup memory as stored, and decoded by the lane that
// multiplies them, so each code is decoded once; scales, and the points of lattices, are decoded before staging.
//
// A SIMD group has OUT_TILES tiles of 16 lines. A line is an output; with gate and up, tiles alternate between the
// two. ACROSS SIMD groups cover different lines. SLICES SIMD groups share the same lines and split the inputs
// (split-K): of the DEEP blocks of an iteration, each takes every SLICES-th.
//
// products.h explains how a block's exact sum of products is scaled.

#define SLICE (SIMD / ACROSS)
#define WORKERS (32 * ACROSS * SLICES)
#define ROWS (8 * ROW_TILES)
#define LINES (16 * OUT_TILES * ACROSS)
#define OUTS (LINES / STREAMS)
// Blocks of weights that a thread loads per iteration.
#define OWN (LINES * DEEP / WORKERS)

// The layout of a stage (one iteration's data) in threadgroup memory. Rows: DEEP blocks each. All else by block, then
// by line or row, with padding between blocks, so that neither adjacent blocks nor adjacent lines conflict in banks.
#define ROW_BYTES (DEEP * 32)
#define SCALE_STRIDE (LINES + 8)
#define ROW_STRIDE (ROWS + 4)
#define LOW_PIECE (LOW_WORDS < 4 ? LOW_WORDS * 4 : 16)
#define LOW_PIECES (LOW_WORDS == 8 ? 2 : 1)
#define AT_LOW (ROWS * ROW_BYTES)
#define AT_HIGH (AT_LOW + DEEP * LOW_PIECES * (LINES + 1) * LOW_PIECE)
#define AT_SCALES (AT_HIGH + DEEP * (LINES + 1) * HIGH_WORDS * 4)
#define AT_OFFSETS (AT_SCALES + DEEP * HALVES * SCALE_STRIDE * 4)
#define AT_ROW_SCALES (AT_OFFSETS + DEEP * HALVES * SCALE_STRIDE * 4 * OFFSETS)
#define STAGE_BYTES ((AT_ROW_SCALES + DEEP * ROW_STRIDE * 4 + 15) / 16 * 16)

// XOR swizzle: the same chunk of eight consecutive rows is in eight different groups of banks.
INLINE u32 chunk_at(u32 row, u32 chunk) { return row * ROW_BYTES + (chunk ^ row % 8) * 16; }

INLINE u32 code_at(u32 depth, u32 line) { return depth * (LINES + 1) + line; }

// Lines g and g + 8 of a tile are adjacent.
INLINE u32 scale_at(u32 depth, u32 half, u32 line) {
    return (depth * HALVES + half) * SCALE_STRIDE + line / 16 * 16 + line % 8 * 2 + line / 8 % 2;
}

// The distance in rows between a thread's copies of chunks, and of scales. For chunks it is a multiple of eight, so
// that all chunks of a thread have the same swizzle.
#define CHUNK_STEP (WORKERS / (DEEP * 2))
#define SCALE_STEP (WORKERS / DEEP)

// The sources of a thread's next copies: the first of its chunks and scales of rows, and the blocks of its lines.
struct Sources {
    const DEVICE u8 *chunk, *row_scale;
    Planes planes[OWN];
    u32 block[OWN];
};

INLINE Sources first_sources(Bindings in, Place at, u32 first_row, u32 first_out) {
    Sources from;
    const DEVICE u8* const x = in.x + first_row * INPUT_ROW_BYTES;
    from.chunk = x + at.in_group / (DEEP * 2) * INPUT_ROW_BYTES + at.in_group % (DEEP * 2) * 16;
    from.row_scale = x + at.in_group / DEEP * INPUT_ROW_BYTES + INPUTS + at.in_group % DEEP * 4;
    UNROLL for (u32 i = 0; i < OWN; i++) {
        const u32 line = (at.in_group + i * WORKERS) / DEEP, o = first_out + (STREAMS == 2 ? line / 32 * 16 + line % 16 : line);
        // Past the last output, use the last one again.
        u32 row = o < OUTPUTS ? o : OUTPUTS - 1;
        from.planes[i] = planes_of(matrix_of(in, STREAMS == 2 ? line / 16 % 2 : 0, &row));
        from.block[i] = row * BLOCKS + at.in_group % DEEP;
    }
    return from;
}

INLINE void advance(THREAD_PTR Sources* from) {
    from->chunk += DEEP * 32;
    from->row_scale += DEEP * 4;
    UNROLL for (u32 i = 0; i < OWN; i++) from->block[i] += DEEP;
}

// `first` is the iteration's first block. Rows that are not live are not written: their columns of the product are
// never stored.
INLINE void copy_rows(const THREAD_PTR Sources* from, Place at, u32 live, u32 first, THREADGROUP u8* stage) {
    const u32 chunk = at.in_group % (DEEP * 2), chunk_row = at.in_group / (DEEP * 2);
    UNROLL for (u32 i = 0; i < ROWS; i += CHUNK_STEP) {
        if (chunk_row + i < live) {
            const bool there = BLOCKS % DEEP == 0 || first + chunk / 2 < BLOCKS;
            const DEVICE u8* source = there ? from->chunk + i * INPUT_ROW_BYTES : from->chunk;
            copy_chunk(stage + chunk_at(chunk_row, chunk) + i * ROW_BYTES, source, there);
        }
    }
    const u32 depth = at.in_group % DEEP, row = at.in_group / DEEP;
    UNROLL for (u32 i = 0; i < ROWS; i += SCALE_STEP) {
        const bool there = BLOCKS % DEEP == 0 || first + depth < BLOCKS;
        if (row + i < live) copy4(stage + AT_ROW_SCALES + (depth * ROW_STRIDE + row + i) * 4, from->row_scale + i * INPUT_ROW_BYTES, there);
    }
}

INLINE void load_weights(const THREAD_PTR Sources* from, Place at, u32 first, THREAD_PTR Raw* raw) {
    const u32 past = BLOCKS % DEEP == 0 || first + at.in_group % DEEP < BLOCKS ? 0 : first + at.in_group % DEEP - (BLOCKS - 1);
    UNROLL for (u32 i = 0; i < OWN; i++) raw[i] = load_block(from->planes[i], from->block[i] - past);
}

INLINE void put_codes(Codes codes, u32 place, THREADGROUP u8* stage) {
#if LOW_WORDS == 2
    const u32x2 low = {codes.low[0], codes.low[1]};
    *(THREADGROUP u32x2*)(stage + AT_LOW + place * LOW_PIECE) = low;
#else
    UNROLL for (u32 k = 0; k < LOW_PIECES; k++) {
        const u32x4 low = {codes.low[4 * k], codes.low[4 * k + 1], codes.low[4 * k + 2], codes.low[4 * k + 3]};
        *(THREADGROUP u32x4*)(stage + AT_LOW + (place + k * DEEP * (LINES + 1)) * LOW_PIECE) = low;
    }
#endif
#if HIGH_WORDS
    UNROLL for (u32 k = 0; k < HIGH_WORDS; k++) ((THREADGROUP u32*)(stage + AT_HIGH))[place * HIGH_WORDS + k] = codes.high[k];
#endif
}

INLINE void put_weights(Place at, u32 first, const THREAD_PTR Raw* raw, THREADGROUP u8* stage) {
    UNROLL for (u32 i = 0; i < OWN; i++) {
        const u32 line = (at.in_group + i * WORKERS) / DEEP, depth = (at.in_group + i * WORKERS) % DEEP;
        const Block block = decode(raw[i]);
#if SCALES >= SCALES_LATTICE
        Codes codes;
        UNROLL for (u32 j = 0; j < 8; j++) codes.low[j] = block.quants[j];
        put_codes(codes, code_at(depth, line), stage);
#else
        put_codes(raw[i].codes, code_at(depth, line), stage);
#endif
        const bool there = BLOCKS % DEEP == 0 || first + depth < BLOCKS;
        UNROLL for (u32 h = 0; h < HALVES; h++) {
            const u32 place = scale_at(depth, h, line);
            const f32 scale = short_scale(block.scale[h]) / (ZERO != 0 ? (f32)(1 << (8 - BITS)) : 1.0f);
            ((THREADGROUP f32*)(stage + AT_SCALES))[place] = there ? scale : 0.0f;
            if (OFFSETS) ((THREADGROUP f32*)(stage + AT_OFFSETS))[place] = there ? block.offset[h] : 0.0f;
        }
    }
}

// Words t and t + 4 of a line's block as int8, where t = LANE % 4. Where ZERO is subtracted from codes it is half
// their range, so after a shift to the top of their bytes only the sign bit has to be flipped: `signs` is 0x80808080, in a
// register, because an instruction takes one constant and has a mask already.
INLINE u32x2 int8_pair(const THREADGROUP u8* stage, u32 place, u32 signs, Place at) {
    const u32 t = LANE % 4;
    u32x2 low = {0, 0}, high = {0, 0};
#if LOW_WORDS == 2
    low = *(const THREADGROUP u32x2*)(stage + AT_LOW + place * LOW_PIECE);
#else
    low.x = *(const THREADGROUP u32*)(stage + AT_LOW + place * 16 + t * 4);
    if (LOW_PIECES == 2) low.y = *(const THREADGROUP u32*)(stage + AT_LOW + (place + DEEP * (LINES + 1)) * 16 + t * 4);
#endif
#if HIGH_WORDS == 2
    high = *(const THREADGROUP u32x2*)(stage + AT_HIGH + place * 8);
#elif HIGH_WORDS == 1
    high.x = *(const THREADGROUP u32*)(stage + AT_HIGH + place * 4);
#endif
#if TABLE_OF
    u32x2 pair;
    look_up(low.x, TABLE, &pair.x, &pair.y);
#else
    u32x2 pair = code_pair(low, high, t);
    if (ZERO != 0) {
        pair.x = (pair.x << (8 - BITS)) ^ signs;
        pair.y = (pair.y << (8 - BITS)) ^ signs;
    }
#if SCALES == SCALES_AFFINE && BITS == 8
    pair.x ^= signs;
    pair.y ^= signs;
#endif
#endif
    return pair;
}

// A block of the SIMD group's lines. Scales are of lines g and g + 8 of each tile, where g = LANE / 4.
struct Tiles {
    Quad quants[OUT_TILES];
    f32 scale[OUT_TILES][HALVES][2];
    f32 offset[OUT_TILES][HALVES][2];
};

INLINE Tiles load_tiles(Place at, const THREADGROUP u8* stage, u32 depth, u32 signs) {
    Tiles tiles;
    UNROLL for (u32 m = 0; m < OUT_TILES; m++) {
        const u32 line = (SIMD % ACROSS * OUT_TILES + m) * 16 + LANE / 4;
        UNROLL for (u32 r = 0; r < 2; r++) {
            const u32x2 pair = int8_pair(stage, code_at(depth, line + 8 * r), signs, at);
            tiles.quants[m].v[r] = pair.x;
            tiles.quants[m].v[2 + r] = pair.y;
        }
        UNROLL for (u32 h = 0; h < HALVES; h++) {
            const u32 place = scale_at(depth, h, line);
            UNROLL for (u32 r = 0; r < 2; r++) {
                tiles.scale[m][h][r] = ((const THREADGROUP f32*)(stage + AT_SCALES))[place + r];
                tiles.offset[m][h][r] = OFFSETS ? ((const THREADGROUP f32*)(stage + AT_OFFSETS))[place + r] : 0.0f;
            }
        }
    }
    return tiles;
}

struct Sums {
    Floats v[OUT_TILES][ROW_TILES];
};

// Accumulates the products with eight rows from 8n on.
INLINE void multiply_rows(THREAD_PTR Sums* sums, const THREAD_PTR Tiles* tiles, u32 n, u32 b0, u32 b1, const THREADGROUP u8* stage, u32 depth,
                          Place at) {
    const THREADGROUP f32* const row_scales = (const THREADGROUP f32*)(stage + AT_ROW_SCALES) + depth * ROW_STRIDE + n * 8 + LANE % 4 * 2;
    const f32 row_scale[2] = {row_scales[0], row_scales[1]};
    UNROLL for (u32 h = 0; h < HALVES; h++) {
        f32 row_sum[2] = {0, 0};
        if (OFFSETS) {
            const Quad ones = {{0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u}};
            const Quad found = products(ones, b0, b1, h, 0);
            UNROLL for (u32 c = 0; c < 2; c++) row_sum[c] = (f32)(i32)found.v[c] * row_scale[c];
        }
        UNROLL for (u32 m = 0; m < OUT_TILES; m++) {
            const Quad found = products(tiles->quants[m], b0, b1, h, START);
            UNROLL for (u32 e = 0; e < 4; e++) {
                const f32 scale = tiles->scale[m][h][e / 2];
                f32 sum = sums->v[m][n].v[e];
                sum = fused(fused(as_f32(found.v[e]), scale, -START_VALUE * scale), row_scale[e % 2], sum);
                if (OFFSETS) sum = fused(tiles->offset[m][h][e / 2], row_sum[e % 2], sum);
                sums->v[m][n].v[e] = sum;
            }
        }
    }
}

// With many rows, unrolling would need registers for two blocks at a time.
#if ROW_TILES < 8
#define EACH_DEPTH UNROLL
#else
#define EACH_DEPTH ROLLED
#endif

// As `chunk_at`: of a slice's blocks, a lane's chunk differs only in bits that no other part of its place has.
INLINE void multiply_stage(THREAD_PTR Sums* sums, Place at, u32 live, const THREADGROUP u8* stage, u32 signs) {
    const u32 row = (ROW_TILES > 1 ? LANE / 16 : 0) * 8 + LANE % 8;
    const THREADGROUP u8* const rows = stage + row * ROW_BYTES;
    const u32 first_chunk = (SLICE * 2 + LANE / 8 % 2) ^ row % 8;
    EACH_DEPTH for (u32 i = 0; i < DEEP / SLICES; i++) {
        const u32 depth = SLICE + i * SLICES, chunk = first_chunk ^ i * SLICES * 2;
        const Tiles tiles = load_tiles(at, stage, depth, signs);
        UNROLL for (u32 n = 0; n < ROW_TILES; n += 2) {
            if (n > 0 && n * 8 >= live) break;
            const Quad b = load_lines(rows + n * 8 * ROW_BYTES + chunk * 16);
            multiply_rows(sums, &tiles, n, b.v[0], b.v[1], stage, depth, at);
            if (ROW_TILES > 1) multiply_rows(sums, &tiles, n + 1, b.v[2], b.v[3], stage, depth, at);
        }
    }
}

// Accumulators go to threadgroup memory, row by row, one area per slice.
#define SUM_STRIDE (LINES + 4)
#define SUM_AREA (ROWS * SUM_STRIDE)

INLINE void put_sums(Place at, const THREAD_PTR Sums* sums, THREADGROUP f32* area) {
    UNROLL for (u32 m = 0; m < OUT_TILES; m++) {
        UNROLL for (u32 n = 0; n < ROW_TILES; n++) {
            UNROLL for (u32 e = 0; e < 4; e++) {
                const u32 line = (SIMD % ACROSS * OUT_TILES + m) * 16 + e / 2 * 8 + LANE / 4;
                area[(n * 8 + LANE % 4 * 2 + e % 2) * SUM_STRIDE + line] = sums->v[m][n].v[e];
            }
        }
    }
}

INLINE f32 sum_of(const THREADGROUP f32* slices) {
    f32 sum = slices[0];
    UNROLL for (u32 s = 1; s < SLICES; s++) sum += slices[s * SUM_AREA];
    return sum;
}

// Adds the slices up; a SIMD group stores 32 consecutive outputs of a row at a time.
INLINE void store_sums(Bindings in, Params params, Place at, const THREADGROUP f32* areas, u32 first_row, u32 first_out, u32 live) {
    for (u32 i = SIMD; i < live * (OUTS / 32); i += SIMDS) {
        const u32 line = i / (OUTS / 32), row = first_row + line, beside = i % (OUTS / 32) * 32 + LANE, o = first_out + beside;
        if (o - LANE >= OUTPUTS) continue;
        Addend added = {};
        if (o < OUTPUTS) added = addend(in, row, o);
        const THREADGROUP f32* const sums = areas + line * SUM_STRIDE + (STREAMS == 2 ? beside / 16 * 32 + beside % 16 : beside);
        const f32 value = finished(params, sum_of(sums), STREAMS == 2 ? sum_of(sums + 16) : 0.0f, added);
        if (OUT_F32 && o < OUTPUTS) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
        if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, o / 32, value, LANE);
    }
}

BODY(gemm_few) {
    const Span span = rows_of(&in, pass, at.group_y, ROWS, LANE);
    const u32 first_row = span.first, first_out = at.group_x * OUTS;
    if (ROUTED && span.first >= span.end) return;
    Sources from = first_sources(in, at, first_row, first_out);
    Raw raw[OWN];
    load_weights(&from, at, 0, raw);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (span.first >= span.end) return;
    const u32 live = span.end - span.first;
    // The compiler keeps in a register what it does not know to be constant.
    const u32 signs = 0x80808080u ^ live >> 31;
    Sums sums = {};
    THREADGROUP u8* stage = at.shared;
    THREADGROUP u8* other = at.shared + STAGE_BYTES;
    copy_rows(&from, at, live, 0, stage);
    put_weights(at, 0, raw, stage);
    COPIES_DONE();
    BARRIER();
    for (u32 first = 0; first < BLOCKS; first += DEEP) {
        const u32 next = first + DEEP;
        if (next < BLOCKS) {
            advance(&from);
            copy_rows(&from, at, live, next, other);
            load_weights(&from, at, next, raw);
        }
        multiply_stage(&sums, at, live, stage, signs);
        if (next < BLOCKS) {
            put_weights(at, next, raw, other);
            COPIES_DONE();
        }
        BARRIER();
        THREADGROUP u8* const done = stage;
        stage = other;
        other = done;
    }
    TG_ARRAY(f32, areas, 0);
    put_sums(at, &sums, areas + SLICE * SUM_AREA);
    BARRIER();
    store_sums(in, params, at, areas, first_row, first_out, live);
}
