// Shared by the matrix kernels: the weights of an output, and the epilogue that turns its sum into the output. KIND 0
// is a single product, with ACTIVATED and its activation, 1 fused Q, K and V, 2 gate and up with the activation.
//
// With ROUTED, each row has the matrices of its expert, which are adjacent in memory. Rows are sorted by expert, or with
// PICKED in the order of picks, of which each has a tile; they then read the rows of the pass.
//
// A norm can be deferred to the products around it. A product with NORM writes, for its outputs y, y · norm_weight
// (f32 or q8) and for each block of 32 the sum of y² + epsilon. A product with SQUARES consumes that: it multiplies
// its sums by 1 / rms, computed from those sums of squares.

#if KIND == 2
#define STREAMS 2
#else
#define STREAMS 1
#endif

// Rows `first` to `end` − 1.
struct Span {
    u32 first, end;
};

#if ROUTED
#define MATRIX_OUTPUTS ((u64)EXPERTS * OUTPUTS)
#else
#define MATRIX_OUTPUTS ((u64)OUTPUTS)
#endif

#if PICKED
// The expert of pick `pick` of all.
INLINE u32 picked_expert(Bindings in, u32 pick) {
    const u32 expert = ((const DEVICE u32*)in.picks)[pick];
    return expert < EXPERTS ? expert : EXPERTS - 1;
}

// The pick `tile`, none past the last one; `in` gets its expert. Waits for the previous kernel, which decides what is read.
INLINE Span rows_of(THREAD_PTR Bindings* in, const DEVICE Pass* pass, u32 tile, u32 size, u32 lane) {
    const u32 live = live_rows(pass, false) * CHOSEN;
    WAIT_FOR_INPUT();
    in->expert = tile < live ? picked_expert(*in, tile) : 0;
    const Span span = {tile, tile < live ? tile + 1 : tile};
    return span;
}
#elif ROUTED
// The rows of an expert, of `live` sorted ones.
INLINE Span rows_of_expert(Bindings in, u32 expert, u32 live) {
    const DEVICE u32* starts = (const DEVICE u32*)in.starts + expert;
    const Span all = {starts[0], starts[1] < live ? starts[1] : live};
    return all;
}

INLINE u32 tiles_in(Span rows, u32 size) { return rows.first < rows.end ? (rows.end - rows.first + size - 1) / size : 0; }

// The rows of tile `tile`, none past the last one; `in` gets their expert. A tile has up to `size` rows of one expert.
// Each lane counts the tiles of some experts; the one whose experts have the wanted tile finds it among them. Waits for
// the previous kernel, which decides what is read.
INLINE Span rows_of(THREAD_PTR Bindings* in, const DEVICE Pass* pass, u32 tile, u32 size, u32 lane) {
    const u32 live = live_rows(pass, false) * CHOSEN, each = (EXPERTS + 31) / 32, from = lane * each;
    WAIT_FOR_INPUT();
    u32 own = 0;
    for (u32 e = from; e < from + each && e < EXPERTS; e++) own += tiles_in(rows_of_expert(*in, e, live), size);
    u32 at = sum_before(own, lane), expert = 0, first = 0, end = 0;
    if (at <= tile && tile < at + own) {
        expert = from;
        Span rows = rows_of_expert(*in, expert, live);
        while (at + tiles_in(rows, size) <= tile) {
            at += tiles_in(rows, size);
            expert++;
            rows = rows_of_expert(*in, expert, live);
        }
        first = rows.first + (tile - at) * size;
        end = first + size < rows.end ? first + size : rows.end;
    }
    in->expert = SIMD_MAX_U32(expert);
    const Span span = {SIMD_MAX_U32(first), SIMD_MAX_U32(end)};
    return span;
}
#else
// The live rows from tile `tile` of `size` rows on.
INLINE Span rows_of(THREAD_PTR Bindings* in, const DEVICE Pass* pass, u32 tile, u32 size, u32 lane) {
    const Span span = {tile * size, live_rows(pass, LOGITS)};
    return span;
}
#endif

// The row of the input that row `row` of the output is computed from.
INLINE u32 input_row(u32 row) {
#if PICKED
    return row / CHOSEN;
#else
    return row;
#endif
}

// The matrix of output `o`; `o` becomes the row in that matrix.
INLINE Matrix matrix_of(Bindings in, u32 stream, THREAD_PTR u32* o) {
#if KIND == 0
    const Matrix m = {in.weight, in.weight_scales, in.weight_offsets, MATRIX_OUTPUTS * BLOCKS};
#elif KIND == 1
    Matrix m = {in.q_weight, in.q_scales, in.q_offsets, (u64)Q_OUTPUTS * BLOCKS};
    if (*o >= Q_OUTPUTS) {
        const bool v = *o >= Q_OUTPUTS + K_OUTPUTS;
        m.weight = v ? in.v_weight : in.k_weight;
        m.scales = v ? in.v_scales : in.k_scales;
        m.offsets = v ? in.v_offsets : in.k_offsets;
        m.blocks = (u64)(v ? V_OUTPUTS : K_OUTPUTS) * BLOCKS;
        *o -= v ? Q_OUTPUTS + K_OUTPUTS : Q_OUTPUTS;
    }
#else
    Matrix m = {in.gate_weight, in.gate_scales, in.gate_offsets, MATRIX_OUTPUTS * BLOCKS};
    if (stream == 1) {
        m.weight = in.up_weight;
        m.scales = in.up_scales;
        m.offsets = in.up_offsets;
    }
#endif
#if ROUTED
    *o += in.expert * OUTPUTS;
#endif
    return m;
}

#if INPUT_PIECES
#ifndef STAGED_PLACE
#define STAGED_PLACE(piece) (piece)
#endif

// Stages one row of the input in threadgroup memory, with all threads of the group. All loads are issued before any
// store.
INLINE void stage_input(const DEVICE u8* row, THREADGROUP u8* to, Place at) {
    u32x4 pieces[INPUT_PIECES];
    UNROLL for (u32 i = 0; i < INPUT_PIECES; i++) {
        const u32 p = i * THREADS + at.in_group;
        if (p < INPUT_ROW_BYTES / 16) pieces[i] = read16(row + p * 16);
    }
    UNROLL for (u32 i = 0; i < INPUT_PIECES; i++) {
        const u32 p = i * THREADS + at.in_group;
        if (p < INPUT_ROW_BYTES / 16) *(THREADGROUP u32x4*)(to + STAGED_PLACE(p) * 16) = pieces[i];
    }
    BARRIER();
}
#endif

// What is added to the sums of an output: bias and residual.
struct Addend {
    f32 v[STREAMS];
};

// Independent of the sums, so it can be loaded early.
INLINE Addend addend(Bindings in, u32 row, u32 o) {
    f32 sum = 0;
#if ROUTED
    const u32 of_all = in.expert * OUTPUTS + o;
#else
    const u32 of_all = o;
#endif
#if KIND == 0
    if (BIAS) sum += ((const DEVICE f32*)in.bias)[of_all];
    if (RESIDUAL) sum += ((const DEVICE f32*)in.residual)[(u64)row * OUT_STRIDE + o];
#elif KIND == 1
    if (BIAS) {
        const bool k = o >= Q_OUTPUTS, v = o >= Q_OUTPUTS + K_OUTPUTS;
        const DEVICE u8* bias = v ? in.v_bias : k ? in.k_bias : in.q_bias;
        sum += ((const DEVICE f32*)bias)[v ? o - Q_OUTPUTS - K_OUTPUTS : k ? o - Q_OUTPUTS : o];
    }
#endif
    Addend added = {};
    added.v[0] = sum;
#if KIND == 2 && ROUTED
    if (BIAS) {
        added.v[0] = ((const DEVICE f32*)in.gate_bias)[of_all];
        added.v[1] = ((const DEVICE f32*)in.up_bias)[of_all];
    }
#endif
    return added;
}

// The output from the sums of its streams.
INLINE f32 finished(Params params, f32 sum, f32 second, Addend added) {
#if KIND == 2
    return gated(sum + added.v[0], second + added.v[1]);
#else
    sum += added.v[0];
#if KIND == 0 && !ROUTED
    const f32 cap = params.matmul.soft_cap;
    if (cap != 0) sum = cap * TANH(sum / cap);
#endif
#if ACTIVATED
    sum = activate(sum);
#endif
    return sum;
#endif
}

// Whether outputs are stored in blocks of 32, one per lane. q8 and sums of squares are per block, so each threadgroup
// must have whole blocks.
#define IN_BLOCKS (OUT_Q8 || NORM)

// The weight of the deferred norm for output `o`. No kernel writes it, so it can be read before the grid dependency
// wait.
INLINE f32 norm_weight(Bindings in, u32 o) { return NORM ? ((const DEVICE f32*)in.norm_weight)[o] : 0.0f; }

// Stores a block of 32 consecutive outputs of a row; `value`, `weight` and `o` are this lane's. Must be reached by all
// 32 lanes.
INLINE void store_block(Bindings in, Params params, u32 row, u32 o, f32 value, f32 weight, u32 lane) {
    if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
    if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, o / 32, value, lane);
#if KIND == 0
    if (NORM) {
        const f32 deferred = value * weight, squares = SIMD_SUM(value * value);
        if (lane == 0) ((DEVICE f32*)in.out_squares)[(u64)row * (OUTPUTS / 32) + o / 32] = squares + 32 * params.matmul.epsilon;
        if (NORM_F32) ((DEVICE f32*)in.normed)[(u64)row * OUTPUTS + o] = deferred;
        if (NORM_Q8) store_q8(in.normed_q8 + row * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, o / 32, deferred, lane);
    }
#endif
}

#if SQUARES
// A lane's share of a row's INPUTS / 32 sums of squares: SQUARES of them. They are loaded along with the first
// activations and reduced after the products.
struct Squares {
    f32 v[SQUARES];
};

INLINE Squares load_squares(Bindings in, u32 row, u32 lane) {
    const DEVICE f32* from = (const DEVICE f32*)in.squares + (u64)row * (INPUTS / 32);
    Squares squares;
    UNROLL for (u32 i = 0; i < SQUARES; i++) squares.v[i] = 32 * i + lane < INPUTS / 32 ? from[32 * i + lane] : 0.0f;
    return squares;
}

// 1 / rms of the row. Must be reached by all 32 lanes.
INLINE f32 row_scale(Squares squares) {
    f32 sum = 0;
    UNROLL for (u32 i = 0; i < SQUARES; i++) sum += squares.v[i];
    return 1.0f / SQRT(SIMD_SUM(sum) / (f32)INPUTS);
}
#endif
