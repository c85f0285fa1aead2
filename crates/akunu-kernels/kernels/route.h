// The experts of each row and their shares. A SIMD group per row, whose lanes hold PER_LANE logits each. SCORES is 0 for
// softmax, 1 for sigmoid, 2 for the sparse mixer. With BY_SCORE experts are chosen by scores and biases instead of by
// logits. With GROUPS above 1 only those of the USED best groups are chosen, ranked by their RANKED largest keys.

// Keys of experts; 0, below that of any number, if an expert cannot be chosen.
struct Keys {
    u32 v[PER_LANE];
};

INLINE bool is_nan(f32 value) { return (as_u32(value) & 0x7fffffffu) > 0x7f800000u; }

// NaN is smaller than any number.
INLINE f32 number(f32 value) { return is_nan(value) ? as_f32(0xff800000u) : value; }

// A group's largest key, and its largest but one.
INLINE f32 rank_of(Keys keys, u32 group, Place at) {
    const u32 each = EXPERTS / GROUPS;
    f32 rank = 0;
    for (u32 k = 0; k < RANKED; k++) {
        u32 key = 0, other = 0;
        UNROLL for (u32 i = 0; i < PER_LANE; i++) {
            const u32 expert = 32 * i + LANE;
            if (expert / each == group && keys.v[i] > key) {
                key = keys.v[i];
                other = ~expert;
            }
        }
        const u32 best = SIMD_MAX_U32(key), expert = ~SIMD_MAX_U32(key == best ? other : 0);
        UNROLL for (u32 i = 0; i < PER_LANE; i++) keys.v[i] = 32 * i + LANE == expert ? 0 : keys.v[i];
        rank = k == 0 ? unordered(best) : rank + unordered(best);
    }
    return rank;
}

// The keys of the experts in the best groups; of equal ones, the first.
INLINE Keys of_best_groups(Keys keys, Place at) {
    TG_ARRAY(u32, ranks, 0);
    for (u32 group = 0; group < GROUPS; group++) {
        const u32 rank = ordered(number(rank_of(keys, group, at)));
        if (LANE == group % 32) ranks[group] = rank;
    }
    SIMD_SYNC();
    UNROLL for (u32 i = 0; i < PER_LANE; i++) {
        const u32 expert = 32 * i + LANE, own = expert < EXPERTS ? expert / (EXPERTS / GROUPS) : 0;
        u32 better = 0;
        for (u32 group = 0; group < GROUPS; group++) better += ranks[group] > ranks[own] || (ranks[group] == ranks[own] && group < own);
        if (better >= USED) keys.v[i] = 0;
    }
    return keys;
}

BODY(route) {
    const u32 row = at.group_x, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    const DEVICE f32* logits = (const DEVICE f32*)in.logits + (u64)row * EXPERTS;
    const f32 least = as_f32(0xff800000u);
    f32 values[PER_LANE], scores[PER_LANE], most = least, all = 0;
    u32 has_nan = 0;
    UNROLL for (u32 i = 0; i < PER_LANE; i++) {
        const u32 expert = 32 * i + LANE;
        values[i] = expert < EXPERTS ? logits[expert] : least;
        if (is_nan(values[i])) has_nan = 1;
        most = MAX_F32(most, number(values[i]));
    }
    most = SIMD_MAX(most);
    UNROLL for (u32 i = 0; i < PER_LANE; i++) {
        scores[i] = SCORES == 1 ? 1.0f / (1.0f + EXP(-values[i])) : EXP(values[i] - most);
        all += scores[i];
    }
    all = SIMD_SUM(all);
    Keys keys;
    UNROLL for (u32 i = 0; i < PER_LANE; i++) {
        const u32 expert = 32 * i + LANE;
        if (SCORES == 0) scores[i] /= all;
        f32 key = BY_SCORE ? scores[i] : values[i];
        if (CORRECTED && expert < EXPERTS) key += ((const DEVICE f32*)in.bias)[expert];
        keys.v[i] = expert < EXPERTS ? ordered(number(key)) : 0;
    }
    if (GROUPS > 1) keys = of_best_groups(keys, at);

    DEVICE u32* picks = (DEVICE u32*)in.picks + (u64)row * CHOSEN;
    DEVICE f32* shares = (DEVICE f32*)in.shares + (u64)row * CHOSEN;
    f32 sum = 0;
    ROLLED for (u32 k = 0; k < CHOSEN; k++) {
        u32 key = 0, other = 0;
        UNROLL for (u32 i = 0; i < PER_LANE; i++) {
            if (keys.v[i] > key) {
                key = keys.v[i];
                other = ~(32 * i + LANE);
            }
        }
        const u32 best = SIMD_MAX_U32(key);
        // The complement, so that of equal keys the first expert is chosen.
        const u32 expert = ~SIMD_MAX_U32(key == best ? other : 0);
        f32 share = 0;
        if (SCORES == 2) {
            const f32 largest = unordered(best);
            UNROLL for (u32 i = 0; i < PER_LANE; i++) {
                const f32 size = values[i] < 0 ? -values[i] : values[i];
                const bool far = largest - values[i] > params.route.tolerance * MAX_F32(size, largest);
                if (keys.v[i] != 0 && !far) share += EXP(values[i] - largest);
            }
            share = 1.0f / SIMD_SUM(share);
        } else {
            // Scores are not negative, so their bits are in their order.
            u32 score = 0;
            UNROLL for (u32 i = 0; i < PER_LANE; i++) score = 32 * i + LANE == expert ? as_u32(scores[i]) : score;
            share = as_f32(SIMD_MAX_U32(score));
        }
        UNROLL for (u32 i = 0; i < PER_LANE; i++) keys.v[i] = 32 * i + LANE == expert ? 0 : keys.v[i];
        sum += share;
        if (LANE == k % 32) {
            picks[k] = expert;
            shares[k] = share;
        }
    }
    f32 scale = params.route.scale;
    if (NORMALISED) scale /= sum + params.route.epsilon;
    if (SIMD_MAX_U32(has_nan)) scale = as_f32(0x7fc00000u);
    for (u32 k = LANE; k < CHOSEN; k += 32) shares[k] *= scale;
}
