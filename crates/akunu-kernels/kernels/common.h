// What every kernel body takes (thread position, bindings) and helpers that most of them use.

// The position of a thread in the grid. It is an argument, so that a body can also be called from another kernel.
struct Place {
    u32 group_x, group_y, group_z;
    u32 in_group;
    THREADGROUP u8* shared;
};

#define LANE (at.in_group % 32)
#define SIMD (at.in_group / 32)
#define SIMDS (THREADS / 32)

// One pointer for each name in Kernel::bindings; those that a kernel does not bind stay null.
struct Bindings {
    DEVICE u8 *embedding, *embedding_scales, *embedding_offsets, *weight, *weight_scales, *weight_offsets;
    DEVICE u8 *q_weight, *q_scales, *q_offsets, *k_weight, *k_scales, *k_offsets, *v_weight, *v_scales, *v_offsets;
    DEVICE u8 *gate_weight, *gate_scales, *gate_offsets, *up_weight, *up_scales, *up_offsets;
    DEVICE u8 *x, *x_f16, *x_scales, *out, *out_q8, *out_f16, *out_scales, *bias, *q_bias, *k_bias, *v_bias, *residual, *gate, *up, *q_norm, *k_norm;
    DEVICE u8 *squares, *norm_weight, *normed, *normed_q8, *out_squares;
    DEVICE u8 *rows, *moves, *frequencies, *angles, *qkv, *q, *k_cache, *v_cache, *blocks, *logits, *logit_rows, *tokens, *sampling;
    DEVICE u8 *positions, *types, *segments, *position_bias, *query_factors;
    DEVICE u8 *file, *planes, *order;
    DEVICE u8 *x_q8, *picks, *shares, *left, *starts, *places, *y, *shared, *gate_bias, *up_bias, *sinks, *cache, *norm;
    DEVICE u8 *mixed, *decay, *skip, *dt_bias, *state;
    // Not bound: the expert whose rows a threadgroup multiplies.
    u32 expert;
};

#define BODY(name) \
    INLINE void name(Bindings in, DEVICE Pass* pass, DEVICE u8* scratch, Params params, Place at)

// The number of live rows (`logits`: of rows that request logits); 0 once a chain of steps has stopped.
INLINE u32 live_rows(const DEVICE Pass* pass, bool logits) {
    const u32 rows = logits ? pass->logit_rows : pass->rows;
    return pass->stopped ? 0 : rows;
}

// The sum over the threadgroup, returned to all threads. `space`: 32 f32 of threadgroup memory that are not in use.
INLINE f32 group_sum(f32 value, THREADGROUP f32* space, Place at) {
    value = SIMD_SUM(value);
    if (LANE == 0) space[SIMD] = value;
    BARRIER();
    return SIMD_SUM(LANE < SIMDS ? space[LANE] : 0.0f);
}

// Maps f32 to u32 with the same order. NaN maps to the maximum; −0 and +0 map to the same key.
INLINE u32 ordered(f32 value) {
    const u32 bits = as_u32(value + 0.0f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The inverse of `ordered`.
INLINE f32 unordered(u32 key) { return as_f32(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// The sum of the values of the lanes before this one.
INLINE u32 sum_before(u32 value, u32 lane) {
    u32 before = 0;
    UNROLL for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = SIMD_XOR(value, step);
        if (lane & step) before += other;
        value += other;
    }
    return before;
}

struct Rounded {
    i32 quant;
    f32 scale;
};

// Quantises 32 values, one per lane, to int8 in the way of akunu_plan::q8.
INLINE Rounded round_q8(f32 value) {
    const u32 bits = SIMD_MAX_U32(as_u32(value) & 0x7fffffffu);
    const bool finite = bits < 0x7f800000u;
    const f32 amax = as_f32(bits), inverse = 127.0f / amax;
    const bool codes = finite && as_u32(inverse) < 0x7f800000u;
    const Rounded rounded = {
        codes ? round_even(value * inverse) : 0,
        codes ? amax / 127.0f : finite ? 0.0f : as_f32(0x7fc00000u),
    };
    return rounded;
}

// Stores block `block` of a q8 row of `cols` elements from 32 values, one per lane.
INLINE void store_q8(DEVICE u8* row, u32 cols, u32 block, f32 value, u32 lane) {
    const Rounded rounded = round_q8(value);
    const i32 sum = SIMD_SUM_I32(rounded.quant);
    row[block * 32 + lane] = (u8)rounded.quant;
    if (lane == 0) {
        ((DEVICE f32*)(row + cols))[block] = rounded.scale;
        ((DEVICE i32*)(row + cols))[cols / 32 + block] = sum;
    }
}

// Scratch memory begins with counters that are zero between launches.
#define COUNTER_BYTES (64 << 10)
#define SCRATCH_BYTES (16 << 20)

// Whether this threadgroup is the last of `groups` to arrive; the result is uniform over its threads. The last one
// sees all that the others published before. Uses the first 4 bytes of threadgroup memory, which must not be in use
// otherwise.
//
// On CUDA the barrier makes the group's writes visible to thread 0 and fences are cumulative, so FENCE_ONE in thread 0
// suffices. Metal needs a fence in each thread (FENCE_EACH).
INLINE bool last_to_finish(DEVICE u8* scratch, u32 counter, u32 groups, Place at) {
    TG_ARRAY(u32, before, 0);
    FENCE_EACH();
    BARRIER();
    if (at.in_group == 0) {
        DEVICE u32* count = (DEVICE u32*)scratch + counter;
        FENCE_ONE();
        *before = ATOMIC_ADD(count, 1u);
        FENCE_ONE();
        if (*before == groups - 1) *count = 0;
    }
    BARRIER();
    FENCE_EACH();
    return *before == groups - 1;
}

// The place of an element of a row in the order of lanes, as akunu_plan::halves defines it.
INLINE u32 lane_place(u32 element) {
    return element / 128 * 128 + element % 32 / 4 * 16 + element % 2 * 8 + element % 128 / 32 * 2 + element % 4 / 2;
}

#define Q8_ROW_BYTES(cols) ((u64)(cols) / 4 * 5)
