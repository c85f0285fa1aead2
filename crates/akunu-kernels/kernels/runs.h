// Attention of many rows: a group has HEADS_HERE query heads of a KV head, for TILE_ROWS neighbouring rows. Rows of a group are usually
// neighbours in one sequence. Where they are not, each run of them is worked on by itself, by `attend_run`.

// Rows `start` … `end` are one sequence's.
INLINE void attend_run(Bindings in, Params params, u32 first_head, u32 start, u32 end, Place at);

// Positions.
struct Sight {
    u32 from, until;
};

// What any of a run's rows sees.
INLINE Sight seen_by_any(const DEVICE Row* rows, u32 start, u32 end, u32 window, u32 ahead, Place at) {
    Sight sight = {0xffffffffu, 0};
    for (u32 i = start + LANE; i < end; i += 32) {
        const Row row = rows[i];
        const u32 first = first_seen(row, window), until = seen_end(row, window, ahead);
        sight.from = first < sight.from ? first : sight.from;
        sight.until = until > sight.until ? until : sight.until;
    }
    sight.from = ~SIMD_MAX_U32(~sight.from);
    sight.until = SIMD_MAX_U32(sight.until);
    return sight;
}

// Where the run of one sequence's rows that begins at `start` ends.
INLINE u32 run_end(const DEVICE Row* rows, u32 start, u32 last, Place at) {
    const u32 sequence = rows[start].start;
    for (u32 base = start; base < last; base += 32) {
        const u32 row = base + LANE;
        const u32 differs = SIMD_MAX_U32(row < last && rows[row].start != sequence ? 32 - LANE : 0);
        if (differs != 0) return base + 32 - differs;
    }
    return last;
}

// The last rows see the most, so their groups begin first. Groups in z share the runs.
INLINE void attend_runs(Bindings in, const DEVICE Pass* pass, Params params, Place at) {
    const u32 first_row = (TILES_DOWN - 1 - at.group_y) * TILE_ROWS, live = live_rows(pass, false);
    const u32 first_head = at.group_x / TILES * GROUP + at.group_x % TILES * HEADS_HERE;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (first_row >= live) return;
    const u32 last = first_row + TILE_ROWS < live ? first_row + TILE_ROWS : live;
    u32 run = 0;
    for (u32 start = first_row; start < last;) {
        const u32 end = run_end((const DEVICE Row*)in.rows, start, last, at);
        if (run % SHARERS == at.group_z) attend_run(in, params, first_head, start, end, at);
        start = end;
        run++;
    }
}
