// One row to a few: a SIMD group has OUTS neighbouring outputs for TILE rows; its lanes take blocks in turns of 32 neighbours.

BODY(gemv) {
    const u32 first = (at.group_x * SIMDS + SIMD) * OUTS;
    const u32 top = at.group_y * TILE, live = live_rows(pass, LOGITS);
    if (top >= live) {
        // Whoever comes next may rely on all that was before.
        WAIT_FOR_INPUT();
        return;
    }
    Matrix matrices[OUTS * STREAMS];
    u32 rows[OUTS * STREAMS];
    UNROLL for (u32 k = 0; k < OUTS * STREAMS; k++) {
        // Beyond the last output, the last one again: every lane goes the same way.
        const u32 o = first + k / STREAMS;
        rows[k] = o < OUTPUTS ? o : OUTPUTS - 1;
        matrices[k] = matrix_of(in, k % STREAMS, &rows[k]);
    }
    // Weights depend on nothing, so they are on their way before the input is there: DEPTH turns of them, all that there are in a
    // short row.
    Raw raw[DEPTH][OUTS * STREAMS];
    UNROLL for (u32 d = 0; d < DEPTH; d++) {
        if (32 * d + LANE < BLOCKS) {
            UNROLL for (u32 k = 0; k < OUTS * STREAMS; k++) raw[d][k] = load_raw(matrices[k], rows[k], 32 * d + LANE);
        }
    }
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();

    // Lane r · OUTS + k finishes output k of row r.
    const u32 r = LANE / OUTS, row = top + r, o = first + LANE % OUTS;
    const bool holds = LANE < TILE * OUTS && row < live && o < OUTPUTS;
    const f32 added = holds ? addend(in, row, o) : 0.0f;
    f32 mine = 0, second = 0;

    f32 sums[TILE][OUTS * STREAMS];
    UNROLL for (u32 i = 0; i < TILE; i++) {
        UNROLL for (u32 k = 0; k < OUTS * STREAMS; k++) sums[i][k] = 0;
    }
    for (u32 from = 0; from < BLOCKS; from += 32 * DEPTH) {
        UNROLL for (u32 d = 0; d < DEPTH; d++) {
            const u32 b = from + 32 * d + LANE, next = b + 32 * DEPTH;
            if (b >= BLOCKS) break;
            Block blocks[OUTS * STREAMS];
            UNROLL for (u32 k = 0; k < OUTS * STREAMS; k++) {
                blocks[k] = decode(raw[d][k]);
                if (next < BLOCKS) raw[d][k] = load_raw(matrices[k], rows[k], next);
            }
            UNROLL for (u32 i = 0; i < TILE; i++) {
                if (i > 0 && top + i >= live) break;
                const Input input = load_input(in.x, top + i, b);
                UNROLL for (u32 k = 0; k < OUTS * STREAMS; k++) sums[i][k] = multiply(blocks[k], input, sums[i][k]);
            }
        }
    }

    UNROLL for (u32 i = 0; i < TILE; i++) {
        UNROLL for (u32 k = 0; k < OUTS; k++) {
            const f32 sum = SIMD_SUM(sums[i][k * STREAMS]);
            const f32 other = STREAMS == 2 ? SIMD_SUM(sums[i][k * STREAMS + STREAMS - 1]) : 0.0f;
            if (LANE == i * OUTS + k) {
                mine = sum;
                second = other;
            }
        }
    }
    const f32 value = holds ? finished(params, mine, second, added) : 0.0f;
#if KIND == 2
    if (holds && OUT_F32) ((DEVICE f32*)in.out)[(u64)row * OUTPUTS + o] = value;
    if (OUT_Q8) {
        // A group has whole blocks of 32 outputs: they meet in threadgroup memory, a block of a row a SIMD group.
        const u32 width = SIMDS * OUTS, across = (width + 31) / 32, start = at.group_x * width;
        TG_ARRAY(f32, together, 0);
        if (LANE < TILE * OUTS) together[r * width + SIMD * OUTS + LANE % OUTS] = value;
        BARRIER();
        for (u32 i = SIMD; i < TILE * across; i += SIMDS) {
            const u32 below = i / across, block = i % across;
            if (top + below >= live || start + block * 32 >= OUTPUTS) continue;
            const f32 one = together[below * width + block * 32 + LANE];
            store_q8(in.out_q8 + (top + below) * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, start / 32 + block, one, LANE);
        }
    }
#else
    if (holds) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
#endif
}
