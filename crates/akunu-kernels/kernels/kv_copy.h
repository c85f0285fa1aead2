// Copies a range of positions of the cache to another place.
BODY(kv_copy) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (live_rows(pass, false) == 0) return;
    const Move move = *(const DEVICE Move*)in.moves;
    DEVICE u8* cache = at.group_y == 0 && !LATENT_ROWS ? in.k_cache : in.v_cache;
    const DEVICE u16* from = (const DEVICE u16*)kv_row(cache, at.group_x, move.from);
    DEVICE u16* to = (DEVICE u16*)kv_row(cache, at.group_x, move.to);
    const u64 count = move.len * KV_ROW_BYTES / 2, stride = (u64)PARTS * THREADS;
    for (u64 i = (u64)at.group_z * THREADS + at.in_group; i < count; i += stride) to[i] = from[i];
}
