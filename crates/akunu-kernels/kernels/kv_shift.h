// Moves positions down and rotates their keys back by the same distance. Each chunk of SIMDS positions is read
// completely before any of it is written, and later chunks lie past all that has been written. So overlap is safe for
// any distance. Latent rows (LATENT_ROWS) are keys and values at once, of which the end is rotated.
BODY(kv_shift) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (live_rows(pass, false) == 0) return;
    const Move move = *(const DEVICE Move*)in.moves;
    const bool keys = at.group_y == 0;
    DEVICE u8* cache = keys && !LATENT_ROWS ? in.k_cache : in.v_cache;
    TG_ARRAY(f32, all, 0);
    THREADGROUP f32* const head = all + SIMD * HEAD_DIM;
    // Values have no rotation and are copied as raw bytes.
    THREADGROUP u16* const bytes = (THREADGROUP u16*)head;
    for (u32 first = 0; first < move.len; first += SIMDS) {
        const u32 position = first + SIMD;
        const bool live = position < move.len;
        const u32 source = live ? kv_place(in, move.from + position) : 0, target = live ? kv_place(in, move.to + position) : 0;
        if (live && keys) {
            const DEVICE u8* from = kv_row(cache, at.group_x, source);
            for (u32 i = LANE; i < HEAD_DIM; i += 32) head[i] = kv_load(from, i);
            SIMD_SYNC();
            for (u32 i = LANE; i < ROPE_DIMS / 2; i += 32) {
                const f32 angle = reduced_angle((f32)(move.from - move.to), ((const DEVICE f32*)in.frequencies)[i]);
                rotate_pair(head + (LATENT_ROWS ? HEAD_DIM - ROPE_DIMS : 0), i, COS(angle), -SIN(angle));
            }
        } else if (live) {
            const DEVICE u16* from = (const DEVICE u16*)kv_row(cache, at.group_x, source);
            for (u32 i = LANE; i < KV_ROW_BYTES / 2; i += 32) bytes[i] = from[i];
        }
        BARRIER();
        if (live && keys) {
            kv_store(kv_row(cache, at.group_x, target), head, LANE);
        } else if (live) {
            DEVICE u16* to = (DEVICE u16*)kv_row(cache, at.group_x, target);
            for (u32 i = LANE; i < KV_ROW_BYTES / 2; i += 32) to[i] = bytes[i];
        }
    }
}
