// Row operations of encoder models. One thread per element.

#if defined(POSITIONS)
// x + position embedding + token type embedding. KIND_TABLE is 0 for no types, 1 for type 0 in all rows, 2 for each
// row's own type.
BODY(add_positions) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    f32 v = ((const DEVICE f32*)in.x)[(u64)row * COLS + col];
    if (POSITIONS) v += ((const DEVICE f32*)in.positions)[(u64)((const DEVICE Row*)in.rows)[row].position * COLS + col];
    if (KIND_TABLE) {
        u32 kind = 0;
        if (KIND_TABLE == 2) {
            kind = ((const DEVICE u32*)in.segments)[row];
            if (kind >= params.add_positions.kinds) kind = params.add_positions.kinds - 1;
        }
        v += ((const DEVICE f32*)in.types)[(u64)kind * COLS + col];
    }
    ((DEVICE f32*)in.out)[(u64)row * COLS + col] = v;
}
#endif

#if defined(MEAN)
// For each row that requests an output: the row itself, or the mean of its text up to it, summed in the CPU's order.
BODY(pool) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, true);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const DEVICE f32* x = (const DEVICE f32*)in.x + col;
    const u32 last = ((const DEVICE u32*)in.logit_rows)[row];
    u32 count = 1;
    if (MEAN) count = ((const DEVICE Row*)in.rows)[last].position + 1;
    if (count > last + 1) count = last + 1;
    const u32 first = last + 1 - count;
    f32 total = 0;
    for (u32 part = 0; part < count; part += POOL_PART) {
        f32 sum = 0;
        for (u32 i = part; i < count && i < part + POOL_PART; i++) sum += x[(u64)(first + i) * COLS];
        total += sum;
    }
    ((DEVICE f32*)in.out)[(u64)row * COLS + col] = count == 1 ? total : total * (1.0f / (f32)count);
}
#endif
