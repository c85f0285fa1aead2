// The sum of the products of a row with the matrices of its experts, each times its share: a SIMD group computes OUTS
// consecutive outputs of a row. Its lanes take the blocks of all experts, one expert after the other, so that they have
// work even if the rows of a matrix are short.

// Blocks of one output, of all experts of a row.
#define ALL_BLOCKS (CHOSEN * BLOCKS)

// Block `block` of those of output `o`.
INLINE Raw load_block(Bindings in, Matrix m, u32 row, u32 o, u32 block) {
    const u32 expert = picked_expert(in, row * CHOSEN + block / BLOCKS);
    return load_raw(m, expert * OUTPUTS + o, block % BLOCKS);
}

// What is added to the sum: biases, the expert that all rows share, the residual.
INLINE f32 beside_sum(Bindings in, const DEVICE f32* shares, u32 row, u32 o) {
    f32 added = 0;
    if (BIAS) {
        for (u32 k = 0; k < CHOSEN; k++) {
            added += shares[k] * ((const DEVICE f32*)in.bias)[picked_expert(in, row * CHOSEN + k) * OUTPUTS + o];
        }
    }
    if (SHARED) {
        f32 gate = 1;
        if (GATED) gate = 1.0f / (1.0f + EXP(-((const DEVICE f32*)in.gate)[row]));
        added += gate * ((const DEVICE f32*)in.shared)[(u64)row * OUTPUTS + o];
    }
    if (RESIDUAL) added += ((const DEVICE f32*)in.residual)[(u64)row * OUTPUTS + o];
    return added;
}

BODY(gemv_sum) {
    const u32 first = (at.group_x * SIMDS + SIMD) * OUTS, row = at.group_y;
    if (row >= live_rows(pass, false)) {
        // Still wait: the next kernel relies on everything before this one being complete.
        WAIT_FOR_INPUT();
        return;
    }
    const Matrix m = {in.weight, in.weight_scales, in.weight_offsets, MATRIX_OUTPUTS * BLOCKS};
    const DEVICE f32* shares = (const DEVICE f32*)in.shares + (u64)row * CHOSEN;
    // Picks and shares were written before the previous kernel began, so weights are loaded before the wait.
    Raw raw[DEPTH][OUTS];
    u32 outs[OUTS];
    UNROLL for (u32 k = 0; k < OUTS; k++) outs[k] = first + k < OUTPUTS ? first + k : OUTPUTS - 1;
    UNROLL for (u32 d = 0; d < DEPTH; d++) {
        if (32 * d + LANE < ALL_BLOCKS) {
            UNROLL for (u32 k = 0; k < OUTS; k++) raw[d][k] = load_block(in, m, row, outs[k], 32 * d + LANE);
        }
    }
    const bool holds = LANE < OUTS && first + LANE < OUTPUTS;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const f32 added = holds ? beside_sum(in, shares, row, first + LANE) : 0.0f;
    f32 sums[OUTS];
    UNROLL for (u32 k = 0; k < OUTS; k++) sums[k] = 0;
    for (u32 from = 0; from < ALL_BLOCKS; from += 32 * DEPTH) {
        UNROLL for (u32 d = 0; d < DEPTH; d++) {
            const u32 b = from + 32 * d + LANE, next = b + 32 * DEPTH;
            if (b >= ALL_BLOCKS) break;
            Block blocks[OUTS];
            UNROLL for (u32 k = 0; k < OUTS; k++) {
                blocks[k] = decode(raw[d][k]);
                if (next < ALL_BLOCKS) raw[d][k] = load_block(in, m, row, outs[k], next);
            }
            const u32 nth = b / BLOCKS;
            const Input input = load_input(in.x, row * CHOSEN + nth, b % BLOCKS);
            UNROLL for (u32 k = 0; k < OUTS; k++) sums[k] += shares[nth] * multiply(blocks[k], input, 0.0f);
        }
    }
    f32 sum = 0;
    UNROLL for (u32 k = 0; k < OUTS; k++) {
        const f32 all = SIMD_SUM(sums[k]);
        if (LANE == k) sum = all;
    }
    if (holds) ((DEVICE f32*)in.out)[(u64)row * OUTPUTS + first + LANE] = sum + added;
}
