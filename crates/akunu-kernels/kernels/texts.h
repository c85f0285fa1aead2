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

#if defined(FRAMES)
// The inputs of a convolution over three frames of a sequence: [row][element][frame]. One thread per element of it.
BODY(unfold) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= 3 * COLS) return;
    const u32 tap = col % 3, element = col / 3;
    const Row own = ((const DEVICE Row*)in.rows)[row];
    // One more than the frame, of the sequence and of the pass.
    const u32 of_sequence = own.position * FRAMES + MIDDLE + tap, of_pass = row * FRAMES + MIDDLE + tap;
    const bool there = of_sequence > 0 && of_sequence <= own.kv_len * FRAMES && of_pass > 0 && of_pass <= live * FRAMES;
    f32 v = 0;
    if (there) v = ((const DEVICE f32*)in.x)[(u64)(of_pass - 1) * COLS + element];
    ((DEVICE f32*)in.out)[(u64)row * (3 * COLS) + col] = v;
}
#endif

#if defined(ACROSS)
// The rows as attention to an encoder's states reads them. One thread per row.
BODY(across_rows) {
    const u32 row = at.group_x * THREADS + at.in_group, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    Row across;
    across.token = 0;
    across.position = params.across_rows.count - 1;
    across.kv_len = params.across_rows.count;
    across.start = ((const DEVICE Row*)in.rows)[row].start / params.across_rows.own * params.across_rows.slot;
    ((DEVICE Row*)in.out)[row] = across;
}
#endif
