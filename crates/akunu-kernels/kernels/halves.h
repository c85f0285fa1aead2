// Rows of f16 with one scale each, as akunu_plan::halves defines them, or of E4M3, as akunu_plan::eights does. One threadgroup per row; thread t holds
// elements 4t … 4t + 3, then the four that lie 4 · THREADS further on, and so on, PER_THREAD times.

#define EACH_FOUR(k, col) UNROLL for (u32 k = 0, col = at.in_group * 4; k < PER_THREAD * 4; k += 4, col += THREADS * 4) if (col < COLS)
#define EACH_OF_FOUR(i) UNROLL for (u32 i = 0; i < 4; i++)

struct RowPart {
    f32 v[PER_THREAD * 4];
};

INLINE RowPart load_part(const DEVICE u8* from, u64 row, Place at) {
    RowPart x;
    EACH_FOUR(k, col) {
        const u32x4 four = read16(from + (row * COLS + col) * 4);
        x.v[k] = as_f32(four.x);
        x.v[k + 1] = as_f32(four.y);
        x.v[k + 2] = as_f32(four.z);
        x.v[k + 3] = as_f32(four.w);
    }
    return x;
}

#if X_F16
// Rows of f16 with their scales, which a product has left without its bias.
INLINE RowPart load_unfinished(Bindings in, u64 row, const THREAD_PTR RowPart* bias, Place at) {
    const f32 scale = ((const DEVICE f32*)in.x_scales)[row];
    RowPart x;
    EACH_FOUR(k, col) {
        const u32x2 four = read8(in.x_f16 + (row * COLS + col) * 2);
        const u32 number[2] = {four.x, four.y};
        EACH_OF_FOUR(i) {
            const f32 scaled = scale * f16_to_f32((u16)(number[i / 2] >> (i % 2 * 16)));
            x.v[k + i] = BIAS ? scaled + bias->v[k + i] : scaled;
        }
    }
    return x;
}
#endif

// The bits of the row's largest magnitude, returned to all threads.
INLINE u32 largest_of_row(const THREAD_PTR RowPart* x, Place at) {
    u32 most = 0;
    EACH_FOUR(k, col) EACH_OF_FOUR(i) {
        const u32 bits = as_u32(x->v[k + i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    TG_ARRAY(u32, space, 128);
    most = SIMD_MAX_U32(most);
    if (LANE == 0) space[SIMD] = most;
    BARRIER();
    return SIMD_MAX_U32(LANE < SIMDS ? space[LANE] : 0);
}

// The nearest code, ties to even; values beyond 448 become 448.
INLINE u32 f32_to_e4m3(f32 value) {
    const u32 sign = as_u32(value) >> 24 & 0x80u, bits = as_u32(value) & 0x7fffffffu;
    const f32 magnitude = as_f32(bits > 0x43e00000u ? 0x43e00000u : bits);
    // Below 2^-6 codes are 2^-9 apart, as f32 are from 2^14 on.
    if (magnitude < 0.015625f) return sign | (as_u32(magnitude + 16384.0f) & 15u);
    const u32 kept = as_u32(magnitude);
    return sign | ((kept + 0x7ffffu + (kept >> 20 & 1u)) >> 20) - (120u << 3);
}

INLINE void store_eights(Bindings in, u32 row, const THREAD_PTR RowPart* x, Place at) {
    const u32 most = largest_of_row(x, at);
    const bool finite = most < 0x7f800000u;
    const f32 least = as_f32(0x00800000u), of_most = as_f32(most) * (1.0f / 448.0f);
    const f32 scale = of_most > least ? of_most : least, inverse = 1.0f / scale;
    if (at.in_group == 0) ((DEVICE f32*)in.out_scales)[row] = finite ? scale : as_f32(0x7fc00000u);
    EACH_FOUR(k, col) {
        u32 codes = 0;
        EACH_OF_FOUR(i) {
            if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * COLS + col + i] = x->v[k + i];
            if (finite) codes |= f32_to_e4m3(x->v[k + i] * inverse) << (8 * i);
        }
        *(DEVICE u32*)(in.out_f16 + (u64)row * COLS + col) = codes;
    }
}

INLINE void store_row(Bindings in, u32 row, const THREAD_PTR RowPart* x, Place at) {
    if (OUT_EIGHTS) {
        store_eights(in, row, x, at);
        return;
    }
    const u32 most = largest_of_row(x, at), exponent = most >> 23;
    const u32 kept = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    const bool finite = exponent < 255, plain = most == 0 || (exponent >= 127 - 8 && exponent < 127 + 15);
    if (at.in_group == 0) ((DEVICE f32*)in.out_scales)[row] = !finite ? as_f32(0x7fc00000u) : plain ? 1.0f : as_f32(kept << 23);
    RowPart numbers = *x;
    if (!plain) {
        const f32 inverse = as_f32((254 - kept) << 23);
        EACH_FOUR(k, col) EACH_OF_FOUR(i) numbers.v[k + i] = finite ? x->v[k + i] * inverse : 0.0f;
    }
    EACH_FOUR(k, col) {
        const THREAD_PTR f32* four = numbers.v + k;
        if (OUT_F32) EACH_OF_FOUR(i) ((DEVICE f32*)in.out)[(u64)row * COLS + col + i] = x->v[k + i];
        DEVICE u8* const to = in.out_f16 + (u64)row * COLS * 2;
        if (OUT_LANES) {
            *(DEVICE u32*)(to + lane_place(col) * 2) = two_halves(four[0], four[2]);
            *(DEVICE u32*)(to + lane_place(col + 1) * 2) = two_halves(four[1], four[3]);
        } else {
            const u32x2 halves = {two_halves(four[0], four[1]), two_halves(four[2], four[3])};
            *(DEVICE u32x2*)(to + col * 2) = halves;
        }
    }
}

#ifdef LAYER
// x / rms(x) · weight (+ bias). With LAYER the mean is subtracted first (layer norm). With PICK the source row is the
// one that logit_rows names.
BODY(norm_halves) {
    const RowPart weight = load_part(in.weight, 0, at);
    RowPart bias;
    if (BIAS) bias = load_part(in.bias, 0, at);
    const bool live = at.group_y < live_rows(pass, LOGITS);
    const u32 source = PICK && live ? ((const DEVICE u32*)in.logit_rows)[at.group_y] : at.group_y;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
    RowPart x = load_part(in.x, source, at);
    if (LAYER) {
        f32 sum = 0;
        EACH_FOUR(k, col) EACH_OF_FOUR(i) sum += x.v[k + i];
        // Each reduction uses its own threadgroup memory, so no barrier is needed before the next one.
        TG_ARRAY(f32, mean_space, 256);
        const f32 mean = group_sum(sum, mean_space, at) / (f32)COLS;
        EACH_FOUR(k, col) EACH_OF_FOUR(i) x.v[k + i] -= mean;
    }
    f32 squares = 0;
    EACH_FOUR(k, col) EACH_OF_FOUR(i) squares += x.v[k + i] * x.v[k + i];
    TG_ARRAY(f32, space, 0);
    const f32 scale = 1.0f / SQRT(group_sum(squares, space, at) / (f32)COLS + params.norm.epsilon);
    EACH_FOUR(k, col) EACH_OF_FOUR(i) {
        const f32 value = x.v[k + i] * (scale * weight.v[k + i]);
        x.v[k + i] = BIAS ? value + bias.v[k + i] : value;
    }
    store_row(in, at.group_y, &x, at);
}
#endif

#ifdef ACTIVATION
// activation(gate) · up
BODY(glu_halves) {
    const bool live = at.group_y < live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
    RowPart gate = load_part(in.gate, at.group_y, at);
    const RowPart up = load_part(in.up, at.group_y, at);
    EACH_FOUR(k, col) EACH_OF_FOUR(i) gate.v[k + i] = activate(gate.v[k + i]) * up.v[k + i];
    store_row(in, at.group_y, &gate, at);
}

// activation(x), or with X_F16 of what a product has left.
BODY(activate_halves) {
#if X_F16
    RowPart bias;
    if (BIAS) bias = load_part(in.bias, 0, at);
#endif
    const bool live = at.group_y < live_rows(pass, LOGITS);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
#if X_F16
    RowPart x = load_unfinished(in, at.group_y, &bias, at);
#else
    RowPart x = load_part(in.x, at.group_y, at);
#endif
    EACH_FOUR(k, col) EACH_OF_FOUR(i) x.v[k + i] = activate(x.v[k + i]);
    store_row(in, at.group_y, &x, at);
}
#endif

#ifdef TIMES
BODY(halve) {
    const bool live = at.group_y < live_rows(pass, false) * TIMES;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
#if X_F16
    const RowPart none = {}, x = load_unfinished(in, at.group_y, &none, at);
#else
    const RowPart x = load_part(in.x, at.group_y, at);
#endif
    store_row(in, at.group_y, &x, at);
}
#endif
