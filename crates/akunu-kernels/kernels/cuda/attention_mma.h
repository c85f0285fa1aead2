// Attention of many rows over an f16 cache, on tensor cores. Keys and values of the next SPAN positions are copied while the
// current ones are used.
//
// Keys and values are f16 already. With SPLIT, queries and weights are split in two f16, q = f16(q) + f16(q − f16(q)),
// so that accuracy is that of f32. Without, they are rounded to f16, as the output is.

// Bytes of a position in threadgroup memory: 16 bytes of padding, so that eight consecutive positions are read without
// bank conflicts.
#define POSITION (HEAD_DIM * 2 + 16)
#define STAGE_BYTES (2 * SPAN * POSITION)
#define STEPS (HEAD_DIM / 16)

#if SPLIT
#define EACH_HALF 2
#else
#define EACH_HALF 1
#endif

// The query rounded to f16 and, with SPLIT, the remainder.
struct Query {
    Quad part[EACH_HALF][STEPS];
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

INLINE Query load_query(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    Query q;
    UNROLL for (u32 s = 0; s < STEPS; s++) {
        UNROLL for (u32 w = 0; w < 4; w++) {
            const Two two = query_numbers(in, params, LINE(w % 2), first_head, start, end, s * 16 + w / 2 * 8 + LANE % 4 * 2);
            q.part[0][s].v[w] = two_halves(two.v[0], two.v[1]);
            if (SPLIT) q.part[EACH_HALF - 1][s].v[w] = left_of(two.v[0], two.v[1], q.part[0][s].v[w]);
        }
    }
    return q;
}

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

INLINE void attend_run(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    const u32 window = params.attention.window, ahead = params.attention.ahead, sequence = rows[start].start, kv_head = first_head / GROUP;
    Line lines[2];
    find_lines(params, rows, first_head, start, end, lines, at);
    const VisibleRange range = visible_to_any(rows, start, end, window, ahead, at);
    // Before what is visible, for whole spans.
    const u32 from = range.from / SPAN * SPAN, until = range.until;
    const SeenByAll all = seen_by_all(lines, at);
    // The positions that any line of this SIMD group sees.
    const u32 mine_until = SIMD_MAX_U32(lines[0].end > lines[1].end ? lines[0].end : lines[1].end);
    const u32 first = lines[0].end == 0 ? 0xffffffffu : lines[0].from, second = lines[1].end == 0 ? 0xffffffffu : lines[1].from;
    const u32 mine_from = ~SIMD_MAX_U32(~(first < second ? first : second));

    const Query q = load_query(in, params, first_head, start, end, at);
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
            const bool whole = base >= all.from && base + SPAN <= all.end;
            const Keep keep = online_softmax(&scores, lines, base, whole, params.attention.soft_cap, at);
            if (keep.changed) rescale(&out, keep);
            add_values(&out, &scores, stage + SPAN * POSITION, at);
        }
        COPIES_DONE();
        BARRIER();
        THREADGROUP u8* const done = stage;
        stage = other;
        other = done;
    }
    store_all_lines(in, lines, &out, first_head, start, end, at);
    BARRIER();
}

BODY(attention_mma) { attend_runs(in, pass, params, at); }
