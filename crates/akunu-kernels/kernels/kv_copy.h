// The first row.kv_len positions of slot row.token to row.slot.
BODY(kv_copy) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (live_rows(pass, false) == 0) return;
    const Row row = *(const DEVICE Row*)in.rows;
    DEVICE u8* cache = at.group_y == 0 ? in.k_cache : in.v_cache;
    const DEVICE u16* from = (const DEVICE u16*)kv_row(cache, row.token, at.group_x, 0);
    DEVICE u16* to = (DEVICE u16*)kv_row(cache, row.slot, at.group_x, 0);
    const u64 count = row.kv_len * KV_ROW_BYTES / 2, stride = (u64)PARTS * THREADS;
    for (u64 i = (u64)at.group_z * THREADS + at.in_group; i < count; i += stride) to[i] = from[i];
}
