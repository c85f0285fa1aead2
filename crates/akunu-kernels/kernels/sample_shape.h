// What settings need that depend on the shape of a row's distribution, before its tokens are sampled: the temperature by
// the entropy, and the bounds of the logits that all limits together keep. One threadgroup a row goes through all logits
// for each sum that is needed; the others return at once. The bounds are found by bisection of keys.

// Sums over tokens within bounds.
struct Survey {
    // Of weights, of weights times differences to the best (in parts of 4,096), of the differences themselves (in
    // parts of 256), and of their squares.
    u64 weight, surprise, distance, squares;
    // How many, and their lowest and highest key.
    u32 count, least, most, unused;
};

static_assert(sizeof(Survey) == 48, "as SURVEY_SPACE has it");

// Which tokens a survey counts.
struct Bounds {
    u32 least, most, least_weight;
    // The largest difference between a token's distance to the best and `center`.
    f32 center, reach;
};

INLINE Bounds bounds(u32 least, u32 most) {
    const Bounds bounds = {least, most, 0, 0.0f, as_f32(0x7f800000u)};
    return bounds;
}

INLINE f32 shift_of(f32 below, f32 center) { return as_f32(as_u32(plus(-below, -center)) & 0x7fffffffu); }

INLINE u64 simd_sum_u64(u64 v) {
    const u64 low = (u32)SIMD_SUM_I32((i32)(v & 0xffffffu)), middle = (u32)SIMD_SUM_I32((i32)(v >> 24 & 0xffffffu));
    return low + (middle << 24) + ((u64)(u32)SIMD_SUM_I32((i32)(v >> 48)) << 48);
}

// Compiled once, since it is called often and its time is that of reading logits.
OUTLINE Survey survey(Bindings in, u32 row, Record record, Bounds of, f32 best, Place at) {
    Survey own = {0, 0, 0, 0, 0, 0xffffffffu, 0, 0};
    for (u32 part = 0; part < PARTS; part++) {
        f32 x[EACH];
        scale_part(in, row, record, part, x, at);
        UNROLL for (u32 i = 0; i < EACH; i++) {
            const u32 key = ordered(x[i]);
            if (key <= NOTHING || key < of.least || key > of.most) continue;
            const f32 below = plus(x[i], -best);
            const u64 weight = weight_of(below);
            if (weight < of.least_weight || !(shift_of(below, of.center) <= of.reach)) continue;
            own.count++;
            own.weight += weight;
            if (weight > 0) own.surprise += weight * (u32)times(-below, 4096.0f);
            const f32 steps = times(-below, 256.0f);
            const u64 distance = (u32)(steps < 1048575.0f ? steps : 1048575.0f);
            own.distance += distance;
            own.squares += distance * distance;
            own.least = key < own.least ? key : own.least;
            own.most = key > own.most ? key : own.most;
        }
    }
    own.weight = simd_sum_u64(own.weight);
    own.surprise = simd_sum_u64(own.surprise);
    own.distance = simd_sum_u64(own.distance);
    own.squares = simd_sum_u64(own.squares);
    own.count = (u32)SIMD_SUM_I32((i32)own.count);
    own.least = ~SIMD_MAX_U32(~own.least);
    own.most = SIMD_MAX_U32(own.most);
    TG_ARRAY(Survey, surveys, SURVEY_SPACE);
    BARRIER();
    if (LANE == 0) surveys[SIMD] = own;
    BARRIER();
    own = surveys[0];
    for (u32 i = 1; i < SIMDS; i++) {
        const Survey other = surveys[i];
        own.weight += other.weight;
        own.surprise += other.surprise;
        own.distance += other.distance;
        own.squares += other.squares;
        own.count += other.count;
        own.least = other.least < own.least ? other.least : own.least;
        own.most = other.most > own.most ? other.most : own.most;
    }
    return own;
}

INLINE f32 mean_surprise(Survey s) { return times(over((f32)s.surprise, (f32)s.weight), 1.0f / 4096.0f); }

INLINE f32 root_of(f32 square) {
    if (!(square >= as_f32(0x00800000u))) return 0.0f;
    f32 root = as_f32((as_u32(square) >> 1) + 0x1fc00000u);
    UNROLL for (u32 i = 0; i < 4; i++) root = times(0.5f, plus(root, over(square, root)));
    return root;
}

INLINE f32 power_of(f32 base, f32 exponent) {
    if (!(base >= as_f32(0x00800000u))) return exponent == 0.0f ? 1.0f : 0.0f;
    const f32 x = times(exponent, natural_log(base));
    return times((f32)weight_of(x < 0.0f ? x : 0.0f), 1.0f / 2147483648.0f);
}

// The inverse temperature by the entropy of logits before scaling.
INLINE f32 scale_by_entropy(Settings s, Survey all) {
    const f32 entropy = plus(mean_surprise(all), natural_log(times((f32)all.weight, 1.0f / 2147483648.0f)));
    f32 relative = all.count > 1 ? over(entropy, natural_log((f32)all.count)) : 0.0f;
    if (relative > 1.0f) relative = 1.0f;
    const f32 temperature = plus(s.coolest, times(s.span, power_of(relative, s.exponent)));
    const f32 least = 1.0f / 1048576.0f, most = 1048576.0f;
    if (!(temperature >= as_f32(0x00800000u))) return most;
    const f32 scale = over(1.0f, temperature);
    return scale < least ? least : scale > most ? most : scale;
}

// The least scaled logit within top-n-sigma.
INLINE f32 sigma_floor(Settings s, Survey all, f32 best, f32 scale) {
    if (s.top_n_sigma == 0.0f) return as_f32(0xff800000u);
    const f32 mean = over((f32)all.distance, (f32)all.count);
    const f32 variance = plus(over((f32)all.squares, (f32)all.count), -times(mean, mean));
    const f32 reach = times(times(s.top_n_sigma, root_of(variance)), 1.0f / 256.0f);
    return scaled(scale, plus(best, -reach));
}

INLINE u64 part_of(u64 total, u64 fraction) {
    const u64 part = (total >> 32) * fraction + ((total & 0xffffffffu) * fraction >> 32);
    return part > 0 ? part : 1;
}

BODY(sample_shape) {
    const u32 live = live_rows(pass, true), row = FIRST_ROW + at.group_y;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    Record record = record_of(in, row, pass->step);
    const Settings s = record.settings;
    if (!is_shaped(s)) return;
    const u32 highest = 0xffffffffu;

    record.scale = 1.0f;
    f32 best = unordered(survey(in, row, record, bounds(0, highest), 0.0f, at).most);
    if (ordered(best) <= NOTHING) return;
    f32 scale = s.inverse_temperature, floor = as_f32(0xff800000u);
    if (s.span > 0.0f || s.top_n_sigma > 0.0f) {
        const Survey all = survey(in, row, record, bounds(0, highest), best, at);
        if (s.span > 0.0f) scale = scale_by_entropy(s, all);
        floor = sigma_floor(s, all, best, scale);
    }

    // The lowest key that the limits keep that never exclude the best.
    record.scale = scale;
    best = unordered(survey(in, row, record, bounds(0, highest), 0.0f, at).most);
    const u32 best_key = ordered(best);
    const bool is_ranked = s.top_k > 0 || s.top_p < highest;
    const u64 total = is_ranked ? survey(in, row, record, bounds(0, highest), best, at).weight : 0;
    u32 least = NOTHING + 1, kept = best_key;
    while (least < kept) {
        const u32 key = least + (kept - least) / 2;
        Rank rank = {0, 0, 0};
        const f32 x = unordered(key);
        bool is_kept = x >= floor && plus(x, -best) >= s.min_p;
        if (is_kept && is_ranked) {
            const Survey better = survey(in, row, record, bounds(key + 1, highest), best, at);
            rank.weight = better.weight;
            rank.better = better.count;
            is_kept = keeps(s, key, best_key, rank, total);
        }
        if (is_kept) kept = key;
        else least = key + 1;
    }
    Bounds inside = bounds(kept, highest);

    if (s.typical_p < highest) {
        const Survey all = survey(in, row, record, inside, best, at);
        const u64 enough = part_of(all.weight, s.typical_p);
        inside.center = mean_surprise(all);
        u32 low = 0, high = 0x7f7fffffu;
        while (low < high) {
            const u32 middle = low + (high - low) / 2;
            inside.reach = as_f32(middle);
            if (survey(in, row, record, inside, best, at).weight >= enough) high = middle;
            else low = middle + 1;
        }
        inside.reach = as_f32(high);
        const Survey typical = survey(in, row, record, inside, best, at);
        inside = bounds(typical.least, typical.most);
    }

    const u32 drawn = philox(0xffffffffu, record.draw_low, record.draw_high, s.seed[0], s.seed[1]).words[0];
    if (s.xtc_probability == highest || drawn < s.xtc_probability) {
        const u64 enough = part_of(survey(in, row, record, inside, best, at).weight, s.xtc_threshold);
        Bounds choices = inside;
        choices.least_weight = enough < highest ? (u32)enough : highest;
        const Survey top = survey(in, row, record, choices, best, at);
        if (top.count > 1) inside.most = top.least;
    }

    const f32 most = inside.most == highest ? as_f32(0x7f800000u) : unordered(inside.most);
    const Shape shape = {scale, unordered(inside.least), most, 0};
    if (at.in_group == 0) publish(shape_of(scratch, row), shape);
}
