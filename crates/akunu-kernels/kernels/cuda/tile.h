// The tile of a tensor-core product and its epilogue. A threadgroup computes ROWS rows × COLUMNS columns, a SIMD group
// 16 ROW_TILES × 8 COLUMN_TILES of it. A column is an output; with gate and up, tiles of 8 columns alternate between
// the two.

#define WORKERS (32 * DOWN * ACROSS)
#define ROWS (16 * ROW_TILES * DOWN)
#define COLUMNS (8 * COLUMN_TILES * ACROSS)
#define OUTS (COLUMNS / STREAMS)
// The SIMD group's first row and column in the tile.
#define BELOW (SIMD / ACROSS)
#define TOP (BELOW * (16 * ROW_TILES))
#define LEFT (SIMD % ACROSS * (8 * COLUMN_TILES))

struct Sums {
    Floats v[ROW_TILES][COLUMN_TILES];
};

struct Column {
    Matrix matrix;
    u32 row;
};

// The matrix and row of a column; past the last output, the last one again.
INLINE Column column_of(Bindings in, u32 first_out, u32 column) {
    const u32 o = first_out + (STREAMS == 2 ? column / 16 * 8 + column % 8 : column);
    Column found;
    found.row = o < OUTPUTS ? o : OUTPUTS - 1;
    found.matrix = matrix_of(in, STREAMS == 2 ? column / 8 % 2 : 0, &found.row);
    return found;
}

// Accumulators go through threadgroup memory, 16 rows of each SIMD group at a time, so that a SIMD group writes 32
// consecutive outputs of a row. The padding in STRIDE avoids bank conflicts.
#define STRIDE (COLUMNS + 8)
#define PARTS (16 * DOWN * (OUTS / 32))
// Parts whose bias and residual a SIMD group loads at once.
#define BATCH 4

INLINE void put_sums(Place at, const THREAD_PTR Sums* sums, u32 m, THREADGROUP f32* together) {
    UNROLL for (u32 n = 0; n < COLUMN_TILES; n++) {
        UNROLL for (u32 e = 0; e < 4; e++) {
            const u32 line = BELOW * 16 + e / 2 * 8 + LANE / 4;
            const u32 column = (SIMD % ACROSS * COLUMN_TILES + n) * 8 + LANE % 4 * 2 + e % 2;
            together[line * STRIDE + column] = sums->v[m][n].v[e];
        }
    }
}

INLINE void store_parts(Bindings in, Params params, Place at, u32 first_row, u32 first_out, u32 live, const THREADGROUP f32* together) {
    for (u32 i = SIMD; i < PARTS; i += BATCH * SIMDS) {
        Addend added[BATCH] = {};
        UNROLL for (u32 k = 0; k < BATCH; k++) {
            const u32 part = i + k * SIMDS, line = part / (OUTS / 32), o = first_out + part % (OUTS / 32) * 32 + LANE;
            const u32 row = first_row + line / 16 * (16 * ROW_TILES) + line % 16;
            if (part < PARTS && row < live && o < OUTPUTS) added[k] = addend(in, row, o);
        }
        UNROLL for (u32 k = 0; k < BATCH; k++) {
            const u32 part = i + k * SIMDS, line = part / (OUTS / 32), beside = part % (OUTS / 32) * 32 + LANE;
            const u32 row = first_row + line / 16 * (16 * ROW_TILES) + line % 16, o = first_out + beside;
            if (part >= PARTS || row >= live || o - LANE >= OUTPUTS) continue;
            const THREADGROUP f32* sum = together + line * STRIDE + (STREAMS == 2 ? beside / 8 * 16 + beside % 8 : beside);
            const f32 value = finished(params, sum[0], sum[STREAMS == 2 ? 8 : 0], added[k]);
            if (OUT_F32 && o < OUTPUTS) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
            if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(OUTPUTS), OUTPUTS, o / 32, value, LANE);
        }
    }
}

INLINE void store_sums(Bindings in, Params params, Place at, const THREAD_PTR Sums* sums, u32 first_row, u32 first_out, u32 live) {
    TG_ARRAY(f32, together, 0);
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        put_sums(at, sums, m, together);
        BARRIER();
        store_parts(in, params, at, first_row + m * 16, first_out, live, together);
        BARRIER();
    }
}
