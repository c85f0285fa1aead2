// Adds the bias of each output to a product of FP8 rows done by a library. One SIMD group per row.
BODY(add_bias) {
    const u32 row = at.group_y * SIMDS + SIMD, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    for (u32 o = LANE; o < OUTPUTS; o += 32) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] += ((const DEVICE f32*)in.bias)[o];
}

// Applies the rows' scales to a product of f16 rows done by a library, which has added bias and residual already. Scales
// are nearly always 1, and then there is nothing to do. One SIMD group per row.
BODY(half_finish) {
    const u32 row = at.group_y * SIMDS + SIMD, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    const f32 scale = ((const DEVICE f32*)in.x_scales)[row];
    if (scale == 1.0f) return;
    for (u32 o = LANE; o < OUTPUTS; o += 32) {
        const u64 i = (u64)row * OUT_STRIDE + o;
        f32 added = RESIDUAL ? ((const DEVICE f32*)in.residual)[i] : 0.0f;
        if (BIAS) added += ((const DEVICE f32*)in.bias)[o];
        ((DEVICE f32*)in.out)[i] = added + scale * (((const DEVICE f32*)in.out)[i] - added);
    }
}
