// Product of one or a few rows: a SIMD group computes OUTS consecutive outputs for TILE rows; per iteration its lanes
// take 32 consecutive blocks. With INPUT_PIECES there is one row, which the threadgroup first stages in threadgroup
// memory.

// The staged input follows the sums that SIMD groups exchange.
#define AT_INPUT (IN_BLOCKS ? TILE * STREAMS * 32 * 4 : 0)

BODY(gemv) {
    const u32 first = (at.group_x * SIMDS + SIMD) * OUTS;
    const Span span = rows_of(&in, pass, at.group_y, TILE, LANE);
    const u32 top = span.first, live = span.end;
    if (top >= live) {
        // Still wait: the next kernel relies on everything before this one being complete.
        WAIT_FOR_INPUT();
        return;
    }
    Matrix matrices[OUTS * STREAMS];
    u32 rows[OUTS * STREAMS];
    UNROLL for (u32 k = 0; k < OUTS * STREAMS; k++) {
        // Past the last output, use the last one again, so that lanes do not diverge.
        const u32 o = first + k / STREAMS;
        rows[k] = o < OUTPUTS ? o : OUTPUTS - 1;
        matrices[k] = matrix_of(in, k % STREAMS, &rows[k]);
    }
    // Weights do not depend on the previous kernel, so their loads are issued before the wait: DEPTH iterations, which
    // is all of a short row.
    Raw raw[DEPTH][OUTS * STREAMS];
    UNROLL for (u32 d = 0; d < DEPTH; d++) {
        if (32 * d + LANE < BLOCKS) {
            UNROLL for (u32 k = 0; k < OUTS * STREAMS; k++) raw[d][k] = load_raw(matrices[k], rows[k], 32 * d + LANE);
        }
    }
    // With IN_BLOCKS a threadgroup has one block of 32 outputs per row, and SIMD group r stores that of row r (there
    // are at least as many SIMD groups as rows). Otherwise lane r · OUTS + k stores output k of row r.
    const u32 r = IN_BLOCKS ? SIMD : LANE / OUTS, row = top + r, o = IN_BLOCKS ? at.group_x * 32 + LANE : first + LANE % OUTS;
    const bool holds = r < TILE && row < live && o < OUTPUTS;
    const f32 weight = holds ? norm_weight(in, o) : 0.0f;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    Addend added = {};
    if (holds) added = addend(in, row, o);
#if SENDS
    const Sending to = sending(scratch, pass, holds ? o : 0);
#endif
#if SQUARES
    Squares squares = {};
    if (!IN_BLOCKS || holds) squares = load_squares(in, IN_BLOCKS ? row : top, LANE);
#endif
#if INPUT_PIECES
    THREADGROUP u8* const x = at.shared + AT_INPUT;
    stage_input(in.x + input_row(top) * INPUT_ROW_BYTES, x, at);
#else
    const DEVICE u8* const x = in.x + input_row(top) * INPUT_ROW_BYTES;
#endif
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
                const Input input = load_input(x, i, b);
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
    f32 scale = 1;
#if SQUARES
    scale = row_scale(squares);
    if (!IN_BLOCKS) {
        UNROLL for (u32 i = 1; i < TILE; i++) {
            const f32 other = row_scale(load_squares(in, top + i < live ? top + i : top, LANE));
            scale = i == r ? other : scale;
        }
    }
#endif
    if (IN_BLOCKS) {
        TG_ARRAY(f32, together, 0);
        const u32 place = (LANE / OUTS * STREAMS) * 32 + SIMD * OUTS + LANE % OUTS;
        if (LANE < TILE * OUTS) {
            together[place] = mine;
            if (STREAMS == 2) together[place + 32] = second;
        }
        BARRIER();
        if (!holds) return;
        mine = together[r * STREAMS * 32 + LANE];
        second = together[(r * STREAMS + STREAMS - 1) * 32 + LANE];
    }
    const f32 value = holds ? finished(params, mine * scale, second * scale, added) : 0.0f;
    if (IN_BLOCKS) store_block(in, params, row, o, value, weight, LANE);
    else if (holds) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
#if SENDS
    if (holds) send_number(to, value, scratch);
#endif
}
