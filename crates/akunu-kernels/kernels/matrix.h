// What the matrix kernels share: which weights an output has, and what becomes of its sum.
// KIND 0 is a product of its own, 1 Q, K and V side by side, 2 gate and up.

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
    const f32 cap = PARAM_F32(3);
    if (cap != 0) sum = cap * TANH(sum / cap);
#endif
    return sum;
#endif
}
