// Attention of many rows (prefill). A threadgroup handles HEADS_HERE query heads of one KV head for TILE_ROWS
// consecutive rows. These usually belong to one sequence; otherwise each run of rows of the same sequence is handled
// separately by `attend_run`, if it has FEWEST_ROWS to MOST_ROWS rows; other launches handle the others.

// Attention of rows `start` … `end`, which belong to one sequence.
INLINE void attend_run(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at);

// A range of positions.
struct VisibleRange {
    u32 from, until;
};

// The smallest range that contains the positions visible to any row of the run.
INLINE VisibleRange visible_to_any(const DEVICE Row* rows, u32 start, u32 end, u32 window, u32 ahead, Place at) {
    VisibleRange range = {0xffffffffu, 0};
    for (u32 i = start + LANE; i < end; i += 32) {
        const Row row = rows[i];
        const u32 first = first_visible(row, window), until = visible_end(row, window, ahead);
        range.from = first < range.from ? first : range.from;
        range.until = until > range.until ? until : range.until;
    }
    range.from = ~SIMD_MAX_U32(~range.from);
    range.until = SIMD_MAX_U32(range.until);
    return range;
}

// The end of the run of rows of one sequence that begins at `start`.
INLINE u32 run_end(const DEVICE Row* rows, u32 start, u32 last, Place at) {
    const u32 sequence = rows[start].start;
    u32 end = last;
    UNROLL for (u32 i = 0; i < TILE_ROWS; i += 32) {
        const u32 row = start + i + LANE;
        if (row < end && rows[row].start != sequence) end = row;
    }
    return ~SIMD_MAX_U32(~end);
}

// The last rows see the most positions, so their threadgroups are launched first. Threadgroups along z share the runs
// of a tile.
INLINE void attend_runs(Bindings in, const DEVICE Pass* pass, Params params, Place at) {
    const u32 live = live_rows(pass, false), tiles = (live + TILE_ROWS - 1) / TILE_ROWS;
    const u32 first_row = (tiles - 1 - at.group_y) * TILE_ROWS;
    const u32 first_head = at.group_x / TILES * GROUP + at.group_x % TILES * HEADS_HERE;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (at.group_y >= tiles) return;
    const u32 last = first_row + TILE_ROWS < live ? first_row + TILE_ROWS : live;
    u32 run = 0;
    for (u32 start = first_row; start < last;) {
        const u32 end = run_end((const DEVICE Row*)in.rows, start, last, at);
        if (end - start >= FEWEST_ROWS && end - start <= MOST_ROWS) {
            if (run % SHARERS == at.group_z) attend_run(in, params, first_head, start, end, at);
            run++;
        }
        start = end;
    }
}
