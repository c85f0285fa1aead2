// The weighted sum of what a row's experts give, the expert that all rows share, and the residual. One thread per element.

BODY(combine) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const DEVICE u32* places = (const DEVICE u32*)in.places + (u64)row * CHOSEN;
    const DEVICE f32* shares = (const DEVICE f32*)in.shares + (u64)row * CHOSEN;
    f32 sum = 0;
    for (u32 k = 0; k < CHOSEN; k++) {
        const u32 place = places[k] < live * CHOSEN ? places[k] : live * CHOSEN - 1;
        sum += shares[k] * ((const DEVICE f32*)in.y)[(u64)place * COLS + col];
    }
    if (SHARED) {
        f32 gate = 1;
        if (GATED) gate = 1.0f / (1.0f + EXP(-((const DEVICE f32*)in.gate)[row]));
        sum += gate * ((const DEVICE f32*)in.shared)[(u64)row * COLS + col];
    }
    if (RESIDUAL) sum += ((const DEVICE f32*)in.residual)[(u64)row * COLS + col];
    ((DEVICE f32*)in.out)[(u64)row * COLS + col] = sum;
}
