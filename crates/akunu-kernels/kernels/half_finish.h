// Finishes a product of f16 rows done by a library: the residual is already added, the row's scale and the bias are
// not. Scales are nearly always 1 and most products have no bias, and then there is nothing to do. One SIMD group per
// row.
BODY(half_finish) {
    const u32 row = at.group_y * SIMDS + SIMD, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    const f32 scale = ((const DEVICE f32*)in.x_scales)[row];
    if (scale == 1.0f && !BIAS) return;
    for (u32 o = LANE; o < OUTPUTS; o += 32) {
        const u64 i = (u64)row * OUT_STRIDE + o;
        f32 value = ((DEVICE f32*)in.out)[i];
        if (scale != 1.0f) {
            const f32 residual = RESIDUAL ? ((const DEVICE f32*)in.residual)[i] : 0.0f;
            value = residual + scale * (value - residual);
        }
        ((DEVICE f32*)in.out)[i] = BIAS ? value + ((const DEVICE f32*)in.bias)[o] : value;
    }
}
