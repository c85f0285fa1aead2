// The token with the highest logit for each row that requested logits. PARTS threadgroups per row; the last one to
// finish reduces them and stores the tokens of all rows.

struct Best {
    u32 value;
    // The complement of the id, so that on equal values the lowest id wins.
    u32 id;
};

INLINE Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.id > a.id) ? b : a;
}

INLINE Best simd_best(Best best) {
    const u32 value = SIMD_MAX_U32(best.value);
    const Best all = {value, SIMD_MAX_U32(best.value == value ? best.id : 0)};
    return all;
}

BODY(argmax) {
    const u32 live = live_rows(pass, true), row = at.group_y, step = pass->step, stop = stop_of(pass, LANE);
    const bool advance = params.argmax.advance == 1;
    RequestedRow requested = requested_row(in, SIMD < live ? SIMD : 0);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    const DEVICE f32* logits = (const DEVICE f32*)in.logits + (u64)row * VOCAB;
    const u32 each = (VOCAB + PARTS - 1) / PARTS, from = at.group_x * each, end = from + each < VOCAB ? from + each : VOCAB;
    Best best = {0, 0};
    for (u32 i = from + at.in_group; i < end; i += THREADS) {
        const Best one = {ordered(logits[i]), ~i};
        best = better(best, one);
    }
    best = simd_best(best);
    TG_ARRAY(Best, bests, 16);
    if (LANE == 0) bests[SIMD] = best;
    BARRIER();
    Best met = {0, 0};
    if (LANE < SIMDS) met = bests[LANE];
    best = simd_best(met);
    DEVICE Best* parts = (DEVICE Best*)(scratch + COUNTER_BYTES);
    if (at.in_group == 0) publish(&parts[row * PARTS + at.group_x], best);
    if (!last_to_finish(scratch, 0, live * PARTS, at)) return;
    TG_ARRAY(u32, stops, 4);
    if (at.in_group == 0) *stops = 0;
    BARRIER();
    for (u32 j = SIMD; j < live; j += SIMDS) {
        Best found = {0, 0};
        if (LANE < PARTS) found = published(&parts[j * PARTS + LANE]);
        if (j >= SIMDS) requested = requested_row(in, j);
        const Best of_row = simd_best(found);
        const u32 token = of_row.value == 0xffffffffu ? NO_TOKEN : ~of_row.id;
        settle(in, step, j, requested, stop, token, advance, stops, LANE);
    }
    end_step(pass, step + 1, advance, stops, at);
}
