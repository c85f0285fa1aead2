// Samples a token for each row that requested logits, as akunu_plan::sample defines it, in three launches and without a
// sort. The first, sample_shape, does nothing for most settings.
//
// A token that another one beats both in score (logit plus Gumbel noise) and in key (the logit, which top-k, top-p and
// min-p rank by) is never picked: the limits keep all tokens from some key on, and of these the highest score wins.
// The tokens that no other beats form a staircase (Pareto front) of falling score and rising key, about ln(vocabulary)
// of them, and the first one that the limits keep is the result. sample_stairs finds these "stairs", first in each
// part of the vocabulary, then overall. sample_pick computes the rank and cumulative weight of each. If there are more
// stairs than are kept, one threadgroup searches the rest sequentially.

// A row's sampling record at one step.
struct Record {
    Settings settings;
    // One bit per token, tested only if the settings say so.
    const DEVICE u32* mask;
    u32 bias_count;
    const DEVICE u32* biases;
    DEVICE u32* recent;
    // `known` is the length of `recent`; penalties look at the last `window` of it.
    u32 known, window;
    u32 draw_low, draw_high;
    // The inverse temperature, and the bounds of the scaled logits that are kept.
    f32 scale, least, most;
};

struct Stair {
    u32 score;
    // The complement of the id, so that on equal scores the lowest id wins.
    u32 id;
    u32 key;
};

// The number of tokens with a higher key, and their total softmax weight.
struct Rank {
    u64 weight;
    u32 better, unused;
};

// What sample_shape finds for a row: the inverse temperature, and the bounds of the scaled logits that are kept.
struct Shape {
    f32 scale, least, most;
    u32 unused;
};

// The layout of scratch memory per row of a launch, which begins with row FIRST_ROW: Shape, Merged, then PARTS × Part,
// then PARTS × RANKS × Rank.
struct Merged {
    u32 count, best_key;
    Stair stairs[MERGED];
};

struct Part {
    u32 best_key, unused;
    Stair stairs[STAIRS];
};

static_assert(sizeof(Stair) == 12 && sizeof(Rank) == 16 && sizeof(Shape) == 16 && sizeof(Merged) == 8 + MERGED * 12 && sizeof(Part) == 8 + STAIRS * 12,
              "as launch/sample.rs has them");

// The last rank is the total weight of all tokens.
#define RANKS (MERGED + 1)
#define ROW_BYTES (sizeof(Shape) + sizeof(Merged) + PARTS * (sizeof(Part) + RANKS * sizeof(Rank)))
#define CHUNK (EACH * THREADS)
// The size of a mask in 32-bit words.
#define MASK_WORDS ((VOCAB + 31) / 32)
// The key of −∞, which is never picked.
#define NOTHING 0x007fffffu
// The index of the counter of finished rows, which counts those of all launches of a step.
#define ROWS_DONE (COUNTER_BYTES / 4 - 1)

// Offsets in threadgroup memory. The first 16 bytes belong to last_to_finish and the chain's stop flag.
#define SPACE 16
#define RANK_SPACE (SPACE + 64 * 12)
#define SUM_SPACE (RANK_SPACE + SIMDS * RANKS * 16)
#define COUNT_SPACE (SUM_SPACE + RANKS * 16)
#define BIAS_SPACE (COUNT_SPACE + CHUNK * 4)
#define SURVEY_SPACE RANK_SPACE

INLINE DEVICE Shape* shape_of(DEVICE u8* scratch, u32 row) {
    return (DEVICE Shape*)(scratch + COUNTER_BYTES + (u64)(row - FIRST_ROW) * ROW_BYTES);
}
INLINE DEVICE Merged* merged_of(DEVICE u8* scratch, u32 row) { return (DEVICE Merged*)(shape_of(scratch, row) + 1); }
INLINE DEVICE Part* parts_of(DEVICE u8* scratch, u32 row) { return (DEVICE Part*)(merged_of(scratch, row) + 1); }
INLINE DEVICE Rank* ranks_of(DEVICE u8* scratch, u32 row) { return (DEVICE Rank*)(parts_of(scratch, row) + PARTS); }

INLINE u32 least_of(u32 a, u32 b) { return a < b ? a : b; }

INLINE bool is_greedy(Settings s) { return s.inverse_temperature == 0.0f; }

INLINE bool is_shaped(Settings s) {
    const bool narrows = s.typical_p < 0xffffffffu || s.xtc_probability > 0;
    return !is_greedy(s) && (s.span > 0.0f || s.top_n_sigma > 0.0f || narrows);
}

INLINE Record record_of(Bindings in, u32 row, u32 step) {
    const DEVICE Settings* settings = (const DEVICE Settings*)in.sampling;
    Record record;
    record.settings = settings[row];
    DEVICE u32* words = (DEVICE u32*)in.sampling + record.settings.place;
    record.mask = words;
    if (record.settings.masked == 1) words += MASK_WORDS;
    record.bias_count = least_of(record.settings.biases, BIASES);
    record.biases = words;
    record.recent = words + 2 * record.bias_count;
    record.known = least_of(record.settings.recent, WINDOW) + step;
    record.window = least_of(least_of(record.settings.window, WINDOW), record.known);
    record.draw_low = record.settings.draw[0] + step;
    record.draw_high = record.settings.draw[1] + (record.draw_low < step ? 1 : 0);
    record.scale = is_greedy(record.settings) ? 1.0f : record.settings.inverse_temperature;
    record.least = as_f32(0xff800000u);
    record.most = as_f32(0x7f800000u);
    return record;
}

// The same with what sample_shape found at this step.
INLINE Record shaped(DEVICE u8* scratch, u32 row, Record record) {
    if (!is_shaped(record.settings)) return record;
    const Shape shape = published(shape_of(scratch, row));
    record.scale = shape.scale;
    record.least = shape.least;
    record.most = shape.most;
    return record;
}

// Whether the first of the stairs may be excluded. sample_shape replaces limits by bounds.
INLINE bool is_limited(Settings s) {
    return !is_greedy(s) && !is_shaped(s) && (s.top_k > 0 || s.top_p < 0xffffffffu || s.min_p > as_f32(0xff800000u));
}

INLINE f32 penalised(Settings s, f32 logit, u32 count) {
    logit = logit > 0.0f ? over(logit, s.repeat_penalty) : times(logit, s.repeat_penalty);
    return plus(logit, -plus(times((f32)count, s.frequency_penalty), s.presence_penalty));
}

INLINE f32 scaled(f32 scale, f32 logit) {
    const f32 x = times(logit, scale);
    if ((as_u32(x) & 0x7fffffffu) > 0x7f800000u) return as_f32(0xff800000u);
    return x > as_f32(0x7f7fffffu) ? as_f32(0x7f7fffffu) : x;
}

INLINE bool keeps(Settings s, u32 key, u32 best_key, Rank rank, u64 total) {
    if (key == best_key) return true;
    const u64 p = s.top_p, enough = (total >> 32) * p + ((total & 0xffffffffu) * p >> 32);
    const bool by_p = s.top_p == 0xffffffffu || rank.weight < (enough > 0 ? enough : 1);
    const f32 below = plus(unordered(key), -unordered(best_key));
    return (s.top_k == 0 || rank.better < s.top_k) && by_p && below >= s.min_p;
}

INLINE Stair better(Stair a, Stair b) { return b.score > a.score || (b.score == a.score && b.id > a.id) ? b : a; }

INLINE Stair simd_best(Stair own) {
    Stair best;
    best.score = SIMD_MAX_U32(own.score);
    best.id = SIMD_MAX_U32(own.score == best.score ? own.id : 0);
    best.key = SIMD_MAX_U32(own.score == best.score && own.id == best.id ? own.key : 0);
    return best;
}

// The best stair over the threadgroup, returned to all threads. `space`: 32 stairs that no thread still reads.
INLINE Stair group_best(Stair own, THREADGROUP Stair* space, Place at) {
    own = simd_best(own);
    if (LANE == 0) space[SIMD] = own;
    BARRIER();
    Stair best = {0, 0, 0};
    if (LANE < SIMDS) best = space[LANE];
    return simd_best(best);
}

INLINE u32 group_max(u32 own, THREADGROUP u32* space, Place at) {
    own = SIMD_MAX_U32(own);
    BARRIER();
    if (LANE == 0) space[SIMD] = own;
    BARRIER();
    own = SIMD_MAX_U32(LANE < SIMDS ? space[LANE] : 0);
    BARRIER();
    return own;
}

INLINE Rank simd_rank(u32 better, u64 weight) {
    const u64 low = (u32)SIMD_SUM_I32((i32)(weight & 0xffffffu)), high = (u32)SIMD_SUM_I32((i32)(weight >> 24));
    const Rank rank = {low + (high << 24), (u32)SIMD_SUM_I32((i32)better), 0};
    return rank;
}

// The id of this thread's i-th token of a part. Four consecutive ids share one Philox output block.
INLINE u32 token_of(u32 part, u32 i, Place at) { return part * CHUNK + 4 * (i / 4 * THREADS + at.in_group) + i % 4; }

// The scaled logits of this thread's tokens, −∞ past the end of the vocabulary. Returns false if a logit is not
// finite.
INLINE bool scale_part(Bindings in, u32 row, Record record, u32 part, THREAD_PTR f32* x, Place at) {
    const DEVICE f32* logits = (const DEVICE f32*)in.logits + (u64)row * VOCAB;
    TG_ARRAY(u32, counts, COUNT_SPACE);
    TG_ARRAY(f32, added, BIAS_SPACE);
    const bool edited = record.window > 0 || record.bias_count > 0;
    if (edited) {
        BARRIER();
        for (u32 i = at.in_group; i < CHUNK; i += THREADS) {
            counts[i] = 0;
            added[i] = 0.0f;
        }
        BARRIER();
        for (u32 i = at.in_group; i < record.window; i += THREADS) {
            const u32 place = record.recent[record.known - record.window + i] - part * CHUNK;
            if (place < CHUNK) TG_ATOMIC_ADD(&counts[place], 1u);
        }
        for (u32 i = at.in_group; i < record.bias_count; i += THREADS) {
            const u32 place = record.biases[2 * i] - part * CHUNK;
            if (place < CHUNK) added[place] = as_f32(record.biases[2 * i + 1]);
        }
        BARRIER();
    }
    bool finite = true;
    UNROLL for (u32 i = 0; i < EACH; i++) {
        const u32 id = token_of(part, i, at);
        x[i] = as_f32(0xff800000u);
        if (id >= VOCAB) continue;
        f32 logit = logits[id];
        finite = finite && (as_u32(logit) & 0x7fffffffu) < 0x7f800000u;
        if (edited) {
            const u32 place = id - part * CHUNK;
            logit = plus(logit, added[place]);
            if (counts[place] > 0) logit = penalised(record.settings, logit, counts[place]);
        }
        const bool may_follow = record.settings.masked != 1 || (record.mask[id / 32] >> id % 32 & 1) == 1;
        const f32 value = scaled(record.scale, logit);
        if (may_follow && value >= record.least && value <= record.most) x[i] = value;
    }
    return finite;
}

// The Gumbel noise of this thread's tokens of a part; zeros for greedy sampling.
struct Draws {
    f32 v[EACH];
};

INLINE Draws draws_of(Record record, u32 part, Place at) {
    const Settings s = record.settings;
    Draws draws = {};
    if (is_greedy(s)) return draws;
    UNROLL for (u32 i = 0; i < EACH; i += 4) {
        const Four bits = philox(token_of(part, i, at) / 4, record.draw_low, record.draw_high, s.seed[0], s.seed[1]);
        UNROLL for (u32 k = 0; k < 4; k++) draws.v[i + k] = gumbel(bits.words[k]);
    }
    return draws;
}

// This thread's tokens of a part as candidates for stairs.
INLINE void score_part(Record record, u32 part, const THREAD_PTR f32* x, Draws draws, THREAD_PTR Stair* own, Place at) {
    const bool greedy = is_greedy(record.settings);
    UNROLL for (u32 i = 0; i < EACH; i++) {
        const Stair none = {0, 0, 0};
        const Stair one = {ordered(greedy ? x[i] : plus(x[i], draws.v[i])), ~token_of(part, i, at), ordered(x[i])};
        own[i] = one.key > NOTHING ? one : none;
    }
}

// Writes the stairs among the candidates of all threads (`N` each) with a score of at least `least`. Returns how many.
template <u32 N>
INLINE u32 descend(const THREAD_PTR Stair* own, u32 least, u32 most, DEVICE Stair* out, Place at) {
    TG_ARRAY(Stair, space, SPACE);
    u32 bar = NOTHING, count = 0;
    for (; count < most; count++) {
        Stair best = {0, 0, 0};
        // Metal does not accept ?: between an rvalue and an lvalue with an address space.
        UNROLL for (u32 i = 0; i < N; i++) best = own[i].key > bar ? better(best, own[i]) : Stair(best);
        best = group_best(best, space + count % 2 * 32, at);
        if (best.score < least) break;
        if (at.in_group == 0) publish(&out[count], best);
        bar = best.key;
    }
    return count;
}

// Merges the stairs of all parts.
INLINE void merge(DEVICE u8* scratch, u32 row, Place at) {
    TG_ARRAY(u32, space, SPACE);
    const DEVICE Part* parts = parts_of(scratch, row);
    DEVICE Merged* merged = merged_of(scratch, row);
    // If a part had more stairs than it kept, the dropped ones score below its last; stairs below that bound are
    // unreliable.
    u32 best_key = 0, least = 1;
    Stair own[HELD];
    UNROLL for (u32 i = 0; i < HELD; i++) {
        const u32 index = i * THREADS + at.in_group;
        const Stair none = {0, 0, 0};
        own[i] = none;
        if (index < PARTS * STAIRS) own[i] = published(&parts[index / STAIRS].stairs[index % STAIRS]);
        if (index % STAIRS == STAIRS - 1 && own[i].score > least) least = own[i].score;
        if (index < PARTS && published(&parts[index].best_key) > best_key) best_key = published(&parts[index].best_key);
    }
    best_key = group_max(best_key, space, at);
    least = group_max(least, space, at);
    const u32 count = descend<HELD>(own, least, MERGED, merged->stairs, at);
    if (at.in_group == 0) {
        merged->count = count;
        merged->best_key = best_key;
    }
}

BODY(sample_stairs) {
    const u32 live = live_rows(pass, true), row = FIRST_ROW + at.group_y, part = at.group_x;
    // The noise depends only on the token's id, so it is computed before the wait, while logits are still being
    // written.
    Record record = record_of(in, row < live ? row : 0, pass->step);
    const Draws draws = draws_of(record, part, at);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    record = shaped(scratch, row, record);
    f32 x[EACH];
    Stair own[EACH];
    const bool finite = scale_part(in, row, record, part, x, at);
    score_part(record, part, x, draws, own, at);
    if (!finite) own[0].score = own[0].key = 0xffffffffu;

    TG_ARRAY(u32, space, SPACE);
    DEVICE Part* found = parts_of(scratch, row) + part;
    u32 best_key = 0;
    UNROLL for (u32 i = 0; i < EACH; i++) best_key = own[i].key > best_key ? own[i].key : best_key;
    best_key = group_max(best_key, space, at);
    if (at.in_group == 0) publish(&found->best_key, best_key);
    const u32 count = descend<EACH>(own, 1, is_limited(record.settings) ? STAIRS : 1, found->stairs, at);
    const Stair none = {0, 0, 0};
    for (u32 i = count + at.in_group; i < STAIRS; i += THREADS) publish(&found->stairs[i], none);
    if (last_to_finish(scratch, row - FIRST_ROW, PARTS, at)) merge(scratch, row, at);
}

// For one part: the number and weight of tokens above each stair's key, and the total weight.
INLINE void rank_part(DEVICE u8* scratch, u32 row, u32 part, const THREAD_PTR f32* x, Place at) {
    const DEVICE Merged* merged = merged_of(scratch, row);
    const u32 count = merged->count;
    const f32 best = unordered(merged->best_key);
    u32 keys[EACH], weights[EACH];
    UNROLL for (u32 i = 0; i < EACH; i++) {
        keys[i] = ordered(x[i]);
        weights[i] = weight_of(plus(x[i], -best));
    }
    TG_ARRAY(Rank, ranks, RANK_SPACE);
    TG_ARRAY(u32, bars, SPACE);
    // Stage all keys. The last bound, 0, is below every token's key.
    if (at.in_group <= count) bars[at.in_group] = at.in_group < count ? merged->stairs[at.in_group].key : 0;
    BARRIER();
    // Four at a time, to overlap the latency of the SIMD reductions.
    for (u32 first = 0; first <= count; first += 4) {
        UNROLL for (u32 k = 0; k < 4; k++) {
            const u32 r = first + k, bar = bars[r];
            u32 number = 0;
            u64 weight = 0;
            UNROLL for (u32 i = 0; i < EACH; i++) {
                number += keys[i] > bar ? 1 : 0;
                weight += keys[i] > bar ? weights[i] : 0;
            }
            const Rank rank = simd_rank(number, weight);
            if (LANE == 0 && r <= count) ranks[SIMD * RANKS + r] = rank;
        }
    }
    BARRIER();
    for (u32 r = at.in_group; r <= count; r += THREADS) {
        Rank sum = {0, 0, 0};
        UNROLL for (u32 i = 0; i < SIMDS; i++) {
            sum.weight += ranks[i * RANKS + r].weight;
            sum.better += ranks[i * RANKS + r].better;
        }
        publish(&ranks_of(scratch, row)[part * RANKS + r], sum);
    }
}

// Sums the ranks over all parts, into threadgroup memory.
INLINE void sum_ranks(const DEVICE Rank* ranks, u32 count, THREADGROUP Rank* sums, Place at) {
    for (u32 r = SIMD; r <= count; r += SIMDS) {
        u32 number = 0;
        u64 weight = 0;
        UNROLL for (u32 part = LANE; part < PARTS; part += 32) {
            number += published(&ranks[part * RANKS + r].better);
            weight += published(&ranks[part * RANKS + r].weight);
        }
        const Rank rank = simd_rank(number, weight);
        if (LANE == 0) sums[r] = rank;
    }
    BARRIER();
}

// Searches the whole row for one stair after the other, from key `bar` on, with one threadgroup. Apart, since few rows need
// it.
OUTLINE u32 search_row(Bindings in, u32 row, Record record, u32 bar, u32 best_key, u64 total, Place at) {
    TG_ARRAY(Stair, space, SPACE);
    TG_ARRAY(Rank, ranks, RANK_SPACE);
    const f32 best = unordered(best_key);
    f32 x[EACH];
    Stair own[EACH];
    for (;;) {
        Stair next = {0, 0, 0};
        for (u32 part = 0; part < PARTS; part++) {
            scale_part(in, row, record, part, x, at);
            score_part(record, part, x, draws_of(record, part, at), own, at);
            UNROLL for (u32 i = 0; i < EACH; i++) next = own[i].key > bar ? better(next, own[i]) : Stair(next);
        }
        BARRIER();
        next = group_best(next, space, at);
        u32 number = 0;
        u64 weight = 0;
        for (u32 part = 0; part < PARTS; part++) {
            scale_part(in, row, record, part, x, at);
            UNROLL for (u32 i = 0; i < EACH; i++) {
                number += ordered(x[i]) > next.key ? 1 : 0;
                weight += ordered(x[i]) > next.key ? weight_of(plus(x[i], -best)) : 0;
            }
        }
        const Rank own_rank = simd_rank(number, weight);
        if (LANE == 0) ranks[SIMD] = own_rank;
        BARRIER();
        Rank rank = {0, 0, 0};
        for (u32 i = 0; i < SIMDS; i++) {
            rank.weight += ranks[i].weight;
            rank.better += ranks[i].better;
        }
        if (keeps(record.settings, next.key, best_key, rank, total)) return ~next.id;
        bar = next.key;
    }
}

// The first stair that the limits keep, once all parts have been ranked.
INLINE u32 first_kept(Bindings in, DEVICE u8* scratch, u32 row, Record record, Place at) {
    const DEVICE Merged* merged = merged_of(scratch, row);
    const u32 count = merged->count, best_key = merged->best_key;
    // One stair per lane.
    Stair stair = {0, 0, 0};
    if (LANE < count) stair = merged->stairs[LANE];
    TG_ARRAY(Rank, sums, SUM_SPACE);
    sum_ranks(ranks_of(scratch, row), count, sums, at);
    const u64 total = sums[count].weight;
    const bool left_in = LANE < count && keeps(record.settings, stair.key, best_key, sums[LANE], total);
    const u32 first = SIMD_MAX_U32(left_in ? MERGED - LANE : 0);
    if (first > 0) return SIMD_MAX_U32(LANE == MERGED - first ? ~stair.id : 0);
    return search_row(in, row, record, merged->stairs[count - 1].key, best_key, total, at);
}

BODY(sample_pick) {
    const u32 live = live_rows(pass, true), row = FIRST_ROW + at.group_y, step = pass->step, stop = stop_of(pass, LANE);
    const bool advance = params.sample.advance > 0;
    RequestedRow requested = requested_row(in, SIMD < live ? SIMD : 0);
    const Record record = record_of(in, row < live ? row : 0, step);
    f32 x[EACH];
    if (is_limited(record.settings)) scale_part(in, row < live ? row : 0, record, at.group_x, x, at);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    const DEVICE Merged* merged = merged_of(scratch, row);
    const u32 count = merged->count;
    const Stair first = merged->stairs[0];
    // The token with the highest logit passes every limit, and without limits the first stair wins.
    const bool ranked = count > 0 && first.key < merged->best_key && is_limited(record.settings);
    if (!ranked && at.group_x > 0) return;
    u32 token = count == 0 || first.score == 0xffffffffu ? NO_TOKEN : ~first.id;
    if (ranked) {
        rank_part(scratch, row, at.group_x, x, at);
        if (!last_to_finish(scratch, row - FIRST_ROW, PARTS, at)) return;
        token = first_kept(in, scratch, row, record, at);
    }
    DEVICE u32* tokens = (DEVICE u32*)in.tokens + (u64)(step + 1) * LOGIT_CAPACITY;
    if (at.in_group == 0) record.recent[record.known] = token;
    if (live > 1) {
        if (at.in_group == 0) publish(&tokens[row], token);
        if (!last_to_finish(scratch, ROWS_DONE, live, at)) return;
    }
    TG_ARRAY(u32, stops, 4);
    BARRIER();
    if (at.in_group == 0) *stops = 0;
    BARRIER();
    for (u32 j = SIMD; j < live; j += SIMDS) {
        if (j >= SIMDS) requested = requested_row(in, j);
        settle(in, step, j, requested, stop, live > 1 ? published(&tokens[j]) : token, advance, stops, LANE);
    }
    end_step(pass, params.sample.advance == 1 ? step + 1 : step, advance, stops, at);
}
