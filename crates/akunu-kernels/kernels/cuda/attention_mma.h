// Attention of many rows over an f16 cache, on tensor cores. A threadgroup has LINES query lines (a line is one head
// of one row), a SIMD group 16 of them. Keys and values of the next SPAN positions are copied while the current ones
// are used. Queries and accumulators are distributed over the lanes as multiply_halves expects.
//
// Keys and values are f16 already. With SPLIT, queries and weights are split in two f16, q = f16(q) + f16(q − f16(q)),
// so that accuracy is that of f32. Without, they are rounded to f16, as the output is.

#define LINES 64
#define WORKERS 128
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
    Quad part[EACH_HALF][STEPS];
};

// The online softmax state of a lane's two lines (g and g + 8 of the SIMD group's).
struct Line {
    u32 row, head;
    // The visible positions; empty for padding lines.
    u32 from, end;
    f32 most, total;
};

struct Output {
    Floats sums[HEAD_DIM / 8];
};

// The remainders of two numbers after rounding to f16 (`high`), as two f16 in a word.
INLINE u32 left_of(f32 a, f32 b, u32 high) {
    return two_halves(a - f16_to_f32((u16)high), b - f16_to_f32((u16)(high >> 16)));
}

// The positions from `base` on, a multiple of SPAN, of the sequence that begins at `sequence`. They are in one block.
INLINE void copy_span(Bindings in, u32 kv_head, u32 sequence, u32 base, u32 end, THREADGROUP u8* stage, Place at) {
    const u32 place = kv_place(in, sequence + base);
    const DEVICE u8 *k = kv_row(in.k_cache, kv_head, place), *v = kv_row(in.v_cache, kv_head, place);
    UNROLL for (u32 i = at.in_group; i < SPAN * (HEAD_DIM / 8); i += WORKERS) {
        const u32 position = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8);
        const bool there = base + position < end;
        const u64 from = (there ? position : 0) * KV_ROW_BYTES + chunk * 16;
        THREADGROUP u8* to = stage + position * POSITION + chunk * 16;
        copy16(to, k + from, there);
        copy16(to + SPAN * POSITION, v + from, there);
    }
}

INLINE Query load_query(Bindings in, Params params, const THREAD_PTR Line* lines, Place at) {
    Query q;
    UNROLL for (u32 s = 0; s < STEPS; s++) {
        UNROLL for (u32 w = 0; w < 4; w++) {
            const Line line = lines[w % 2];
            f32 a = 0, b = 0;
            if (line.from < line.end) {
                const u32 d = s * 16 + w / 2 * 8 + LANE % 4 * 2;
                const u32x2 two = read8(in.q + (((u64)line.row * HEADS + line.head) * HEAD_DIM + d) * 4);
                const f32 scale = QUERY_SCALE(in, params, ((const DEVICE Row*)in.rows)[line.row]);
                a = as_f32(two.x) * scale;
                b = as_f32(two.y) * scale;
            }
            q.part[0][s].v[w] = two_halves(a, b);
            if (SPLIT) q.part[EACH_HALF - 1][s].v[w] = left_of(a, b, q.part[0][s].v[w]);
        }
    }
    return q;
}

struct Scores {
    Floats v[SPAN / 8];
};

INLINE Scores score(const THREAD_PTR Query* q, const THREADGROUP u8* keys, Place at) {
    Scores scores = {};
    UNROLL for (u32 s = 0; s < STEPS; s++) {
        UNROLL for (u32 n = 0; n < SPAN / 8; n += 2) {
            const u32 position = n * 8 + LANE / 16 * 8 + LANE % 8;
            const Quad k = load_lines(keys + position * POSITION + (s * 2 + LANE / 8 % 2) * 16);
            UNROLL for (u32 h = 0; h < EACH_HALF; h++) {
                scores.v[n] = multiply_halves(q->part[h][s], k.v[0], k.v[1], scores.v[n]);
                scores.v[n + 1] = multiply_halves(q->part[h][s], k.v[2], k.v[3], scores.v[n + 1]);
            }
        }
    }
    return scores;
}

// Turns scores into softmax weights, updates the running maximum and sum, and rescales what was accumulated before.
// `whole`: all positions of the span are visible to all lines, so no mask is needed.
INLINE void online_softmax(THREAD_PTR Scores* scores, THREAD_PTR Line* lines, THREAD_PTR Output* out, u32 base, bool whole, f32 cap, Place at) {
    if (CAPPED) {
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 4; e++) scores->v[n].v[e] = cap * TANH(scores->v[n].v[e] / cap);
        }
    }
    if (!whole) {
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 4; e++) {
                const u32 position = base + n * 8 + LANE % 4 * 2 + e % 2;
                if (position < lines[e / 2].from || position >= lines[e / 2].end) scores->v[n].v[e] = 2 * LOWEST;
            }
        }
    }
    f32 keep[2];
    UNROLL for (u32 r = 0; r < 2; r++) {
        f32 most = lines[r].most;
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 2; e++) most = MAX_F32(most, scores->v[n].v[r * 2 + e]);
        }
        most = MAX_F32(most, SIMD_XOR(most, 1));
        most = MAX_F32(most, SIMD_XOR(most, 2));
        keep[r] = EXP2((lines[r].most - most) * LOG2_E);
        lines[r].most = most;
        lines[r].total *= keep[r];
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 2; e++) {
                const f32 weight = EXP2(fused(scores->v[n].v[r * 2 + e], LOG2_E, -most * LOG2_E));
                scores->v[n].v[r * 2 + e] = weight;
                lines[r].total += weight;
            }
        }
    }
    UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
        UNROLL for (u32 e = 0; e < 4; e++) out->sums[d].v[e] *= keep[e / 2];
    }
}

INLINE void add_values(THREAD_PTR Output* out, const THREAD_PTR Scores* weights, const THREADGROUP u8* values, Place at) {
    UNROLL for (u32 p = 0; p < SPAN / 16; p++) {
        Quad part[EACH_HALF];
        UNROLL for (u32 w = 0; w < 4; w++) {
            const Floats four = weights->v[2 * p + w / 2];
            const f32 a = four.v[w % 2 * 2], b = four.v[w % 2 * 2 + 1];
            part[0].v[w] = two_halves(a, b);
            if (SPLIT) part[EACH_HALF - 1].v[w] = left_of(a, b, part[0].v[w]);
        }
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d += 2) {
            const Quad v = load_lines_transposed(values + (p * 16 + LANE % 16) * POSITION + (d + LANE / 16) * 16);
            UNROLL for (u32 h = 0; h < EACH_HALF; h++) {
                out->sums[d] = multiply_halves(part[h], v.v[0], v.v[1], out->sums[d]);
                out->sums[d + 1] = multiply_halves(part[h], v.v[2], v.v[3], out->sums[d + 1]);
            }
        }
    }
}

// f16 alone: 8 elements of a line a lane and step. Lines are 16 bytes further apart than they are long, so that all lanes
// write to different banks.
INLINE void store_lines_f16(Bindings in, THREAD_PTR Line* lines, const THREAD_PTR Output* out, u32 first_head, u32 start, u32 end, Place at) {
    const u32 words = HEAD_DIM / 2 + 4, chunks = HEAD_DIM / 8, cols = HEADS * HEAD_DIM;
    TG_ARRAY(u32, together, 0);
    THREADGROUP u32* const mine = together + SIMD * 16 * words;
    UNROLL for (u32 r = 0; r < 2; r++) {
        f32 total = lines[r].total;
        total += SIMD_XOR(total, 1);
        total += SIMD_XOR(total, 2);
        const f32 inverse = inverse_total(in, lines[r].head < HEADS ? lines[r].head : 0, lines[r].most, total);
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
            const f32 a = out->sums[d].v[r * 2] * inverse, b = out->sums[d].v[r * 2 + 1] * inverse;
            mine[(r * 8 + LANE / 4) * words + d * 4 + LANE % 4] = two_halves(a, b);
        }
    }
    SIMD_SYNC();
    for (u32 i = LANE; i < 16 * chunks; i += 32) {
        const u32 line = SIMD * 16 + i / chunks, row = start + line / HEADS_HERE, head = first_head + line % HEADS_HERE;
        if (row >= end || line >= TILE_ROWS * HEADS_HERE || head / GROUP != first_head / GROUP) continue;
        const u32 col = head * HEAD_DIM + i % chunks * 8;
        DEVICE u8* const to = in.out_f16 + (u64)row * cols * 2;
        const THREADGROUP u32* const from = mine + i / chunks * words + i % chunks * 4;
        if (OUT_LANES) {
            UNROLL for (u32 k = 0; k < 2; k++) {
                *(DEVICE u32*)(to + lane_place(col + 4 * k) * 2) = byte_perm(from[2 * k], from[2 * k + 1], 0x5410u);
                *(DEVICE u32*)(to + lane_place(col + 4 * k + 1) * 2) = byte_perm(from[2 * k], from[2 * k + 1], 0x7632u);
            }
        } else {
            *(DEVICE u32x4*)(to + col * 2) = *(const THREADGROUP u32x4*)from;
        }
        if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
    }
}

// The lines of a SIMD group go through its own part of threadgroup memory, so that it writes 32 consecutive elements.
INLINE void store_lines(Bindings in, THREAD_PTR Line* lines, const THREAD_PTR Output* out, u32 first_head, u32 start, u32 end, Place at) {
    TG_ARRAY(f32, together, 0);
    THREADGROUP f32* const mine = together + SIMD * 16 * HEAD_DIM;
    UNROLL for (u32 r = 0; r < 2; r++) {
        f32 total = lines[r].total;
        total += SIMD_XOR(total, 1);
        total += SIMD_XOR(total, 2);
        const f32 inverse = inverse_total(in, lines[r].head < HEADS ? lines[r].head : 0, lines[r].most, total);
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
            UNROLL for (u32 e = 0; e < 2; e++) {
                mine[(r * 8 + LANE / 4) * HEAD_DIM + d * 8 + LANE % 4 * 2 + e] = out->sums[d].v[r * 2 + e] * inverse;
            }
        }
    }
    SIMD_SYNC();
    const u32 cols = HEADS * HEAD_DIM;
    for (u32 i = 0; i < 16; i++) {
        const u32 line = SIMD * 16 + i, row = start + line / HEADS_HERE, head = first_head + line % HEADS_HERE;
        if (row >= end || line >= TILE_ROWS * HEADS_HERE || head / GROUP != first_head / GROUP) continue;
        for (u32 d = LANE; d < HEAD_DIM; d += 32) {
            const f32 value = mine[i * HEAD_DIM + d];
            const u32 col = head * HEAD_DIM + d;
            if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * cols + col] = value;
            if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(cols), cols, col / 32, value, LANE);
            if (OUT_F16) {
                ((DEVICE u16*)in.out_f16)[(u64)row * cols + (OUT_LANES ? lane_place(col) : col)] = f32_to_f16(value);
                if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
            }
        }
    }
}

INLINE void attend_run(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    const u32 window = params.attention.window, ahead = params.attention.ahead, sequence = rows[start].start, kv_head = first_head / GROUP;
    Line lines[2];
    UNROLL for (u32 r = 0; r < 2; r++) {
        const u32 line = SIMD * 16 + r * 8 + LANE / 4;
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
    // Before what is visible, for whole spans.
    const u32 from = range.from / SPAN * SPAN, until = range.until;
    // The range of positions visible to any line of this SIMD group (mine_*), and that visible to all of them (all_*).
    const u32 mine_until = SIMD_MAX_U32(lines[0].end > lines[1].end ? lines[0].end : lines[1].end);
    const u32 all_until = ~SIMD_MAX_U32(~(lines[0].end < lines[1].end ? lines[0].end : lines[1].end));
    const u32 all_from = SIMD_MAX_U32(lines[0].from > lines[1].from ? lines[0].from : lines[1].from);
    const u32 first = lines[0].end == 0 ? 0xffffffffu : lines[0].from, second = lines[1].end == 0 ? 0xffffffffu : lines[1].from;
    const u32 mine_from = ~SIMD_MAX_U32(~(first < second ? first : second));

    const Query q = load_query(in, params, lines, at);
    Output out = {};
    THREADGROUP u8* stage = at.shared;
    THREADGROUP u8* other = at.shared + STAGE_BYTES;
    copy_span(in, kv_head, sequence, from, until, stage, at);
    COPIES_DONE();
    BARRIER();
    for (u32 base = from; base < until; base += SPAN) {
        if (base + SPAN < until) copy_span(in, kv_head, sequence, base + SPAN, until, other, at);
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
    if (OUT_F16 && !OUT_F32 && !OUT_Q8) {
        store_lines_f16(in, lines, &out, first_head, start, end, at);
    } else {
        store_lines(in, lines, &out, first_head, start, end, at);
    }
    BARRIER();
}

BODY(attention_mma) { attend_runs(in, pass, params, at); }
