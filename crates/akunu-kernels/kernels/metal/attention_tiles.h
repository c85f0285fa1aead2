// Attention of many rows with simdgroup matrices of 8 × 8, for every cache type. A threadgroup has LINES query lines
// (a line is one head of one row), a SIMD group 8 of them. Per iteration SPAN positions of keys and values are staged
// in threadgroup memory.
//
// Nothing is rounded: f16 keys and values stay f16, all else is f32. Which lane holds which element of a simdgroup
// matrix is not specified, so scores go through threadgroup memory, where four lanes process a line, and the
// accumulated lines are rescaled by multiplying with a diagonal matrix.

#define WORKERS (4 * LINES)
#define LOWEST -1e30f
#define LOG2_E 1.44269504f
#define DIM_TILES (HEAD_DIM / 8)

#if KV_TYPE == 1
typedef HalfTile CacheTile;
typedef u16 Number;
#else
typedef Tile CacheTile;
typedef f32 Number;
#endif

// Row strides of queries, cached rows and scores. 16 bytes of padding avoid bank conflicts.
#define LINE_STRIDE (HEAD_DIM + 4)
#define CACHE_STRIDE (HEAD_DIM + (KV_TYPE == 1 ? 8 : 4))
#define SCORE_STRIDE (SPAN + 4)
// Offsets in threadgroup memory: queries (later the output); keys; values; scores and a diagonal for each SIMD group.
#define AT_KEYS (LINES * LINE_STRIDE * 4)
#define AT_VALUES (AT_KEYS + SPAN * CACHE_STRIDE * (KV_TYPE == 1 ? 2 : 4))
#define AT_SCORES (AT_VALUES + SPAN * CACHE_STRIDE * (KV_TYPE == 1 ? 2 : 4))
#define SCORE_FLOATS (8 * SCORE_STRIDE + 64)

// The online softmax state of a line. Four lanes share a line, each with every fourth score.
struct Line {
    // The visible positions; empty for padding lines.
    u32 from, end;
    f32 most, total;
};

struct Output {
    Tile sums[DIM_TILES];
};

// The row and head of a line; `there` is false for padding lines.
struct Source {
    u32 row, head;
    bool there;
};

INLINE Source source_of(u32 line, u32 first_head, u32 start, u32 end) {
    Source source;
    source.row = start + line / HEADS_HERE;
    source.head = first_head + line % HEADS_HERE;
    source.there = source.row < end && line < TILE_ROWS * HEADS_HERE && source.head / GROUP == first_head / GROUP;
    return source;
}

INLINE void stage_queries(Bindings in, Params params, u32 first_head, u32 start, u32 end, THREADGROUP f32* queries, Place at) {
    UNROLL for (u32 i = at.in_group; i < LINES * (HEAD_DIM / 4); i += WORKERS) {
        const u32 line = i / (HEAD_DIM / 4), d = i % (HEAD_DIM / 4) * 4;
        const Source source = source_of(line, first_head, start, end);
        u32x4 four = {0, 0, 0, 0};
        f32 scale = 0;
        if (source.there) {
            four = read16(in.q + (((u64)source.row * HEADS + source.head) * HEAD_DIM + d) * 4);
            scale = QUERY_SCALE(in, params, ((const DEVICE Row*)in.rows)[source.row]);
        }
        THREADGROUP f32* to = queries + line * LINE_STRIDE + d;
        to[0] = as_f32(four.x) * scale;
        to[1] = as_f32(four.y) * scale;
        to[2] = as_f32(four.z) * scale;
        to[3] = as_f32(four.w) * scale;
    }
}

// Eight consecutive numbers of a cached row, the first at a multiple of 8.
struct Eight {
    Number v[8];
};

INLINE Eight load_eight(const DEVICE u8* row, u32 first) {
    Eight eight;
#if KV_TYPE == 0
    const u32x4 a = read16(row + first * 4), b = read16(row + first * 4 + 16);
    eight.v[0] = as_f32(a.x); eight.v[1] = as_f32(a.y); eight.v[2] = as_f32(a.z); eight.v[3] = as_f32(a.w);
    eight.v[4] = as_f32(b.x); eight.v[5] = as_f32(b.y); eight.v[6] = as_f32(b.z); eight.v[7] = as_f32(b.w);
#elif KV_TYPE == 1
    const u32x4 a = read16(row + first * 2);
    const u32 words[4] = {a.x, a.y, a.z, a.w};
    UNROLL for (u32 i = 0; i < 8; i++) eight.v[i] = (u16)(words[i / 2] >> (i % 2 * 16));
#else
    const DEVICE u16* block = (const DEVICE u16*)(row + first / 32 * 34);
    const f32 scale = f16_to_f32(block[0]);
    UNROLL for (u32 i = 0; i < 4; i++) {
        const u32 two = block[1 + first % 32 / 2 + i];
        eight.v[2 * i] = scale * (f32)(i8)(two & 255);
        eight.v[2 * i + 1] = scale * (f32)(i8)(two >> 8);
    }
#endif
    return eight;
}

// Stages SPAN positions, the first of which is row `cache`; they are in one block. Those after the first `count` become
// zeros: their weight is 0, and 0 · garbage may be NaN.
INLINE void stage_span(const DEVICE u8* cache, u32 count, THREADGROUP Number* span, Place at) {
    UNROLL for (u32 i = at.in_group; i < SPAN * DIM_TILES; i += WORKERS) {
        const u32 position = i / DIM_TILES, first = i % DIM_TILES * 8;
        Eight eight = {};
        if (position < count) eight = load_eight(cache + position * KV_ROW_BYTES, first);
        THREADGROUP Number* to = span + position * CACHE_STRIDE + first;
        UNROLL for (u32 k = 0; k < 8; k++) to[k] = eight.v[k];
    }
}

INLINE void score(const THREADGROUP f32* queries, const THREADGROUP Number* keys, THREADGROUP f32* scores) {
    Tile sums[SPAN / 8];
    UNROLL for (u32 n = 0; n < SPAN / 8; n++) sums[n] = filled_tile(0);
    UNROLL for (u32 d = 0; d < DIM_TILES; d++) {
        Tile query;
        load_tile(&query, queries + d * 8, LINE_STRIDE);
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            CacheTile key;
            load_tile_transposed(&key, keys + n * 8 * CACHE_STRIDE + d * 8, CACHE_STRIDE);
            multiply_tiles(&sums[n], &query, &key);
        }
    }
    UNROLL for (u32 n = 0; n < SPAN / 8; n++) store_tile(&sums[n], scores + n * 8, SCORE_STRIDE);
}

// Multiplies each line by its element of the diagonal matrix.
INLINE void scale_lines(THREAD_PTR Output* out, const THREADGROUP f32* diagonal) {
    Tile factors;
    load_tile(&factors, diagonal, 8);
    UNROLL for (u32 d = 0; d < DIM_TILES; d++) {
        Tile scaled = filled_tile(0);
        multiply_tiles(&scaled, &factors, &out->sums[d]);
        out->sums[d] = scaled;
    }
}

// Turns scores into softmax weights, updates the running maximum and sum, and rescales what was accumulated before.
INLINE void online_softmax(THREADGROUP f32* scores, THREADGROUP f32* diagonal, THREAD_PTR Line* line, THREAD_PTR Output* out, u32 base, f32 cap, Place at) {
    THREADGROUP f32* mine = scores + LANE / 4 * SCORE_STRIDE + LANE % 4;
    f32 values[SPAN / 4], most = line->most;
    UNROLL for (u32 i = 0; i < SPAN / 4; i++) {
        const u32 position = base + 4 * i + LANE % 4;
        values[i] = mine[4 * i];
        if (cap != 0) values[i] = cap * TANH(values[i] / cap);
        if (position < line->from || position >= line->end) values[i] = 2 * LOWEST;
        most = MAX_F32(most, values[i]);
    }
    most = MAX_F32(most, SIMD_XOR(most, 1));
    most = MAX_F32(most, SIMD_XOR(most, 2));
    const f32 keep = EXP2((line->most - most) * LOG2_E);
    line->most = most;
    line->total *= keep;
    UNROLL for (u32 i = 0; i < SPAN / 4; i++) {
        const f32 weight = EXP2(fused(values[i], LOG2_E, -most * LOG2_E));
        line->total += weight;
        mine[4 * i] = weight;
    }
    if (LANE % 4 == 0) diagonal[LANE / 4 * 9] = keep;
    SIMD_SYNC();
    // The running maximum rarely changes after the first few iterations.
    if (SIMD_MAX_U32(keep != 1.0f ? 1 : 0) != 0) scale_lines(out, diagonal);
}

INLINE void add_values(THREAD_PTR Output* out, const THREADGROUP f32* weights, const THREADGROUP Number* values) {
    UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
        Tile weight;
        load_tile(&weight, weights + n * 8, SCORE_STRIDE);
        UNROLL for (u32 d = 0; d < DIM_TILES; d++) {
            CacheTile value;
            load_tile(&value, values + n * 8 * CACHE_STRIDE + d * 8, CACHE_STRIDE);
            multiply_tiles(&out->sums[d], &weight, &value);
        }
    }
}

// The accumulators go to threadgroup memory in place of the queries; then a SIMD group writes 32 consecutive elements
// of a row at a time.
INLINE void store_lines(Bindings in, Line line, THREAD_PTR Output* out, THREADGROUP f32* lines, THREADGROUP f32* diagonal, u32 first_head,
                        u32 start, u32 end, Place at) {
    f32 total = line.total;
    total += SIMD_XOR(total, 1);
    total += SIMD_XOR(total, 2);
    const u32 head = first_head + (SIMD * 8 + LANE / 4) % HEADS_HERE;
    if (LANE % 4 == 0) diagonal[LANE / 4 * 9] = line.end == 0 ? 0.0f : inverse_total(in, head, line.most, total);
    SIMD_SYNC();
    scale_lines(out, diagonal);
    UNROLL for (u32 d = 0; d < DIM_TILES; d++) store_tile(&out->sums[d], lines + SIMD * 8 * LINE_STRIDE + d * 8, LINE_STRIDE);
    BARRIER();
    // The last threadgroup of a KV head may have fewer heads.
    const u32 done = first_head % GROUP, heads = GROUP - done < HEADS_HERE ? GROUP - done : HEADS_HERE;
    const u32 cols = HEADS * HEAD_DIM, parts = (heads * HEAD_DIM + 31) / 32;
    for (u32 i = SIMD; i < (end - start) * parts; i += SIMDS) {
        const u32 row = start + i / parts, e = i % parts * 32 + LANE, col = first_head * HEAD_DIM + e;
        const bool there = e < heads * HEAD_DIM;
        const f32 value = there ? lines[(i / parts * HEADS_HERE + e / HEAD_DIM) * LINE_STRIDE + e % HEAD_DIM] : 0.0f;
        if (OUT_F32 && there) ((DEVICE f32*)in.out)[(u64)row * cols + col] = value;
        if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(cols), cols, col / 32, value, LANE);
        if (OUT_F16 && there) {
            ((DEVICE u16*)in.out_f16)[(u64)row * cols + (OUT_LANES ? lane_place(col) : col)] = f32_to_f16(value);
            if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
        }
    }
}

INLINE Line first_line(const DEVICE Row* rows, u32 window, u32 ahead, u32 first_head, u32 start, u32 end, Place at) {
    const Source source = source_of(SIMD * 8 + LANE / 4, first_head, start, end);
    Line line = {0, 0, LOWEST, 0};
    if (source.there) {
        const Row row = rows[source.row];
        line.from = first_visible(row, window);
        line.end = visible_end(row, window, ahead);
    }
    return line;
}

INLINE void attend_run(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    const u32 window = params.attention.window, ahead = params.attention.ahead, sequence = rows[start].start, kv_head = first_head / GROUP;
    Line line = first_line(rows, window, ahead, first_head, start, end, at);
    const VisibleRange range = visible_to_any(rows, start, end, window, ahead, at);
    // The range of positions visible to any line of this SIMD group.
    const u32 mine_from = ~SIMD_MAX_U32(line.end == 0 ? 0 : ~line.from), mine_until = SIMD_MAX_U32(line.end);
    TG_ARRAY(f32, lines, 0);
    TG_ARRAY(Number, keys, AT_KEYS);
    TG_ARRAY(Number, values, AT_VALUES);
    TG_ARRAY(f32, all_scores, AT_SCORES);
    THREADGROUP f32* const scores = all_scores + SIMD * SCORE_FLOATS;
    THREADGROUP f32* const diagonal = scores + 8 * SCORE_STRIDE;
    diagonal[LANE] = diagonal[32 + LANE] = 0;
    stage_queries(in, params, first_head, start, end, lines, at);
    Output out;
    UNROLL for (u32 d = 0; d < DIM_TILES; d++) out.sums[d] = filled_tile(0);
    // The first span may begin before what is visible.
    for (u32 base = range.from / SPAN * SPAN; base < range.until; base += SPAN) {
        const u32 place = kv_place(in, sequence + base), count = range.until - base;
        stage_span(kv_row(in.k_cache, kv_head, place), count, keys, at);
        stage_span(kv_row(in.v_cache, kv_head, place), count, values, at);
        BARRIER();
        if (base < mine_until && base + SPAN > mine_from) {
            score(lines + SIMD * 8 * LINE_STRIDE, keys, scores);
            SIMD_SYNC();
            online_softmax(scores, diagonal, &line, &out, base, params.attention.soft_cap, at);
            add_values(&out, scores, values);
        }
        BARRIER();
    }
    store_lines(in, line, &out, lines, diagonal, first_head, start, end, at);
    BARRIER();
}

BODY(attention_tiles) { attend_runs(in, pass, params, at); }
