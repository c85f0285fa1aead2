// Layers with a state (Mamba 2). Rows that continue each other are a run, which is processed from its first row on.

INLINE bool follows(Row before, Row row) { return row.start == before.start && row.position == before.position + 1; }

// The slot of a logical position. Numbers beyond the last slot mean the last one.
INLINE u32 state_slot(Bindings in, u32 logical, u32 slots, u32 block) {
    const u32 slot = ((const DEVICE u32*)in.blocks)[logical / block];
    return slot < slots ? slot : slots - 1;
}

#ifdef TAPS
// Rows of a run that a thread has, unless they are the first of it.
#define CHUNK 8

// Whether a thread begins at this row: it is the first of a run, or of a chunk whose sums need no inputs from before the run, in
// a block that the run has from its beginning. So what a thread writes for a block, no other one reads. A block is a power of
// two.
INLINE bool begins_chunk(const DEVICE Row* rows, Params params, u32 row) {
    const Row own = rows[row];
    if (row == 0 || !follows(rows[row - 1], own)) return true;
    const u32 logical = own.start + own.position;
    if (logical % CHUNK != 0) return false;
    u32 back = TAPS - 1;
    if (KEPT) {
        const u32 in_block = logical % params.state_conv.block;
        back = in_block > back ? in_block : back;
    }
    if (row < back) return false;
    const Row first = rows[row - back];
    return first.start == own.start && first.position == own.position - back;
}

// A thread has a channel of a chunk of rows.
BODY(state_conv) {
    const u32 channel = at.group_x * THREADS + at.in_group, live = live_rows(pass, false), channels = params.state_conv.channels;
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    u32 row = at.group_y;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || channel >= channels || !begins_chunk(rows, params, row)) return;
    const u32 stride = params.state_conv.stride, slots = params.state_conv.slots, block = params.state_conv.block;
    const DEVICE f32* x = (const DEVICE f32*)in.x + params.state_conv.first + channel;
    DEVICE f32* const state = (DEVICE f32*)in.state + channel;
    f32 weights[TAPS], inputs[TAPS];
    UNROLL for (u32 t = 0; t < TAPS; t++) weights[t] = ((const DEVICE f32*)in.weight)[(u64)channel * TAPS + t];
    const f32 bias = BIAS ? ((const DEVICE f32*)in.bias)[channel] : 0.0f;
    const bool inside = row > 0 && follows(rows[row - 1], rows[row]), fresh = !KEPT || rows[row].position == 0;
    const u32 before = inside || fresh ? 0 : state_slot(in, rows[row].start + rows[row].position - 1, slots, block);
    UNROLL for (u32 t = 0; t < TAPS - 1; t++) {
        if (inside) inputs[t] = x[(u64)(row + t + 1 - TAPS) * stride];
        else inputs[t] = fresh ? 0.0f : state[((u64)before * (TAPS - 1) + t) * channels];
    }
    for (;; row++) {
        inputs[TAPS - 1] = x[(u64)row * stride];
        f32 sum = bias;
        UNROLL for (u32 t = 0; t < TAPS; t++) sum += inputs[t] * weights[t];
        ((DEVICE f32*)in.out)[(u64)row * channels + channel] = sum / (1.0f + EXP(-sum));
        UNROLL for (u32 t = 1; t < TAPS; t++) inputs[t - 1] = inputs[t];
        const bool last = row + 1 == live || !follows(rows[row], rows[row + 1]);
        if (KEPT) {
            const u32 logical = rows[row].start + rows[row].position;
            if (last || (logical + 1) % block == 0) {
                const u32 slot = state_slot(in, logical, slots, block);
                UNROLL for (u32 t = 0; t < TAPS - 1; t++) state[((u64)slot * (TAPS - 1) + t) * channels] = inputs[t];
            }
        }
        if (last || begins_chunk(rows, params, row + 1)) return;
    }
}
#endif

#ifdef STATE_EACH
// Numbers of B, and of C, in threadgroup memory: those of the state, and zeros.
#define PADDED (SIMDS * STATE_EACH)

// ln(1 + e^x), also where the exponential is small beside 1.
INLINE f32 softplus(f32 x) {
    const f32 e = EXP(x < 0 ? x : -x), z = e / (2.0f + e), s = z * z;
    f32 p = 1.0f / 15.0f;
    p = p * s + 1.0f / 13.0f;
    p = p * s + 1.0f / 11.0f;
    p = p * s + 1.0f / 9.0f;
    p = p * s + 1.0f / 7.0f;
    p = p * s + 0.2f;
    p = p * s + 1.0f / 3.0f;
    p = p * s + 1.0f;
    return (x > 0 ? x : 0.0f) + p * (z + z);
}

// A threadgroup has 32 elements of a head. Each SIMD group has STATE_EACH numbers of the state of each, in registers. STEPS rows are
// copied to threadgroup memory at a time, of which a SIMD group has OWN_STEPS; then the state takes them up, and then what
// the SIMD groups give is added up.
BODY(state_scan) {
    const u32 live = live_rows(pass, false), head = at.group_y, d = at.group_x * 32 + LANE, first = SIMD * STATE_EACH;
    const u32 heads = params.state_scan.heads, dim = params.state_scan.head_dim, size = params.state_scan.state_size;
    const u32 groups = params.state_scan.groups, slots = params.state_scan.slots, block = params.state_scan.block;
    const u32 inner = heads * dim, cols = inner + 2 * groups * size, stride = params.state_scan.stride;
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    u32 row = at.group_z;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || (row > 0 && follows(rows[row - 1], rows[row]))) return;
    TG_ARRAY(f32, vectors, 0);
    TG_ARRAY(f32, taken, STEPS * 2 * PADDED * 4);
    TG_ARRAY(f32, decays, STEPS * (2 * PADDED + 32) * 4);
    TG_ARRAY(f32, parts, STEPS * (2 * PADDED + 33) * 4);
    DEVICE f32* const states = (DEVICE f32*)in.state + (u64)head * size * dim + d;
    f32 state[STATE_EACH];
    const bool fresh = !KEPT || rows[row].position == 0;
    const u32 before = fresh ? 0 : state_slot(in, rows[row].start + rows[row].position - 1, slots, block);
    UNROLL for (u32 i = 0; i < STATE_EACH; i++) {
        const bool there = !fresh && d < dim && first + i < size;
        state[i] = there ? states[(u64)before * inner * size + (u64)(first + i) * dim] : 0.0f;
    }
    const f32 rate = ((const DEVICE f32*)in.decay)[head], skip = ((const DEVICE f32*)in.skip)[head];
    const f32 dt_bias = ((const DEVICE f32*)in.dt_bias)[head];
    const DEVICE f32* x = (const DEVICE f32*)in.x;
    const DEVICE f32* mixed = (const DEVICE f32*)in.mixed;
    const u32 logical = rows[row].start + rows[row].position, begin = row;
    for (bool ended = false; !ended; row += STEPS) {
        u32 count = 0;
        bool goes_on = true;
        UNROLL for (u32 step = 0; step < STEPS; step++) {
            goes_on = goes_on && row + step < live && (row + step == begin || follows(rows[row + step - 1], rows[row + step]));
            count += goes_on;
        }
        ended = count < STEPS || row + STEPS >= live || !follows(rows[row + STEPS - 1], rows[row + STEPS]);
        // All loads are under way before the first is waited for.
        const DEVICE f32* b = x + (u64)row * cols + inner + head / (heads / groups) * size;
        f32 shares[STEPS * STATE_EACH / 16 + 1], inputs[OWN_STEPS], gates[OWN_STEPS], steps[OWN_STEPS];
        UNROLL for (u32 k = 0; k < STEPS * STATE_EACH / 16 + 1; k++) {
            const u32 i = at.in_group + k * THREADS, place = i % (2 * PADDED), n = place % PADDED;
            const bool there = i < count * 2 * PADDED && n < size;
            shares[k] = there ? b[(u64)(i / (2 * PADDED)) * cols + place / PADDED * groups * size + n] : 0.0f;
        }
        UNROLL for (u32 k = 0; k < OWN_STEPS; k++) {
            const u32 own = SIMD + k * SIMDS;
            const bool there = own < count && d < dim;
            inputs[k] = there ? x[(u64)(row + own) * cols + head * dim + d] : 0.0f;
            gates[k] = there ? mixed[(u64)(row + own) * stride + params.state_scan.gate + head * dim + d] : 0.0f;
            steps[k] = own < count ? mixed[(u64)(row + own) * stride + params.state_scan.dt + head] : 0.0f;
        }
        UNROLL for (u32 k = 0; k < STEPS * STATE_EACH / 16 + 1; k++) {
            const u32 i = at.in_group + k * THREADS;
            if (i < count * 2 * PADDED) vectors[i] = shares[k];
        }
        UNROLL for (u32 k = 0; k < OWN_STEPS; k++) {
            const u32 own = SIMD + k * SIMDS;
            const f32 delta = softplus(steps[k] + dt_bias);
            if (own < count) taken[own * 32 + LANE] = delta * inputs[k];
            if (own < count && LANE == 0) decays[own] = EXP(delta * rate);
        }
        BARRIER();
        for (u32 step = 0; step < count; step++) {
            const THREADGROUP f32x4* given = (const THREADGROUP f32x4*)(vectors + step * 2 * PADDED + first);
            const f32 decay = decays[step], input = taken[step * 32 + LANE];
            f32 sums[4] = {0, 0, 0, 0};
            UNROLL for (u32 i = 0; i < STATE_EACH; i += 4) {
                const f32x4 b = given[i / 4], c = given[(PADDED + i) / 4];
                state[i] = state[i] * decay + b.x * input;
                state[i + 1] = state[i + 1] * decay + b.y * input;
                state[i + 2] = state[i + 2] * decay + b.z * input;
                state[i + 3] = state[i + 3] * decay + b.w * input;
                sums[0] += state[i] * c.x;
                sums[1] += state[i + 1] * c.y;
                sums[2] += state[i + 2] * c.z;
                sums[3] += state[i + 3] * c.w;
            }
            parts[step * THREADS + SIMD * 32 + LANE] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            if (KEPT) {
                const u32 place = logical + (row - begin) + step;
                if ((ended && step + 1 == count) || (place + 1) % block == 0) {
                    const u64 slot = (u64)state_slot(in, place, slots, block) * inner * size;
                    UNROLL for (u32 i = 0; i < STATE_EACH; i++) {
                        if (d < dim && first + i < size) states[slot + (u64)(first + i) * dim] = state[i];
                    }
                }
            }
        }
        BARRIER();
        UNROLL for (u32 k = 0; k < OWN_STEPS; k++) {
            const u32 own = SIMD + k * SIMDS;
            if (own < count && d < dim) {
                f32 sum = skip * inputs[k];
                for (u32 i = 0; i < SIMDS; i++) sum += parts[own * THREADS + i * 32 + LANE];
                ((DEVICE f32*)in.out)[(u64)(row + own) * inner + head * dim + d] = sum * gates[k] / (1.0f + EXP(-gates[k]));
            }
        }
    }
}
#endif
