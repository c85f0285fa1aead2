// Attention of many rows over an f16 cache, on the tensor instructions of warpgroups. A warpgroup, which is four SIMD groups, has
// 64 query lines, and all positions that any line of the threadgroup sees, SPAN at a time. While the scores of a span become
// weights, the scores of the next span are computed, and the values of the span before are added.
//
// Queries and weights are rounded to f16, as the output is. Keys and values are copied to tiles in threadgroup memory two spans
// before they are needed: keys of three spans, the next ones; values of four, of which one may still be added.

// Chunks of 16 bytes of a position. A thread copies a chunk of every STEP-th position.
#define CHUNKS (HEAD_DIM / 8)
#define STEP (WORKERS / CHUNKS)
#define SPAN_BYTES (SPAN * HEAD_DIM * 2)
#define VALUES (3 * SPAN_BYTES)

#if HEAD_DIM == 64
#define MULTIPLY_BY_VALUES multiply_by_64_columns
#elif HEAD_DIM == 128
#define MULTIPLY_BY_VALUES multiply_by_128_columns
#endif

struct Query {
    Quad steps[HEAD_DIM / 16];
};

// Weights as lines of the product with values.
struct Weights {
    Quad steps[SPAN / 16];
};

// The state of a run's loop.
struct Run {
    // The KV head's.
    const DEVICE u8 *keys, *values;
    u32 sequence;
    Query query;
    SeenByAll all;
    Tile keys_here, values_here;
    // This span's first position, and the end of what any line sees.
    u32 base, until;
    // Places in the cache of the spans whose values and keys are copied next: two and three spans ahead.
    u32 value_source, key_source;
    // Offsets in threadgroup memory: of this span's keys, whose place is free as soon as their scores are there, and of its
    // values, from VALUES on.
    u32 key_place, value_place;
};

INLINE u32 next_key_place(u32 place) { return place == 2 * SPAN_BYTES ? 0 : place + SPAN_BYTES; }
INLINE u32 value_place_after(u32 place, u32 spans) { return (place + spans * SPAN_BYTES) % (4 * SPAN_BYTES); }

// Where the span at a position is in the cache. Spans begin at multiples of SPAN, and are in one block.
INLINE u32 source_of(Bindings in, const THREAD_PTR Run* run, u32 base) { return base < run->until ? kv_place(in, run->sequence + base) : 0; }

// Of the positions, `left` are visible. Past them there are zeros: such copies read nothing from their addresses.
INLINE void copy_span(const DEVICE u8* cache, u32 source, u32 left, u32 offset, Place at) {
    const u32 position = at.in_group / CHUNKS, chunk = at.in_group % CHUNKS;
    THREADGROUP u8* const to = at.shared + offset + chunk / 8 * (SPAN * 128) + position * 128 + (chunk ^ position) % 8 * 16;
    const DEVICE u8* const from = cache + (source + position) * KV_ROW_BYTES + chunk * 16;
    UNROLL for (u32 i = 0; i < SPAN; i += STEP) copy16(to + i * 128, from + i * KV_ROW_BYTES, position + i < left);
}

INLINE Query load_query(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    Query query;
    UNROLL for (u32 w = 0; w < 4; w++) {
        UNROLL for (u32 s = 0; s < HEAD_DIM / 16; s++) {
            const Two two = query_numbers(in, params, LINE(w % 2), first_head, start, end, s * 16 + w / 2 * 8 + LANE % 4 * 2);
            query.steps[s].v[w] = two_halves(two.v[0], two.v[1]);
        }
    }
    return query;
}

INLINE Weights weights_of(const THREAD_PTR Scores* scores) {
    Weights weights;
    UNROLL for (u32 p = 0; p < SPAN / 16; p++) {
        UNROLL for (u32 w = 0; w < 4; w++) {
            const Floats four = scores->v[2 * p + w / 2];
            weights.steps[p].v[w] = two_halves(four.v[w % 2 * 2], four.v[w % 2 * 2 + 1]);
        }
    }
    return weights;
}

INLINE void begin_scores(THREAD_PTR Scores* scores, const THREAD_PTR Query* query, Tile keys) {
    UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
        UNROLL for (u32 e = 0; e < 4; e++) scores->v[n].v[e] = 0;
    }
    BEGIN_PRODUCTS();
    UNROLL for (u32 s = 0; s < HEAD_DIM / 16; s++) {
        multiply_by_64_rows(&scores->v[0].v[0], query->steps[s], further(keys, s / 4 * (SPAN * 128) + s % 4 * 32));
    }
    END_PRODUCTS();
}

INLINE void begin_values(THREAD_PTR Output* out, Weights weights, Tile values) {
    BEGIN_PRODUCTS();
    UNROLL for (u32 p = 0; p < SPAN / 16; p++) MULTIPLY_BY_VALUES(&out->sums[0].v[0], weights.steps[p], further(values, p * (16 * 128)));
    END_PRODUCTS();
}

// Turns this span's scores into weights, with which its values are added. Unless it is the last, scores of the next are computed
// meanwhile.
INLINE void add_span(Params params, THREAD_PTR Run* run, THREAD_PTR Line* lines, THREAD_PTR Output* out, THREAD_PTR Scores* scores, bool last,
                     Place at) {
    const f32 cap = params.attention.soft_cap;
    Keep keep;
    Weights weights;
    // Written twice, with a mask and without, in branches: the compiler moves the wait for products ahead of arithmetic that
    // is not in a branch, and nothing would overlap.
    if (!last && run->base >= run->all.from && run->base + SPAN <= run->all.end) {
        keep = online_softmax(scores, lines, run->base, true, cap, at);
        weights = weights_of(scores);
    } else {
        keep = online_softmax(scores, lines, run->base, false, cap, at);
        weights = weights_of(scores);
    }
    // The values of the span before.
    if (last) {
        PRODUCTS_DONE_BUT(0);
    } else {
        PRODUCTS_DONE_BUT(1);
    }
    if (keep.changed) rescale(out, keep);
    begin_values(out, weights, further(run->values_here, run->value_place));
}

// Adds this span, whose scores are there, and computes the scores of the next one. What is copied is waited for in the next
// iteration.
//
// In iteration i, keys of i + 1 are multiplied, those of i + 2 arrive, and those of i + 3 replace those of i, whose scores all
// warpgroups had before the last barrier. Values of i − 1 may still be added, those of i are next, those of i + 1 arrive, and
// those of i + 2 replace those of i − 2, which all had added before the last barrier.
INLINE void attend_span(Bindings in, Params params, THREAD_PTR Run* run, THREAD_PTR Line* lines, THREAD_PTR Output* out,
                        THREAD_PTR Scores* scores, THREAD_PTR Scores* next_scores, Place at) {
    const u32 left = run->until - run->base, next = next_key_place(run->key_place);
    begin_scores(next_scores, &run->query, further(run->keys_here, next));
    if (left > 3 * SPAN) copy_span(run->keys, run->key_source, left - 3 * SPAN, run->key_place, at);
    if (left > 2 * SPAN) copy_span(run->values, run->value_source, left - 2 * SPAN, VALUES + value_place_after(run->value_place, 2), at);
    COPY_GROUP();
    run->value_source = run->key_source;
    if (left > 4 * SPAN) run->key_source = kv_place(in, run->sequence + run->base + 4 * SPAN);
    add_span(params, run, lines, out, scores, false, at);
    PRODUCTS_DONE_BUT(1);
    COPIES_DONE_BUT(1);
    SHOW_COPIES();
    BARRIER();
    run->key_place = next;
    run->value_place = value_place_after(run->value_place, 1);
    run->base += SPAN;
}

// Copies what the first iteration needs, and the spans after it, and computes the scores of the first.
INLINE void begin_run(Bindings in, THREAD_PTR Run* run, THREAD_PTR Scores* scores, Place at) {
    const u32 left = run->until - run->base, first = source_of(in, run, run->base), second = source_of(in, run, run->base + SPAN);
    run->value_source = source_of(in, run, run->base + 2 * SPAN);
    run->key_source = source_of(in, run, run->base + 3 * SPAN);
    run->key_place = run->value_place = 0;
    copy_span(run->keys, first, left, 0, at);
    copy_span(run->values, first, left, VALUES, at);
    if (left > SPAN) copy_span(run->keys, second, left - SPAN, SPAN_BYTES, at);
    COPY_GROUP();
    if (left > SPAN) copy_span(run->values, second, left - SPAN, VALUES + SPAN_BYTES, at);
    if (left > 2 * SPAN) copy_span(run->keys, run->value_source, left - 2 * SPAN, 2 * SPAN_BYTES, at);
    COPY_GROUP();
    COPIES_DONE_BUT(1);
    SHOW_COPIES();
    BARRIER();
    begin_scores(scores, &run->query, run->keys_here);
    PRODUCTS_DONE_BUT(0);
    // All have read the first keys, whose place is copied to next.
    BARRIER();
}

INLINE void attend_run(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at) {
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    Line lines[2];
    find_lines(params, rows, first_head, start, end, lines, at);
    const VisibleRange range = visible_to_any(rows, start, end, params.attention.window, params.attention.ahead, at);
    const u32 kv_head = first_head / GROUP;
    Run run;
    run.keys = kv_row(in.k_cache, kv_head, 0);
    run.values = kv_row(in.v_cache, kv_head, 0);
    run.keys_here = tile_at(at.shared, 0);
    run.values_here = tiles_at(at.shared, VALUES, SPAN * 128);
    run.sequence = rows[start].start;
    run.query = load_query(in, params, first_head, start, end, at);
    run.all = seen_by_all(lines, at);
    // Before what is visible, for whole spans.
    run.base = range.from / SPAN * SPAN;
    run.until = range.until > run.base ? range.until : run.base;

    Scores even, odd;
    begin_run(in, &run, &even, at);
    Output out = {};
    // Two spans at a time, so that scores stay in their registers.
    while (run.until - run.base > 2 * SPAN) {
        attend_span(in, params, &run, lines, &out, &even, &odd, at);
        attend_span(in, params, &run, lines, &out, &odd, &even, at);
    }
    if (run.until - run.base > SPAN) {
        attend_span(in, params, &run, lines, &out, &even, &odd, at);
        add_span(params, &run, lines, &out, &odd, true, at);
    } else {
        add_span(params, &run, lines, &out, &even, true, at);
    }
    PRODUCTS_DONE_BUT(0);
    BARRIER();
    store_all_lines(in, lines, &out, first_head, start, end, at);
    BARRIER();
}

BODY(attention_warpgroup) { attend_runs(in, pass, params, at); }
