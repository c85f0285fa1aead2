// One SIMD group per head of Q, K or V. Q and K are normalised (with QK_NORM) and rotated, with NORM_LAST in the other
// order. Q is written to `q`, if
// HEADS is not 0, K and V to the cache.
BODY(rope_kv) {
    const u32 h = at.group_x * SIMDS + SIMD;
    const u32 row = at.group_y, live = live_rows(pass, false);
    const Row place = ((const DEVICE Row*)in.rows)[row < live ? row : 0];
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || h >= HEADS + 2 * KV_HEADS) return;
    // Compilers warn of `h < HEADS` where HEADS is 0.
    const u32 part = h + 1 <= HEADS ? 0 : h < HEADS + KV_HEADS ? 1 : 2;
    TG_ARRAY(f32, all, 0);
    THREADGROUP f32* const head = all + SIMD * HEAD_DIM;
    const DEVICE f32* from = (const DEVICE f32*)in.qkv + ((u64)row * (HEADS + 2 * KV_HEADS) + h) * HEAD_DIM;
    if (part < 2) {
        const DEVICE f32* norm = (const DEVICE f32*)(part == 0 ? in.q_norm : in.k_norm);
        put_rotated(from, norm, (const DEVICE f32*)in.angles + (u64)row * ROPE_DIMS, params.rope_kv.epsilon, 1.0f, head, LANE);
        if (NORM_LAST) {
            SIMD_SYNC();
            f32 squares = 0;
            for (u32 i = LANE; i < HEAD_DIM; i += 32) squares += head[i] * head[i];
            const f32 scale = 1.0f / SQRT(SIMD_SUM(squares) / (f32)HEAD_DIM + params.rope_kv.epsilon);
            for (u32 i = LANE; i < HEAD_DIM; i += 32) head[i] *= scale * norm[i];
        }
    } else {
        for (u32 i = LANE; i < HEAD_DIM; i += 32) head[i] = from[i];
    }
    SIMD_SYNC();
    if (part == 0) {
        DEVICE f32* to = (DEVICE f32*)in.q + ((u64)row * HEADS + h) * HEAD_DIM;
        for (u32 i = LANE; i < HEAD_DIM; i += 32) to[i] = head[i];
        return;
    }
    DEVICE u8* cache = part == 1 ? in.k_cache : in.v_cache;
    kv_store(kv_row(cache, h - HEADS - (part - 1) * KV_HEADS, kv_place(in, place.start + place.position)), head, LANE);
}
