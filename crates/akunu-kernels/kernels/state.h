// Layers with a state (Mamba 2). Rows that continue each other are a run, which is processed from its first row on.

INLINE bool follows(Row before, Row row) { return row.start == before.start && row.position == before.position + 1; }

// The slot of a logical position. Numbers beyond the last slot mean the last one.
INLINE u32 state_slot(Bindings in, u32 logical, u32 slots, u32 block) {
    const u32 slot = ((const DEVICE u32*)in.blocks)[logical / block];
    return slot < slots ? slot : slots - 1;
}

#ifdef TAPS
// Logical positions after which another thread may go on with a run: whole blocks.
#define CHUNK (params.state_conv.block > 64 ? params.state_conv.block : 64)

// Whether a thread begins at this row: it is the first of a run, or of a chunk whose sums need no inputs from before the run.
INLINE bool begins_chunk(const DEVICE Row* rows, Params params, u32 row) {
    if (row == 0 || !follows(rows[row - 1], rows[row])) return true;
    if ((rows[row].start + rows[row].position) % CHUNK != 0 || row < TAPS - 1) return false;
    const Row first = rows[row - (TAPS - 1)];
    return first.start == rows[row].start && first.position == rows[row].position - (TAPS - 1);
}

// A thread has a channel of a chunk of rows. Chunks end with blocks, so no thread writes inputs that another one reads.
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

// What a thread reads of a row: its element of the head, the head's step, and its share of B and C.
struct Taken {
    f32 x, gate, delta;
    f32 shares[STATE_SHARES];
};

INLINE Taken take_row(Bindings in, Params params, u32 row, u32 head, u32 d, Place at) {
    const u32 heads = params.state_scan.heads, dim = params.state_scan.head_dim, size = params.state_scan.state_size;
    const u32 groups = params.state_scan.groups, inner = heads * dim;
    const DEVICE f32* x = (const DEVICE f32*)in.x + (u64)row * (inner + 2 * groups * size);
    const DEVICE f32* mixed = (const DEVICE f32*)in.mixed + (u64)row * params.state_scan.stride;
    const DEVICE f32* b = x + inner + head / (heads / groups) * size;
    Taken taken;
    taken.x = d < dim ? x[head * dim + d] : 0.0f;
    taken.gate = d < dim ? mixed[params.state_scan.gate + head * dim + d] : 0.0f;
    taken.delta = softplus(mixed[params.state_scan.dt + head] + ((const DEVICE f32*)in.dt_bias)[head]);
    UNROLL for (u32 i = 0; i < STATE_SHARES; i++) {
        const u32 place = at.in_group + i * THREADS, n = place % PADDED;
        taken.shares[i] = place < 2 * PADDED && n < size ? b[(place / PADDED) * groups * size + n] : 0.0f;
    }
    return taken;
}

// A threadgroup has 32 elements of a head. Each SIMD group has STATE_EACH numbers of the state of each, in registers; what they
// give is added up when the next row has begun.
BODY(state_scan) {
    const u32 live = live_rows(pass, false), head = at.group_y, d = at.group_x * 32 + LANE, first = SIMD * STATE_EACH;
    const u32 heads = params.state_scan.heads, dim = params.state_scan.head_dim, size = params.state_scan.state_size;
    const u32 slots = params.state_scan.slots, block = params.state_scan.block;
    const DEVICE Row* rows = (const DEVICE Row*)in.rows;
    u32 row = at.group_z;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || (row > 0 && follows(rows[row - 1], rows[row]))) return;
    TG_ARRAY(f32, vectors, 0);
    TG_ARRAY(f32, parts, 4 * PADDED * 4);
    DEVICE f32* const states = (DEVICE f32*)in.state + (u64)head * size * dim + d;
    f32 state[STATE_EACH];
    const bool fresh = !KEPT || rows[row].position == 0;
    const u32 before = fresh ? 0 : state_slot(in, rows[row].start + rows[row].position - 1, slots, block);
    UNROLL for (u32 i = 0; i < STATE_EACH; i++) {
        const bool there = !fresh && d < dim && first + i < size;
        state[i] = there ? states[(u64)before * heads * size * dim + (u64)(first + i) * dim] : 0.0f;
    }
    const f32 rate = ((const DEVICE f32*)in.decay)[head], skip = ((const DEVICE f32*)in.skip)[head];
    DEVICE f32* const out = (DEVICE f32*)in.out + head * dim + d;
    Taken own, next = take_row(in, params, row, head, d, at);
    bool last = false;
    for (u32 turn = 0, begun = 0;; turn ^= 1, begun = 1) {
        const f32 x = own.x, gate = own.gate;
        if (!last) {
            own = next;
            UNROLL for (u32 i = 0; i < STATE_SHARES; i++) {
                const u32 place = at.in_group + i * THREADS;
                if (place < 2 * PADDED) vectors[turn * 2 * PADDED + place] = own.shares[i];
            }
        }
        BARRIER();
        if (begun && SIMD == 0 && d < dim) {
            f32 sum = skip * x;
            for (u32 i = 0; i < SIMDS; i++) sum += parts[(turn ^ 1) * THREADS + i * 32 + LANE];
            out[(u64)(row - (last ? 0 : 1)) * heads * dim] = sum * gate / (1.0f + EXP(-gate));
        }
        if (last) return;
        last = row + 1 == live || !follows(rows[row], rows[row + 1]);
        if (!last) next = take_row(in, params, row + 1, head, d, at);
        const f32 decay = EXP(own.delta * rate), taken = own.delta * own.x;
        const THREADGROUP f32* b = vectors + turn * 2 * PADDED + first;
        f32 sum = 0;
        UNROLL for (u32 i = 0; i < STATE_EACH; i++) {
            state[i] = state[i] * decay + b[i] * taken;
            sum += state[i] * b[PADDED + i];
        }
        parts[turn * THREADS + SIMD * 32 + LANE] = sum;
        if (KEPT) {
            const u32 logical = rows[row].start + rows[row].position;
            if (last || (logical + 1) % block == 0) {
                const u64 slot = (u64)state_slot(in, logical, slots, block) * heads * size * dim;
                UNROLL for (u32 i = 0; i < STATE_EACH; i++) {
                    if (d < dim && first + i < size) states[slot + (u64)(first + i) * dim] = state[i];
                }
            }
        }
        if (!last) row++;
    }
}
#endif
