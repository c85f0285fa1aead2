// RoPE: cos and sin of each pair's angle at each row's position.
BODY(rope_angles) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const u32 pair = at.group_x * THREADS + at.in_group, row = at.group_y;
    if (row >= live_rows(pass, false) || pair >= PAIRS) return;
    const f32 position = (f32)((const DEVICE Row*)in.rows)[row].position;
    const f32 angle = reduced_angle(position, ((const DEVICE f32*)in.frequencies)[pair]);
    DEVICE f32* out = (DEVICE f32*)in.angles + ((u64)row * PAIRS + pair) * 2;
    out[0] = COS(angle) * params.angles.magnitude;
    out[1] = SIN(angle) * params.angles.magnitude;
}
