// What the matrix kernels share: which weights an output has, and what becomes of its sum.
// KIND 0 is a product of its own, 1 Q, K and V side by side, 2 gate and up.
//
// A norm may be shared by the products around it. One with NORM begins it: of its outputs y it writes y · norm_weight, rounded or not, and
// of each block of 32 the sum of y² + epsilon. One with SQUARES ends it: it multiplies its sums by 1 / rms, which those sums tell.

#if KIND == 2
#define STREAMS 2
#else
#define STREAMS 1
#endif

// The matrix of output `o`, and `o` made its row in there.
INLINE Matrix matrix_of(Bindings in, u32 stream, THREAD_PTR u32* o) {
#if KIND == 0
    const Matrix m = {in.weight, in.weight_scales, in.weight_offsets, (u64)OUTPUTS * BLOCKS};
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
    Matrix m = {in.gate_weight, in.gate_scales, in.gate_offsets, (u64)OUTPUTS * BLOCKS};
    if (stream == 1) {
        m.weight = in.up_weight;
        m.scales = in.up_scales;
        m.offsets = in.up_offsets;
    }
#endif
    return m;
}

#if INPUT_PIECES
// Brings a row of the input to threadgroup memory, for all of the group's threads. All loads before any store.
INLINE void bring_input(const DEVICE u8* row, THREADGROUP u8* to, Place at) {
    u32x4 pieces[INPUT_PIECES];
    UNROLL for (u32 i = 0; i < INPUT_PIECES; i++) {
        const u32 p = i * THREADS + at.in_group;
        if (p < INPUT_ROW_BYTES / 16) pieces[i] = read16(row + p * 16);
    }
    UNROLL for (u32 i = 0; i < INPUT_PIECES; i++) {
        const u32 p = i * THREADS + at.in_group;
        if (p < INPUT_ROW_BYTES / 16) *(THREADGROUP u32x4*)(to + p * 16) = pieces[i];
    }
    BARRIER();
}
#endif

// What is added to an output: known before its sum is.
INLINE f32 addend(Bindings in, u32 row, u32 o) {
    f32 sum = 0;
#if KIND == 0
    if (BIAS) sum += ((const DEVICE f32*)in.bias)[o];
    if (RESIDUAL) sum += ((const DEVICE f32*)in.residual)[(u64)row * OUT_STRIDE + o];
#elif KIND == 1
    if (BIAS) {
        const bool k = o >= Q_OUTPUTS, v = o >= Q_OUTPUTS + K_OUTPUTS;
        const DEVICE u8* bias = v ? in.v_bias : k ? in.k_bias : in.q_bias;
        sum += ((const DEVICE f32*)bias)[v ? o - Q_OUTPUTS - K_OUTPUTS : k ? o - Q_OUTPUTS : o];
    }
#endif
    return sum;
}

// An output from the sums of its streams.
INLINE f32 finished(Params params, f32 sum, f32 second, f32 added) {
#if KIND == 2
    return activate(sum) * second;
#else
    sum += added;
#if KIND == 0
    const f32 cap = params.matmul.soft_cap;
    if (cap != 0) sum = cap * TANH(sum / cap);
#endif
    return sum;
#endif
}

// Whether outputs are finished in blocks of 32 neighbours, one a lane: q8 and squares are of whole blocks, so a group has whole ones.
#define IN_BLOCKS (OUT_Q8 || NORM)

// What output `o` is multiplied by where the next norm begins: no kernel writes it, so it may be read before the wait.
INLINE f32 norm_weight(Bindings in, u32 o) { return NORM ? ((const DEVICE f32*)in.norm_weight)[o] : 0.0f; }

// 32 neighbouring outputs of a row, from a multiple of 32 on: `value` and `weight` are of this lane's, `o`. All 32 lanes come.
INLINE void store_block(Bindings in, Params params, u32 row, u32 o, f32 value, f32 weight, u32 lane) {
    if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
    if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, o / 32, value, lane);
#if KIND == 0
    if (NORM) {
        const f32 begun = value * weight, squares = SIMD_SUM(value * value);
        if (lane == 0) ((DEVICE f32*)in.out_squares)[(u64)row * (OUTPUTS / 32) + o / 32] = squares + 32 * params.matmul.epsilon;
        if (NORM_F32) ((DEVICE f32*)in.normed)[(u64)row * OUTPUTS + o] = begun;
        if (NORM_Q8) store_q8(in.normed_q8 + row * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, o / 32, begun, lane);
    }
#endif
}

#if SQUARES
// Of a row's squares, a lane's: INPUTS / 32 of them, SQUARES a lane. They are loaded beside the first activations, and added up when the
// products are there.
struct Squares {
    f32 v[SQUARES];
};

INLINE Squares load_squares(Bindings in, u32 row, u32 lane) {
    const DEVICE f32* from = (const DEVICE f32*)in.squares + (u64)row * (INPUTS / 32);
    Squares squares;
    UNROLL for (u32 i = 0; i < SQUARES; i++) squares.v[i] = 32 * i + lane < INPUTS / 32 ? from[32 * i + lane] : 0.0f;
    return squares;
}

// 1 / rms of the row. All 32 lanes come.
INLINE f32 row_scale(Squares squares) {
    f32 sum = 0;
    UNROLL for (u32 i = 0; i < SQUARES; i++) sum += squares.v[i];
    return 1.0f / SQRT(SIMD_SUM(sum) / (f32)INPUTS);
}
#endif
