// Kernels over rows: norms, activations, quantisation, addition.

// Stores element `col` of a row in the requested forms. With OUT_Q8 the lanes of a SIMD group must hold 32 consecutive
// elements.
INLINE void store_element(Bindings in, u32 row, u32 col, f32 value, u32 lane) {
    if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * COLS + col] = value;
    if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(COLS), COLS, col / 32, value, lane);
}

#ifdef PER_THREAD
// Thread t holds elements t, t + THREADS, … in registers, PER_THREAD of them; elements past the end of the row are
// skipped.
#define EACH_ELEMENT(k, col) UNROLL for (u32 k = 0, col = at.in_group; k < PER_THREAD; k++, col += THREADS) if (col < COLS)

struct Elements {
    f32 v[PER_THREAD];
};

INLINE f32 inverse_rms(Elements x, f32 epsilon, Place at) {
    f32 squares = 0;
    EACH_ELEMENT(k, col) squares += x.v[k] * x.v[k];
    TG_ARRAY(f32, space, 0);
    return 1.0f / SQRT(group_sum(squares, space, at) / (f32)COLS + epsilon);
}

// The reduction for the mean uses its own threadgroup memory, so no barrier is needed before the next reduction.
INLINE Elements less_mean(Elements x, Place at) {
    f32 sum = 0;
    EACH_ELEMENT(k, col) sum += x.v[k];
    TG_ARRAY(f32, space, 128);
    const f32 mean = group_sum(sum, space, at) / (f32)COLS;
    EACH_ELEMENT(k, col) x.v[k] -= mean;
    return x;
}

INLINE Elements load_elements(const DEVICE u8* from, u64 row, Place at) {
    Elements x;
    EACH_ELEMENT(k, col) x.v[k] = ((const DEVICE f32*)from)[row * COLS + col];
    return x;
}

#ifdef LAYER
// x / rms(x) · weight (+ bias). With LAYER the mean is subtracted first (layer norm). With PICK the source row is the
// one that logit_rows names.
BODY(norm_rows) {
    const Elements weight = load_elements(in.weight, 0, at);
    Elements bias;
    if (BIAS) bias = load_elements(in.bias, 0, at);
    const bool live = at.group_y < live_rows(pass, LOGITS);
    const u32 source = PICK && live ? ((const DEVICE u32*)in.logit_rows)[at.group_y] : at.group_y;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
    Elements x = load_elements(in.x, source, at);
    if (LAYER) x = less_mean(x, at);
    const f32 scale = inverse_rms(x, params.norm.epsilon, at);
    EACH_ELEMENT(k, col) {
        const f32 value = x.v[k] * scale * weight.v[k];
        store_element(in, at.group_y, col, BIAS ? value + bias.v[k] : value, LANE);
    }
}

// One threadgroup per head of a row: COLS elements with the head's own weights.
BODY(head_norm) {
    const u32 head = at.group_x, row = at.group_y;
    const Elements weight = load_elements(in.weight, head, at);
    Elements bias;
    if (BIAS) bias = load_elements(in.bias, head, at);
    const bool live = row < live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
    Elements x = load_elements(in.x + (u64)row * params.head_norm.in_stride * 4, head, at);
    if (LAYER) x = less_mean(x, at);
    const f32 scale = inverse_rms(x, params.head_norm.epsilon, at);
    DEVICE f32* out = (DEVICE f32*)in.out + (u64)row * params.head_norm.out_stride + (u64)head * COLS;
    EACH_ELEMENT(k, col) {
        const f32 value = x.v[k] * scale * weight.v[k];
        out[col] = BIAS ? value + bias.v[k] : value;
    }
}
#endif

// The sum of the squares of each row.
BODY(sum_squares) {
    const bool live = at.group_y < live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
    const Elements x = load_elements(in.x, at.group_y, at);
    f32 squares = 0;
    EACH_ELEMENT(k, col) squares += x.v[k] * x.v[k];
    TG_ARRAY(f32, space, 0);
    const f32 sum = group_sum(squares, space, at);
    if (at.in_group == 0) ((DEVICE f32*)in.out)[(u64)at.group_y * params.sum_squares.out_stride] = sum;
}

// residual + x / rms(x) · weight
BODY(norm_add) {
    const Elements weight = load_elements(in.weight, 0, at);
    const bool live = at.group_y < live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live) return;
    const Elements residual = load_elements(in.residual, at.group_y, at);
    const Elements x = load_elements(in.x, at.group_y, at);
    const f32 scale = inverse_rms(x, params.norm.epsilon, at);
    EACH_ELEMENT(k, col) store_element(in, at.group_y, col, residual.v[k] + x.v[k] * scale * weight.v[k], LANE);
}
#endif

#ifdef PART
// x / rms · weight, where the squares of whole rows are summed up. One thread per element.
BODY(norm_part) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const f32 sum = ((const DEVICE f32*)in.squares)[(u64)row * params.norm_part.sum_stride];
    const f32 scale = 1.0f / SQRT(sum / (f32)params.norm_part.summed + params.norm_part.epsilon);
    const f32 value = ((const DEVICE f32*)in.x)[(u64)row * COLS + col] * scale * ((const DEVICE f32*)in.weight)[col];
    ((DEVICE f32*)in.out)[(u64)row * params.norm_part.out_stride + col] = value;
}
#endif

#ifdef REORDER
// The columns of x in another order. One thread per element.
BODY(reorder) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    const u32 wanted = col < COLS ? ((const DEVICE u32*)in.order)[col] : 0, from = wanted < COLS ? wanted : COLS - 1;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    ((DEVICE f32*)in.out)[(u64)row * COLS + col] = ((const DEVICE f32*)in.x)[(u64)row * COLS + from];
}
#endif

#ifdef ACTIVATION
// activation(gate) · up
BODY(glu) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const u64 i = (u64)row * COLS + col;
    const f32 gate = ((const DEVICE f32*)in.gate)[i], up = ((const DEVICE f32*)in.up)[i];
    store_element(in, row, col, activate(gate) * up, LANE);
}

// activation(x)
BODY(activate_rows) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, LOGITS);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    store_element(in, row, col, activate(((const DEVICE f32*)in.x)[(u64)row * COLS + col]), LANE);
}
#endif

// residual + scale · x
BODY(add_rows) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const u64 i = (u64)row * COLS + col;
    ((DEVICE f32*)in.out)[i] = ((const DEVICE f32*)in.residual)[i] + params.add.scale * ((const DEVICE f32*)in.x)[i];
}

#ifdef TIMES
BODY(quantise) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false) * TIMES;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    store_element(in, row, col, ((const DEVICE f32*)in.x)[(u64)row * COLS + col], LANE);
}
#endif
