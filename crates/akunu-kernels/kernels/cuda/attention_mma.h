// Attention of many rows over a cache of f16 or q8, on tensor cores. Keys and values of the next SPAN positions are copied while
// the current ones are used.
//
// Keys and values are f16 already. With SPLIT, queries and weights are split in two f16, q = f16(q) + f16(q − f16(q)), so that
// accuracy is that of f32. Without, which is for f16 only, they are rounded to f16, as the output is.
//
// Of q8 the codes of keys and values are multiplied (attention_numbers.h): scores of each block of 32 are multiplied by the scales
// of keys, and weights by those of values.

// Bytes of a position in threadgroup memory: 16 bytes of padding, so that eight consecutive positions are read without
// bank conflicts.
#define POSITION (HEAD_DIM * 2 + 16)
#define SPAN_BYTES (2 * SPAN * POSITION)
#define STEPS (HEAD_DIM / 16)

#if SPLIT
#define EACH_HALF 2
#else
#define EACH_HALF 1
#endif

// Numbers of a row that have the same scale.
#define SCALED (QUANTISED ? 32 : HEAD_DIM)

// The query, rounded, and with SPLIT the remainder.
struct Query {
    Quad part[EACH_HALF][STEPS];
};

#if QUANTISED
// Spans are copied as the cache has them, and a stage is one of keys and one of values; a word is read past their end. Before they
// are used their codes become bf16, as spans of f16 are, followed by the scales: of keys, then of values, block by block.
#define STAGE_BYTES (2 * SPAN * ROW_BYTES + 16)
#define AT_CODES (2 * STAGE_BYTES)
#define AT_SCALES (AT_CODES + SPAN_BYTES)
#define CHUNKS (SPAN * ROW_BYTES / 16)

// The positions from `base` on, a multiple of SPAN, of the sequence that begins at `sequence`. They are in one block.
INLINE void copy_span(Bindings in, u32 kv_head, u32 sequence, u32 base, u32 end, THREADGROUP u8* stage, Place at) {
    const u32 place = kv_place(in, sequence + base), bytes = (end - base) * ROW_BYTES;
    const DEVICE u8 *k = kv_row(in.k_cache, kv_head, place), *v = kv_row(in.v_cache, kv_head, place);
    UNROLL for (u32 i = 0; i < 2 * CHUNKS; i += WORKERS) {
        const u32 chunk = i + at.in_group, offset = chunk % CHUNKS * 16;
        if (chunk < 2 * CHUNKS) copy16(stage + chunk * 16, (chunk < CHUNKS ? k : v) + (offset < bytes ? offset : 0), offset < bytes);
    }
}

// Codes and scales of a stage. Scales are zero but for positions `from` to `end` − 1 of the span: others may hold anything.
INLINE void expand(const THREADGROUP u8* stage, u32 from, u32 end, Place at) {
    UNROLL for (u32 i = at.in_group; i < 2 * SPAN * (HEAD_DIM / 4); i += WORKERS) {
        const u32 row = i / (HEAD_DIM / 4), four = i % (HEAD_DIM / 4), offset = row * ROW_BYTES + four / 8 * 34 + 2 + four % 8 * 4;
        const THREADGROUP u32* words = (const THREADGROUP u32*)stage + offset / 4;
        const u32 codes = byte_perm(words[0], words[1], offset % 4 == 0 ? 0x3210u : 0x5432u);
        const u32x2 numbers = {bfloats_of(codes, 0, 1), bfloats_of(codes, 2, 3)};
        *(THREADGROUP u32x2*)(at.shared + AT_CODES + row * POSITION + four * 8) = numbers;
    }
    TG_ARRAY(f32, scales, AT_SCALES);
    UNROLL for (u32 i = at.in_group; i < 2 * SPAN * (HEAD_DIM / 32); i += WORKERS) {
        const u32 row = i / (HEAD_DIM / 32), part = i % (HEAD_DIM / 32), position = row % SPAN;
        const u16 scale = *(const THREADGROUP u16*)(stage + row * ROW_BYTES + part * 34);
        scales[(row / SPAN * (HEAD_DIM / 32) + part) * SPAN + position] = position >= from && position < end ? f16_to_f32(scale) : 0.0f;
    }
}

// The scales of two positions from `position` on, of keys (0) or values (1).
INLINE Two scales_of(u32 values, u32 part, u32 position, Place at) {
    TG_ARRAY(f32, scales, AT_SCALES);
    const THREADGROUP f32* from = scales + (values * (HEAD_DIM / 32) + part) * SPAN + position;
    const Two two = {{from[0], from[1]}};
    return two;
}
#else
#define STAGE_BYTES SPAN_BYTES

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

INLINE Two scales_of(u32 values, u32 part, u32 position, Place at) {
    const Two two = {{1.0f, 1.0f}};
    return two;
}
#endif

INLINE Query load_query(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    Query q;
    UNROLL for (u32 s = 0; s < STEPS; s++) {
        UNROLL for (u32 w = 0; w < 4; w++) {
            const Two two = query_numbers(in, params, LINE(w % 2), first_head, start, end, s * 16 + w / 2 * 8 + LANE % 4 * 2);
            q.part[0][s].v[w] = TWO_NUMBERS(two.v[0], two.v[1]);
            if (SPLIT) q.part[EACH_HALF - 1][s].v[w] = left_of(two.v[0], two.v[1], q.part[0][s].v[w]);
        }
    }
    return q;
}

INLINE Scores score(const THREAD_PTR Query* q, const THREADGROUP u8* keys, Place at) {
    Scores scores = {};
    UNROLL for (u32 part = 0; part < HEAD_DIM / SCALED; part++) {
        Scores sums = {};
        UNROLL for (u32 s = part * SCALED / 16; s < (part + 1) * SCALED / 16; s++) {
            UNROLL for (u32 n = 0; n < SPAN / 8; n += 2) {
                const u32 position = n * 8 + LANE / 16 * 8 + LANE % 8;
                const Quad k = load_lines(keys + position * POSITION + (s * 2 + LANE / 8 % 2) * 16);
                UNROLL for (u32 h = 0; h < EACH_HALF; h++) {
                    sums.v[n] = MULTIPLY(q->part[h][s], k.v[0], k.v[1], sums.v[n]);
                    sums.v[n + 1] = MULTIPLY(q->part[h][s], k.v[2], k.v[3], sums.v[n + 1]);
                }
            }
        }
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            const Two scales = scales_of(0, part, n * 8 + LANE % 4 * 2, at);
            UNROLL for (u32 e = 0; e < 4; e++) scores.v[n].v[e] = fused(sums.v[n].v[e], scales.v[e % 2], scores.v[n].v[e]);
        }
    }
    return scores;
}

INLINE void add_values(THREAD_PTR Output* out, const THREAD_PTR Scores* weights, const THREADGROUP u8* values, Place at) {
    UNROLL for (u32 p = 0; p < SPAN / 16; p++) {
        UNROLL for (u32 part = 0; part < HEAD_DIM / SCALED; part++) {
            Quad split[EACH_HALF];
            UNROLL for (u32 w = 0; w < 4; w++) {
                const u32 n = 2 * p + w / 2;
                const Two scales = scales_of(1, part, n * 8 + LANE % 4 * 2, at);
                const Floats four = weights->v[n];
                const f32 a = four.v[w % 2 * 2] * scales.v[0], b = four.v[w % 2 * 2 + 1] * scales.v[1];
                split[0].v[w] = TWO_NUMBERS(a, b);
                if (SPLIT) split[EACH_HALF - 1].v[w] = left_of(a, b, split[0].v[w]);
            }
            UNROLL for (u32 d = part * SCALED / 8; d < (part + 1) * SCALED / 8; d += 2) {
                const Quad v = load_lines_transposed(values + (p * 16 + LANE % 16) * POSITION + (d + LANE / 16) * 16);
                UNROLL for (u32 h = 0; h < EACH_HALF; h++) {
                    out->sums[d] = MULTIPLY(split[h], v.v[0], v.v[1], out->sums[d]);
                    out->sums[d + 1] = MULTIPLY(split[h], v.v[2], v.v[3], out->sums[d + 1]);
                }
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
#if QUANTISED
        expand(stage, range.from > base ? range.from - base : 0, until - base, at);
        BARRIER();
        THREADGROUP u8* const keys = at.shared + AT_CODES;
#else
        THREADGROUP u8* const keys = stage;
#endif
        if (base < mine_until && base + SPAN > mine_from) {
            Scores scores = score(&q, keys, at);
            const bool whole = base >= all.from && base + SPAN <= all.end;
            const Keep keep = online_softmax(&scores, lines, base, whole, params.attention.soft_cap, at);
            if (keep.changed) rescale(&out, keep);
            add_values(&out, &scores, keys + SPAN * POSITION, at);
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
