// Attention of many rows over an f16 cache, on tensor cores. A threadgroup has LINES query lines (a line is one head
// of one row), a SIMD group LINE_TILES tiles of 16: with two tiles, what it reads of keys and values from threadgroup
// memory serves twice as many lines. Keys and values of the next SPAN positions are copied while the current ones are
// used. Queries and accumulators are distributed over the lanes as multiply_halves expects.
//
// Keys and values are f16 already. With SPLIT, queries and weights are split in two f16, q = f16(q) + f16(q − f16(q)),
// so that accuracy is that of f32. Without, they are rounded to f16, as the output is.

#define WORKERS 128
#define SIMD_LINES (16 * LINE_TILES)
#define LINES (WORKERS / 32 * SIMD_LINES)
// Bytes of a position in threadgroup memory: 16 bytes of padding, so that eight consecutive positions are read without
// bank conflicts.
#define POSITION (HEAD_DIM * 2 + 16)
#define STAGE_BYTES (2 * SPAN * POSITION)
#define STEPS (HEAD_DIM / 16)
#define LOWEST -1e30f
#define LOG2_E 1.44269504f

#if SPLIT
#define EACH_HALF 2
#else
#define EACH_HALF 1
#endif

// The query rounded to f16 and, with SPLIT, the remainder.
struct Query {
    Quad part[EACH_HALF][LINE_TILES][STEPS];
};

// The online softmax state of one of a lane's lines: with g = lane / 4, lines g and g + 8 of each of its tiles.
struct Line {
    u32 row, head;
    // The visible positions; empty for padding lines.
    u32 from, end;
    f32 most, total;
};

struct Output {
    Floats sums[LINE_TILES][HEAD_DIM / 8];
};

// The remainders of two numbers after rounding to f16 (`high`), as two f16 in a word.
INLINE u32 left_of(f32 a, f32 b, u32 high) {
    return two_halves(a - f16_to_f32((u16)high), b - f16_to_f32((u16)(high >> 16)));
}

INLINE void copy_span(const DEVICE u8* k, const DEVICE u8* v, u32 base, u32 end, THREADGROUP u8* stage, Place at) {
    UNROLL for (u32 i = at.in_group; i < SPAN * (HEAD_DIM / 8); i += WORKERS) {
        const u32 position = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8);
        const bool there = base + position < end;
        const u64 from = (there ? base + position : base) * KV_ROW_BYTES + chunk * 16;
        THREADGROUP u8* to = stage + position * POSITION + chunk * 16;
        copy16(to, k + from, there);
        copy16(to + SPAN * POSITION, v + from, there);
    }
}

INLINE Query load_query(Bindings in, Params params, const THREAD_PTR Line* lines, Place at) {
    Query q;
    UNROLL for (u32 r = 0; r < 2 * LINE_TILES; r++) {
        const Line line = lines[r];
        const bool there = line.from < line.end;
        const f32 scale = there ? QUERY_SCALE(in, params, ((const DEVICE Row*)in.rows)[line.row]) : 0.0f;
        const DEVICE u8* from = in.q + (((u64)(there ? line.row : 0) * HEADS + (there ? line.head : 0)) * HEAD_DIM + LANE % 4 * 2) * 4;
        UNROLL for (u32 s = 0; s < STEPS; s++) {
            UNROLL for (u32 half = 0; half < 2; half++) {
                const u32x2 two = read8(from + (s * 16 + half * 8) * 4);
                const f32 a = there ? as_f32(two.x) * scale : 0.0f, b = there ? as_f32(two.y) * scale : 0.0f;
                const u32 w = half * 2 + r % 2, rounded = two_halves(a, b);
                q.part[0][r / 2][s].v[w] = rounded;
                if (SPLIT) q.part[EACH_HALF - 1][r / 2][s].v[w] = left_of(a, b, rounded);
            }
        }
    }
    return q;
}

struct Scores {
    Floats v[LINE_TILES][SPAN / 8];
};

INLINE Scores score(const THREAD_PTR Query* q, const THREADGROUP u8* keys, Place at) {
    Scores scores = {};
    UNROLL for (u32 s = 0; s < STEPS; s++) {
        UNROLL for (u32 n = 0; n < SPAN / 8; n += 2) {
            const u32 position = n * 8 + LANE / 16 * 8 + LANE % 8;
            const Quad k = load_lines(keys + position * POSITION + (s * 2 + LANE / 8 % 2) * 16);
            UNROLL for (u32 t = 0; t < LINE_TILES; t++) {
                UNROLL for (u32 h = 0; h < EACH_HALF; h++) {
                    scores.v[t][n] = multiply_halves(q->part[h][t][s], k.v[0], k.v[1], scores.v[t][n]);
                    scores.v[t][n + 1] = multiply_halves(q->part[h][t][s], k.v[2], k.v[3], scores.v[t][n + 1]);
                }
            }
        }
    }
    return scores;
}

// Turns scores into softmax weights, updates the running maximum and sum, and rescales what was accumulated before.
// `whole`: all positions of the span are visible to all lines, so no mask is needed.
INLINE void online_softmax(THREAD_PTR Scores* scores, THREAD_PTR Line* lines, THREAD_PTR Output* out, u32 base, bool whole, f32 cap, Place at) {
    UNROLL for (u32 r = 0; r < 2 * LINE_TILES; r++) {
        THREAD_PTR Line* const line = lines + r;
        f32 most = line->most;
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 2; e++) {
                THREAD_PTR f32* const score = &scores->v[r / 2][n].v[r % 2 * 2 + e];
                if (cap != 0) *score = cap * TANH(*score / cap);
                const u32 position = base + n * 8 + LANE % 4 * 2 + e;
                if (!whole && (position < line->from || position >= line->end)) *score = 2 * LOWEST;
                most = MAX_F32(most, *score);
            }
        }
        most = MAX_F32(most, SIMD_XOR(most, 1));
        most = MAX_F32(most, SIMD_XOR(most, 2));
        const f32 keep = EXP2((line->most - most) * LOG2_E);
        line->most = most;
        line->total *= keep;
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 2; e++) {
                THREAD_PTR f32* const score = &scores->v[r / 2][n].v[r % 2 * 2 + e];
                *score = EXP2(fused(*score, LOG2_E, -most * LOG2_E));
                line->total += *score;
            }
        }
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
            UNROLL for (u32 e = 0; e < 2; e++) out->sums[r / 2][d].v[r % 2 * 2 + e] *= keep;
        }
    }
}

INLINE void add_values(THREAD_PTR Output* out, const THREAD_PTR Scores* weights, const THREADGROUP u8* values, Place at) {
    UNROLL for (u32 p = 0; p < SPAN / 16; p++) {
        Quad part[EACH_HALF][LINE_TILES];
        UNROLL for (u32 i = 0; i < 4 * LINE_TILES; i++) {
            const u32 t = i / 4, w = i % 4;
            const Floats four = weights->v[t][2 * p + w / 2];
            const f32 a = four.v[w % 2 * 2], b = four.v[w % 2 * 2 + 1];
            part[0][t].v[w] = two_halves(a, b);
            if (SPLIT) part[EACH_HALF - 1][t].v[w] = left_of(a, b, part[0][t].v[w]);
        }
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d += 2) {
            const Quad v = load_lines_transposed(values + (p * 16 + LANE % 16) * POSITION + (d + LANE / 16) * 16);
            UNROLL for (u32 t = 0; t < LINE_TILES; t++) {
                UNROLL for (u32 h = 0; h < EACH_HALF; h++) {
                    out->sums[t][d] = multiply_halves(part[h][t], v.v[0], v.v[1], out->sums[t][d]);
                    out->sums[t][d + 1] = multiply_halves(part[h][t], v.v[2], v.v[3], out->sums[t][d + 1]);
                }
            }
        }
    }
}

// The lines of a SIMD group go through its own part of threadgroup memory, so that it writes 32 consecutive elements.
INLINE void store_lines(Bindings in, THREAD_PTR Line* lines, const THREAD_PTR Output* out, u32 first_head, u32 start, u32 end, Place at) {
    TG_ARRAY(f32, together, 0);
    THREADGROUP f32* const mine = together + SIMD * SIMD_LINES * HEAD_DIM;
    UNROLL for (u32 r = 0; r < 2 * LINE_TILES; r++) {
        f32 total = lines[r].total;
        total += SIMD_XOR(total, 1);
        total += SIMD_XOR(total, 2);
        const f32 inverse = 1.0f / total;
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
            UNROLL for (u32 e = 0; e < 2; e++) {
                mine[(r * 8 + LANE / 4) * HEAD_DIM + d * 8 + LANE % 4 * 2 + e] = out->sums[r / 2][d].v[r % 2 * 2 + e] * inverse;
            }
        }
    }
    SIMD_SYNC();
    const u32 cols = HEADS * HEAD_DIM;
    for (u32 i = 0; i < SIMD_LINES; i++) {
        const u32 line = SIMD * SIMD_LINES + i, row = start + line / HEADS_HERE, head = first_head + line % HEADS_HERE;
        if (row >= end || line >= TILE_ROWS * HEADS_HERE || head / GROUP != first_head / GROUP) continue;
        for (u32 d = LANE; d < HEAD_DIM; d += 32) {
            const f32 value = mine[i * HEAD_DIM + d];
            const u32 col = head * HEAD_DIM + d;
            if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * cols + col] = value;
            if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(cols), cols, col / 32, value, LANE);
            if (OUT_F16) {
                ((DEVICE u16*)in.out_f16)[(u64)row * cols + col] = f32_to_f16(value);
                if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
            }
        }
    }
}

INLINE void attend_run(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    const u32 window = params.attention.window, ahead = params.attention.ahead, sequence = rows[start].start, kv_head = first_head / GROUP;
    Line lines[2 * LINE_TILES];
    UNROLL for (u32 r = 0; r < 2 * LINE_TILES; r++) {
        const u32 line = SIMD * SIMD_LINES + r * 8 + LANE / 4;
        lines[r].row = start + line / HEADS_HERE;
        lines[r].head = first_head + line % HEADS_HERE;
        lines[r].most = LOWEST;
        lines[r].total = 0;
        lines[r].from = lines[r].end = 0;
        if (lines[r].row < end && line < TILE_ROWS * HEADS_HERE && lines[r].head / GROUP == kv_head) {
            const Row row = rows[lines[r].row];
            lines[r].from = first_visible(row, window);
            lines[r].end = visible_end(row, window, ahead);
        }
    }
    const VisibleRange range = visible_to_any(rows, start, end, window, ahead, at);
    const u32 from = range.from, until = range.until;
    // The range of positions visible to any line of this SIMD group (mine_*), and that visible to all of them (all_*).
    u32 mine_from = 0xffffffffu, mine_until = 0, all_from = 0, all_until = 0xffffffffu;
    UNROLL for (u32 r = 0; r < 2 * LINE_TILES; r++) {
        const Line line = lines[r];
        if (line.end != 0) mine_from = line.from < mine_from ? line.from : mine_from;
        mine_until = line.end > mine_until ? line.end : mine_until;
        all_from = line.from > all_from ? line.from : all_from;
        all_until = line.end < all_until ? line.end : all_until;
    }
    mine_from = ~SIMD_MAX_U32(~mine_from);
    mine_until = SIMD_MAX_U32(mine_until);
    all_from = SIMD_MAX_U32(all_from);
    all_until = ~SIMD_MAX_U32(~all_until);

    const Query q = load_query(in, params, lines, at);
    const DEVICE u8* k = kv_row(in.k_cache, sequence, kv_head, 0);
    const DEVICE u8* v = kv_row(in.v_cache, sequence, kv_head, 0);
    Output out = {};
    THREADGROUP u8* stage = at.shared;
    THREADGROUP u8* other = at.shared + STAGE_BYTES;
    copy_span(k, v, from, until, stage, at);
    COPIES_DONE();
    BARRIER();
    for (u32 base = from; base < until; base += SPAN) {
        if (base + SPAN < until) copy_span(k, v, base + SPAN, until, other, at);
        if (base < mine_until && base + SPAN > mine_from) {
            Scores scores = score(&q, stage, at);
            online_softmax(&scores, lines, &out, base, base >= all_from && base + SPAN <= all_until, params.attention.soft_cap, at);
            add_values(&out, &scores, stage + SPAN * POSITION, at);
        }
        COPIES_DONE();
        BARRIER();
        THREADGROUP u8* const done = stage;
        stage = other;
        other = done;
    }
    store_lines(in, lines, &out, first_head, start, end, at);
    BARRIER();
}

BODY(attention_mma) { attend_runs(in, pass, params, at); }
