// Attention of one row over a cache of f16 or q8, on tensor cores: the query heads that share a KV head, at most eight, are
// the rows of one matrix product. A SIMD group takes 16 positions per iteration, of f16 directly from the cache: the next keys
// are loaded as soon as the scores are computed, the next values as soon as the current ones are accumulated. With g =
// lane / 4 and t = lane % 4, a lane has the scores and accumulators of head g, the keys of positions g and g + 8, and
// the values of positions 2t, 2t + 1, 2t + 8 and 2t + 9.
//
// The reduction order of a product is free as long as both operands agree, so each lane loads consecutive numbers: of
// a key, 8 numbers of each 32 (selected by t); of a value, VALUE_PIECE numbers of each 8 · VALUE_PIECE (selected by
// g).
//
// Keys and values are f16 already. Queries and weights are split in two f16, q = f16(q) + f16(q − f16(q)): rows 0 … 7
// of the product hold the high parts and rows 8 … 15 the remainders. This keeps f32 accuracy, and uses rows that would
// otherwise be padding.
//
// Runs of q8 are copied to threadgroup memory as the cache has them, some runs ahead. A lane reads four codes at a time there: of
// a key, those from 4t on of each 16; of a value, those from 4g on of each 32. They are multiplied as attention_numbers.h has them:
// scores of each block of 32 by the scales of keys, and weights by those of values.

#define RUN 16
#define STEPS (HEAD_DIM / 16)
#define KEY_LOADS (HEAD_DIM / 32)
#define VALUE_PIECE (HEAD_DIM % 64 == 0 && !QUANTISED ? 8 : 4)
#define VALUE_WORDS (VALUE_PIECE / 2)
#define VALUE_LOADS (HEAD_DIM / (8 * VALUE_PIECE))
#define LOG2_E 1.44269504f
// The position in a run of the lane's score e, and of the values that it is for.
#define WITHIN(e) (LANE % 4 * 2 + (e) % 2 + (e) / 2 * 8)

struct Query {
    Quad step[STEPS];
};

// The partial result of head g. Words e and e + 2 of sums[i][j] belong to element 8 · VALUE_PIECE · i + VALUE_PIECE ·
// (2t + e) + j: word e from the high parts of the weights, word e + 2 from the remainders.
struct Part {
    f32 most, total;
    Floats sums[VALUE_LOADS][VALUE_PIECE];
};

// High parts of the numbers go to row g, remainders to row g + 8.
INLINE Quad split_in_two(f32 a, f32 b, f32 c, f32 d) {
    Quad q;
    q.v[0] = TWO_NUMBERS(a, b);
    q.v[1] = left_of(a, b, q.v[0]);
    q.v[2] = TWO_NUMBERS(c, d);
    q.v[3] = left_of(c, d, q.v[2]);
    return q;
}

INLINE Query load_query(Bindings in, Params params, Task task, const THREADGROUP f32* rotated, Place at) {
    Query q = {};
    const u32 head = LANE / 4;
    if (head >= task.heads) return q;
#if ROPE
    const THREADGROUP f32* from = rotated + head * HEAD_DIM;
    const f32 factor = 1.0f;
#else
    const DEVICE f32* from = (const DEVICE f32*)in.q + ((u64)task.row * HEADS + task.first_head + head) * HEAD_DIM;
    const f32 factor = QUERY_SCALE(in, params, task.place);
#endif
    UNROLL for (u32 s = 0; s < STEPS; s++) {
        const u32 i = QUANTISED ? s * 16 + LANE % 4 * 4 : s / 2 * 32 + LANE % 4 * 8 + s % 2 * 4;
        q.step[s] = split_in_two(from[i] * factor, from[i + 1] * factor, from[i + 2] * factor, from[i + 3] * factor);
    }
    return q;
}

// The own position's are not read, as nothing is beyond the end or before what is visible.
INLINE bool is_there(u32 position, Span span) {
    return position >= span.seen && position < span.end && !(ROPE && position == span.own);
}

// The first row of a run of positions, which is in one block.
INLINE const DEVICE u8* run_at(Bindings in, const DEVICE u8* rows, Task task, u32 base) {
    return base < task.span.end ? rows + kv_place(in, task.place.start + base) * KV_ROW_BYTES : rows;
}

#if QUANTISED
// Runs of a SIMD group in threadgroup memory, each of keys, then of values: those that are copied, and the one that is used.
#define STAGES 3
#define STAGE_BYTES (2 * RUN * ROW_BYTES)
#define CHUNKS (RUN * ROW_BYTES / 16)

INLINE void copy_run(Bindings in, Task task, u32 base, THREADGROUP u8* stage, Place at) {
    const u32 bytes = base < task.span.end ? (task.span.end - base) * ROW_BYTES : 0;
    const DEVICE u8 *k = run_at(in, task.k, task, base), *v = run_at(in, task.v, task, base);
    UNROLL for (u32 i = 0; i < 2 * CHUNKS; i += 32) {
        const u32 chunk = i + LANE, offset = chunk % CHUNKS * 16;
        if (chunk < 2 * CHUNKS) copy16(stage + chunk * 16, (chunk < CHUNKS ? k : v) + (offset < bytes ? offset : 0), offset < bytes);
    }
    COPY_GROUP();
}

// Four codes from `first` on, a multiple of four, of a block of a row. Every other block begins in the middle of a word.
INLINE u32 codes_at(const THREADGROUP u8* row, u32 block, u32 first) {
    const THREADGROUP u32* words = (const THREADGROUP u32*)(row + block * 34 + first + (block % 2 == 0 ? 0 : 2));
    return block % 2 == 0 ? byte_perm(words[0], words[1], 0x5432u) : words[0];
}

INLINE f32 scale_at(const THREADGROUP u8* row, u32 block) { return f16_to_f32(*(const THREADGROUP u16*)(row + block * 34)); }

// The scores of head g for positions 2t, 2t + 1, 2t + 8 and 2t + 9.
INLINE Floats scores_of(const THREAD_PTR Query* q, const THREADGROUP u8* keys, Place at) {
    Floats scores = {};
    UNROLL for (u32 n = 0; n < 2; n++) {
        const THREADGROUP u8* const key = keys + (n * 8 + LANE / 4) * ROW_BYTES;
        UNROLL for (u32 block = 0; block < HEAD_DIM / 32; block++) {
            Floats sums = {};
            UNROLL for (u32 s = 0; s < 2; s++) {
                const u32 codes = codes_at(key, block, s * 16 + LANE % 4 * 4);
                sums = multiply_bfloats(q->step[block * 2 + s], bfloats_of(codes, 0, 1), bfloats_of(codes, 2, 3), sums);
            }
            UNROLL for (u32 e = 0; e < 2; e++) {
                const f32 scale = scale_at(keys + WITHIN(n * 2 + e) * ROW_BYTES, block);
                scores.v[n * 2 + e] = fused(sums.v[e] + sums.v[e + 2], scale, scores.v[n * 2 + e]);
            }
        }
    }
    return scores;
}

INLINE void add_values(THREAD_PTR Part* part, Floats weights, const THREADGROUP u8* values, u32 base, Span span, Place at) {
    UNROLL for (u32 block = 0; block < HEAD_DIM / 32; block++) {
        u32 codes[4];
        UNROLL for (u32 e = 0; e < 4; e++) codes[e] = codes_at(values + WITHIN(e) * ROW_BYTES, block, LANE / 4 * 4);
        f32 scaled[4];
        UNROLL for (u32 e = 0; e < 4; e++) {
            const bool there = is_there(base + WITHIN(e), span);
            scaled[e] = there ? weights.v[e] * scale_at(values + WITHIN(e) * ROW_BYTES, block) : 0.0f;
        }
        const Quad split = split_in_two(scaled[0], scaled[1], scaled[2], scaled[3]);
        UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 first = bfloats_of_two(codes[0], codes[1], j), second = bfloats_of_two(codes[2], codes[3], j);
            part->sums[block][j] = multiply_bfloats(split, first, second, part->sums[block][j]);
        }
    }
}
#else
struct Keys {
    Quad v[2][KEY_LOADS];
};

struct Values {
    u32 v[VALUE_LOADS][4][VALUE_WORDS];
};

INLINE Keys load_keys(Bindings in, Task task, u32 base, Place at) {
    Keys keys = {};
    const DEVICE u8* run = run_at(in, task.k, task, base);
    UNROLL for (u32 n = 0; n < 2; n++) {
        const u32 within = 8 * n + LANE / 4;
        if (!is_there(base + within, task.span)) continue;
        UNROLL for (u32 i = 0; i < KEY_LOADS; i++) {
            const u32x4 a = read16(run + within * KV_ROW_BYTES + i * 64 + LANE % 4 * 16);
            const Quad words = {{a.x, a.y, a.z, a.w}};
            keys.v[n][i] = words;
        }
    }
    return keys;
}

INLINE Values load_values(Bindings in, Task task, u32 base, Place at) {
    Values values = {};
    const DEVICE u8* run = run_at(in, task.v, task, base);
    UNROLL for (u32 r = 0; r < 4; r++) {
        const u32 within = WITHIN(r);
        if (!is_there(base + within, task.span)) continue;
        UNROLL for (u32 i = 0; i < VALUE_LOADS; i++) {
            const DEVICE u8* from = run + within * KV_ROW_BYTES + (i * 8 + LANE / 4) * (VALUE_PIECE * 2);
#if HEAD_DIM % 64 == 0
            const u32x4 a = read16(from);
            values.v[i][r][0] = a.x; values.v[i][r][1] = a.y; values.v[i][r][2] = a.z; values.v[i][r][3] = a.w;
#else
            const u32x2 a = read8(from);
            values.v[i][r][0] = a.x; values.v[i][r][1] = a.y;
#endif
        }
    }
    return values;
}

#if ROPE
// Inserts the own position's key and value, which `own` has, one after the other.
INLINE void put_own(THREAD_PTR Keys* keys, THREAD_PTR Values* values, const THREADGROUP f32* own, u32 base, Span span, Place at) {
    UNROLL for (u32 n = 0; n < 2; n++) {
        if (base + 8 * n + LANE / 4 != span.own) continue;
        UNROLL for (u32 i = 0; i < KEY_LOADS * 4; i++) {
            const THREADGROUP f32* two = own + i / 4 * 32 + LANE % 4 * 8 + i % 4 * 2;
            keys->v[n][i / 4].v[i % 4] = two_halves(two[0], two[1]);
        }
    }
    UNROLL for (u32 r = 0; r < 4; r++) {
        if (base + WITHIN(r) != span.own) continue;
        UNROLL for (u32 i = 0; i < VALUE_LOADS * VALUE_WORDS; i++) {
            const THREADGROUP f32* two = own + HEAD_DIM + (i / VALUE_WORDS * 8 + LANE / 4) * VALUE_PIECE + i % VALUE_WORDS * 2;
            values->v[i / VALUE_WORDS][r][i % VALUE_WORDS] = two_halves(two[0], two[1]);
        }
    }
}
#endif

// The scores of head g for positions 2t, 2t + 1, 2t + 8 and 2t + 9 from `base` on.
INLINE Floats scores_of(const THREAD_PTR Query* q, const THREAD_PTR Keys* keys) {
    Floats both[2] = {};
    UNROLL for (u32 s = 0; s < STEPS; s++) {
        UNROLL for (u32 n = 0; n < 2; n++) {
            const Quad key = keys->v[n][s / 2];
            both[n] = multiply_halves(q->step[s], key.v[s % 2 * 2], key.v[s % 2 * 2 + 1], both[n]);
        }
    }
    const Floats scores = {{both[0].v[0] + both[0].v[2], both[0].v[1] + both[0].v[3], both[1].v[0] + both[1].v[2], both[1].v[1] + both[1].v[3]}};
    return scores;
}

INLINE void add_values(THREAD_PTR Part* part, Floats weights, const THREAD_PTR Values* values) {
    const Quad split = split_in_two(weights.v[0], weights.v[1], weights.v[2], weights.v[3]);
    UNROLL for (u32 i = 0; i < VALUE_LOADS; i++) {
        UNROLL for (u32 j = 0; j < VALUE_PIECE; j++) {
            // Element j of two positions' values, packed in a word.
            const u32 w = j / 2, pick = j % 2 == 0 ? 0x5410u : 0x7632u;
            const u32 first = byte_perm(values->v[i][0][w], values->v[i][1][w], pick);
            const u32 second = byte_perm(values->v[i][2][w], values->v[i][3][w], pick);
            part->sums[i][j] = multiply_halves(split, first, second, part->sums[i][j]);
        }
    }
}
#endif

// Turns scores into softmax weights, updates the running maximum and sum, and rescales what was accumulated before.
INLINE Floats online_softmax(THREAD_PTR Part* part, Floats scores, u32 base, Span span, f32 cap, Place at) {
    f32 most = part->most;
    UNROLL for (u32 e = 0; e < 4; e++) {
        if (CAPPED) scores.v[e] = cap * TANH(scores.v[e] / cap);
        const u32 position = base + WITHIN(e);
        if (position < span.seen || position >= span.end) scores.v[e] = 2 * LOWEST;
        most = MAX_F32(most, scores.v[e]);
    }
    most = MAX_F32(most, SIMD_XOR(most, 1));
    most = MAX_F32(most, SIMD_XOR(most, 2));
    const f32 keep = EXP2((part->most - most) * LOG2_E);
    part->most = most;
    part->total *= keep;
    UNROLL for (u32 e = 0; e < 4; e++) {
        scores.v[e] = EXP2(fused(scores.v[e], LOG2_E, -most * LOG2_E));
        part->total += scores.v[e];
    }
    UNROLL for (u32 i = 0; i < VALUE_LOADS; i++) {
        UNROLL for (u32 j = 0; j < VALUE_PIECE; j++) {
            UNROLL for (u32 e = 0; e < 4; e++) part->sums[i][j].v[e] *= keep;
        }
    }
    return scores;
}

BODY(attention_few) {
    const Task task = task_of(in, pass, params, at);
    const Span span = task.span;
    u32 base = span.from + SIMD * RUN;
    TG_ARRAY(f32, rotated, 0);
    if (!task.live) {
        leave_early(task);
        return;
    }
#if ROPE
    Keys keys = load_keys(in, task, base, at);
    Values values = load_values(in, task, base, at);
#endif
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    Part part = {};
    part.most = LOWEST;
#if QUANTISED
    THREADGROUP u8* const stages = at.shared + SIMD * (STAGES * STAGE_BYTES);
    UNROLL for (u32 i = 0; i + 1 < STAGES; i++) copy_run(in, task, base + i * SIMDS * RUN, stages + i * STAGE_BYTES, at);
    const Query q = load_query(in, params, task, rotated, at);
    for (u32 i = 0; base < span.end; base += SIMDS * RUN, i = i + 1 < STAGES ? i + 1 : 0) {
        const THREADGROUP u8* const keys = stages + i * STAGE_BYTES;
        copy_run(in, task, base + (STAGES - 1) * SIMDS * RUN, stages + (i > 0 ? i - 1 : STAGES - 1) * STAGE_BYTES, at);
        COPIES_DONE_BUT(STAGES - 1);
        SIMD_SYNC();
        const Floats weights = online_softmax(&part, scores_of(&q, keys, at), base, span, params.attention.soft_cap, at);
        add_values(&part, weights, keys + RUN * ROW_BYTES, base, span, at);
        SIMD_SYNC();
    }
    COPIES_DONE();
    BARRIER();
#else
#if ROPE
    rotate_heads(in, params, task, rotated, at);
    BARRIER();
#else
    Keys keys = load_keys(in, task, base, at);
    Values values = load_values(in, task, base, at);
#endif
    const Query q = load_query(in, params, task, rotated, at);
    for (; base < span.end; base += SIMDS * RUN) {
#if ROPE
        if (base <= span.own && span.own < base + RUN) put_own(&keys, &values, rotated + HEAD_TILE * HEAD_DIM, base, span, at);
#endif
        const Floats scores = scores_of(&q, &keys);
        keys = load_keys(in, task, base + SIMDS * RUN, at);
        add_values(&part, online_softmax(&part, scores, base, span, params.attention.soft_cap, at), &values);
        values = load_values(in, task, base + SIMDS * RUN, at);
    }
#endif
    part.total += SIMD_XOR(part.total, 1);
    part.total += SIMD_XOR(part.total, 2);

    TG_ARRAY(f32, parts, ROTATED_FLOATS * 4);
    if (LANE / 4 < task.heads) {
        THREADGROUP f32* mine = parts + SIMD * TILE_FLOATS + LANE / 4 * PART;
        UNROLL for (u32 i = 0; i < VALUE_LOADS; i++) {
            UNROLL for (u32 j = 0; j < VALUE_PIECE; j++) {
                UNROLL for (u32 e = 0; e < 2; e++) {
                    mine[(i * 8 + LANE % 4 * 2 + e) * VALUE_PIECE + j] = part.sums[i][j].v[e] + part.sums[i][j].v[e + 2];
                }
            }
        }
        if (LANE % 4 == 0) {
            mine[HEAD_DIM] = part.most;
            mine[HEAD_DIM + 1] = part.total;
        }
    }
    BARRIER();
    finish_heads(in, scratch, parts, task, at);
}
