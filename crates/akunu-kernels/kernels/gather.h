// Sorts the rows of a pass by expert. Up to one pick for each thread: one launch, in which each threadgroup finds the
// place of a pick and copies its row. More: a threadgroup per expert finds the places of its picks; then the rows are copied.

INLINE u32 expert_of(Bindings in, u32 pick) {
    const u32 expert = ((const DEVICE u32*)in.picks)[pick];
    return expert < EXPERTS ? expert : EXPERTS - 1;
}

INLINE void copy_words(const DEVICE u8* from, DEVICE u8* to, u32 words, Place at) {
    for (u32 i = at.in_group; i < words; i += THREADS) ((DEVICE u32*)to)[i] = ((const DEVICE u32*)from)[i];
}

INLINE void copy_row(Bindings in, u32 row, u32 place, Place at) {
    if (OUT_F32) copy_words(in.x + (u64)row * COLS * 4, in.out + (u64)place * COLS * 4, COLS, at);
    if (OUT_Q8) copy_words(in.x_q8 + row * Q8_ROW_BYTES(COLS), in.out_q8 + place * Q8_ROW_BYTES(COLS), COLS / 16 * 5, at);
    if (OUT_F16) {
        copy_words(in.x_f16 + (u64)row * COLS * 2, in.out_f16 + (u64)place * COLS * 2, COLS / 2, at);
        if (at.in_group == 0) ((DEVICE f32*)in.out_scales)[place] = ((const DEVICE f32*)in.x_scales)[row];
    }
}

BODY(gather_few) {
    const u32 pick = at.group_x, picked = live_rows(pass, false) * CHOSEN;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (pick >= picked) return;
    TG_ARRAY(u32, experts, 0);
    TG_ARRAY(u32, before, THREADS * 4);
    const u32 own = expert_of(in, pick);
    u32 first = 0;
    if (at.in_group < picked) {
        const u32 expert = expert_of(in, at.in_group);
        experts[at.in_group] = expert;
        first = expert < own || (expert == own && at.in_group < pick);
    }
    const u32 of_simd = (u32)SIMD_SUM_I32((i32)first);
    if (LANE == 0) before[SIMD] = of_simd;
    BARRIER();
    u32 place = 0;
    for (u32 i = 0; i < SIMDS; i++) place += before[i];
    if (at.in_group == 0) ((DEVICE u32*)in.places)[pick] = place;
    // Starts are divided among the threadgroups.
    for (u32 expert = pick + picked * at.in_group; expert <= EXPERTS; expert += picked * THREADS) {
        u32 start = 0;
        for (u32 i = 0; i < picked; i++) start += experts[i] < expert;
        ((DEVICE u32*)in.starts)[expert] = start;
    }
    copy_row(in, pick / CHOSEN, place, at);
}

BODY(sort_picks) {
    const u32 expert = at.group_x, picked = live_rows(pass, false) * CHOSEN;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (picked == 0) return;
    // Each thread has some consecutive picks.
    const u32 each = (picked + THREADS - 1) / THREADS, wanted = at.in_group * each, from = wanted < picked ? wanted : picked;
    const u32 end = from + each < picked ? from + each : picked;
    u32 less = 0, own = 0;
    for (u32 i = from; i < end; i++) {
        const u32 other = expert_of(in, i);
        less += other < expert;
        own += other == expert;
    }
    TG_ARRAY(u32, all_less, 0);
    TG_ARRAY(u32, all_own, 128);
    const u32 simd_less = (u32)SIMD_SUM_I32((i32)less), simd_own = (u32)SIMD_SUM_I32((i32)own);
    if (LANE == 0) {
        all_less[SIMD] = simd_less;
        all_own[SIMD] = simd_own;
    }
    u32 place = sum_before(own, LANE), start = 0;
    BARRIER();
    for (u32 i = 0; i < SIMDS; i++) {
        start += all_less[i];
        if (i < SIMD) place += all_own[i];
    }
    place += start;
    for (u32 i = from; i < end; i++) {
        if (expert_of(in, i) == expert) ((DEVICE u32*)in.places)[i] = place++;
    }
    if (at.in_group == 0) {
        ((DEVICE u32*)in.starts)[expert] = start;
        if (expert == EXPERTS - 1) ((DEVICE u32*)in.starts)[EXPERTS] = picked;
    }
}

BODY(gather_rows) {
    const u32 pick = at.group_x, picked = live_rows(pass, false) * CHOSEN;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (pick >= picked) return;
    copy_row(in, pick / CHOSEN, ((const DEVICE u32*)in.places)[pick], at);
}
