// Rows times their shares, and what is left of these. One thread per element.

BODY(weigh_inputs) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const u64 place = (u64)row * COLS + col;
    ((DEVICE f32*)in.out)[place] = ((const DEVICE f32*)in.x)[place] * ((const DEVICE f32*)in.shares)[row];
    if (col == 0) ((DEVICE f32*)in.left)[row] = 1.0f;
}
