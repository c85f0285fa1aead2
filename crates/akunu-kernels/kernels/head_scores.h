// The scores of one head of attention before softmax; 0 for positions that a row does not see. One thread per score.
BODY(head_scores) {
    const u32 position = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const HeadScoresParams p = params.head_scores;
    if (row >= live || position >= p.count) return;
    const Row own = ((const DEVICE Row*)in.rows)[row];
    f32 score = 0;
    if (position < own.kv_len && own.start < POSITIONS && position < POSITIONS - own.start) {
        const DEVICE f32* q = (const DEVICE f32*)in.q + ((u64)row * p.heads + p.head) * HEAD_DIM;
        const DEVICE u8* key = kv_row(in.k_cache, p.head / (p.heads / p.kv_heads), own.start + position);
        for (u32 i = 0; i < HEAD_DIM; i++) score += q[i] * kv_load(key, i);
        score *= p.scale;
    }
    ((DEVICE f32*)in.out)[(u64)row * p.out_stride + position] = score;
}
