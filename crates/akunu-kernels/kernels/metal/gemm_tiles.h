// Product of many rows with simdgroup matrices of 8 × 8. A threadgroup computes a tile of ROWS rows × COLUMNS columns,
// a SIMD group 8 ROW_TILES × 8 COLUMN_TILES of it. A column is an output; with gate and up, the second half of the
// columns are the up outputs. Per iteration DEEP inputs of rows and columns are staged in threadgroup memory while the
// next weights are loaded to registers.
//
// Both sides are staged as f32, because a code times its scale has more bits than f16 holds. WEIGHT_TILES says where
// weights stay in their own type: 1 f16, 2 bf16. Sums are f32, in no particular order.

#define DEEP 32
#define WORKERS (32 * DOWN * ACROSS)
#define ROWS (8 * ROW_TILES * DOWN)
#define COLUMNS (8 * COLUMN_TILES * ACROSS)
#define OUTS (COLUMNS / STREAMS)
// The SIMD group's first row and column in the tile.
#define TOP (SIMD / ACROSS * (8 * ROW_TILES))
#define LEFT (SIMD % ACROSS * (8 * COLUMN_TILES))

#if WEIGHT_TILES == 1
typedef HalfTile WeightTile;
typedef u16 Number;
#elif WEIGHT_TILES == 2
typedef Bf16Tile WeightTile;
typedef u16 Number;
#else
typedef Tile WeightTile;
typedef f32 Number;
#endif

// Inputs are stored row by row, weights input by input (transposed). 16 bytes of padding avoid bank conflicts.
#define INPUT_STRIDE (DEEP + 4)
#define WEIGHT_STRIDE (COLUMNS + 16 / (WEIGHT_TILES ? 2 : 4))
#define AT_WEIGHTS (ROWS * INPUT_STRIDE * 4)
#define SUM_STRIDE (COLUMNS + 4)

// A thread's weights of one iteration: PIECES times PIECE consecutive inputs of a column, a block or half of one.
#ifdef BITS
#define PIECE 16
#else
#define PIECE BLOCK
#endif
#define PIECES (COLUMNS * DEEP / PIECE / WORKERS)

struct Piece {
    u32 column, first;
};

INLINE Piece piece_of(u32 i, Place at) {
    const u32 p = i * WORKERS + at.in_group;
    const Piece piece = {p % COLUMNS, p / COLUMNS * PIECE};
    return piece;
}

INLINE void load_weights(Bindings in, Place at, u32 first_out, u32 from, THREAD_PTR Raw* raw) {
    UNROLL for (u32 i = 0; i < PIECES; i++) {
        const Piece piece = piece_of(i, at);
        u32 o = first_out + piece.column % OUTS;
        if (o >= OUTPUTS || from + piece.first >= INPUTS) continue;
        const Matrix matrix = matrix_of(in, piece.column / OUTS, &o);
        raw[i] = load_raw(matrix, o, (from + piece.first) / BLOCK);
    }
}

#ifdef BITS
// Dequantises number `i` of a half block.
INLINE Number number_of(const THREAD_PTR Block* block, u32 half_of, u32 i) {
    const u32 word = half_of == 0 ? block->quants[i / 4] : block->quants[4 + i / 4];
    const f32 quant = (f32)((i32)(i8)(word >> (i % 4 * 8) & 255) - (i32)ZERO);
    const f32 scale = HALVES == 2 && half_of == 1 ? block->scale[HALVES - 1] : block->scale[0];
    const f32 offset = HALVES == 2 && half_of == 1 ? block->offset[HALVES - 1] : block->offset[0];
    return OFFSETS ? fused(scale, quant, offset) : scale * quant;
}
#endif

INLINE void put_weights(Place at, u32 first_out, u32 from, const THREAD_PTR Raw* raw, THREADGROUP Number* weights) {
    UNROLL for (u32 i = 0; i < PIECES; i++) {
        const Piece piece = piece_of(i, at);
        const bool there = first_out + piece.column % OUTS < OUTPUTS && from + piece.first < INPUTS;
        THREADGROUP Number* to = weights + piece.first * WEIGHT_STRIDE + piece.column;
#ifdef BITS
        const Block block = decode(raw[i]);
        UNROLL for (u32 k = 0; k < PIECE; k++) to[k * WEIGHT_STRIDE] = there ? number_of(&block, piece.first / PIECE, k) : 0;
#elif WEIGHT_TILES
        UNROLL for (u32 k = 0; k < PIECE; k++) to[k * WEIGHT_STRIDE] = there ? (u16)(raw[i].words[k / 2] >> (k % 2 * 16)) : 0;
#else
        const Block block = decode(raw[i]);
        UNROLL for (u32 k = 0; k < PIECE; k++) to[k * WEIGHT_STRIDE] = there ? weight_at(&block, k) : 0;
#endif
    }
}

// The number of consecutive inputs that a thread loads at once.
#ifdef BITS
#define INPUT_PIECE 8
#else
#define INPUT_PIECE (BLOCK == 1 ? 1 : 4)
#endif

INLINE void put_inputs(Bindings in, Place at, u32 first_row, u32 live, u32 from, THREADGROUP f32* inputs) {
    UNROLL for (u32 i = at.in_group; i < ROWS * (DEEP / INPUT_PIECE); i += WORKERS) {
        const u32 line = i / (DEEP / INPUT_PIECE), first = i % (DEEP / INPUT_PIECE) * INPUT_PIECE, row = first_row + line, k = from + first;
        THREADGROUP f32* to = inputs + line * INPUT_STRIDE + first;
        f32 numbers[INPUT_PIECE] = {};
        if (row < live && k < INPUTS) {
            const DEVICE u8* x = in.x + row * INPUT_ROW_BYTES;
#ifdef BITS
            const u32x2 quants = read8(x + k);
            const f32 scale = ((const DEVICE f32*)(x + INPUTS))[k / 32];
            UNROLL for (u32 j = 0; j < 4; j++) {
                numbers[j] = scale * (f32)(i8)(quants.x >> (j * 8) & 255);
                numbers[4 + j] = scale * (f32)(i8)(quants.y >> (j * 8) & 255);
            }
#elif BLOCK == 1
            numbers[0] = ((const DEVICE f32*)x)[k];
#else
            const u32x4 four = read16(x + (u64)k * 4);
            numbers[0] = as_f32(four.x);
            numbers[1] = as_f32(four.y);
            numbers[2] = as_f32(four.z);
            numbers[3] = as_f32(four.w);
#endif
        }
        UNROLL for (u32 j = 0; j < INPUT_PIECE; j++) to[j] = numbers[j];
    }
}

struct Sums {
    Tile v[ROW_TILES][COLUMN_TILES];
};

INLINE void multiply_stage(THREAD_PTR Sums* sums, Place at, const THREADGROUP f32* inputs, const THREADGROUP Number* weights) {
    UNROLL for (u32 k = 0; k < DEEP; k += 8) {
        Tile rows[ROW_TILES];
        UNROLL for (u32 m = 0; m < ROW_TILES; m++) load_tile(&rows[m], inputs + (TOP + 8 * m) * INPUT_STRIDE + k, INPUT_STRIDE);
        UNROLL for (u32 n = 0; n < COLUMN_TILES; n++) {
            WeightTile columns;
            load_tile(&columns, weights + k * WEIGHT_STRIDE + LEFT + 8 * n, WEIGHT_STRIDE);
            UNROLL for (u32 m = 0; m < ROW_TILES; m++) multiply_tiles(&sums->v[m][n], &rows[m], &columns);
        }
    }
}

// Accumulators go through threadgroup memory; then a SIMD group stores 32 consecutive outputs of a row at a time.
INLINE void store_sums(Bindings in, Params params, Place at, THREAD_PTR Sums* sums, u32 first_row, u32 first_out, u32 live) {
    TG_ARRAY(f32, together, 0);
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        UNROLL for (u32 n = 0; n < COLUMN_TILES; n++) {
            store_tile(&sums->v[m][n], together + (TOP + 8 * m) * SUM_STRIDE + LEFT + 8 * n, SUM_STRIDE);
        }
    }
    BARRIER();
    for (u32 i = SIMD; i < ROWS * (OUTS / 32); i += SIMDS) {
        const u32 line = i / (OUTS / 32), beside = i % (OUTS / 32) * 32 + LANE, row = first_row + line, o = first_out + beside;
        if (row >= live || o - LANE >= OUTPUTS) continue;
        const THREADGROUP f32* sum = together + line * SUM_STRIDE + beside;
        Addend added = {};
        if (o < OUTPUTS) added = addend(in, row, o);
        f32 scale = 1;
#if SQUARES
        scale = row_scale(load_squares(in, row, LANE));
#endif
        const f32 value = finished(params, sum[0] * scale, sum[STREAMS == 2 ? OUTS : 0] * scale, added);
        if (IN_BLOCKS) store_block(in, params, row, o, value, norm_weight(in, o), LANE);
        else if (o < OUTPUTS) ((DEVICE f32*)in.out)[(u64)row * OUT_STRIDE + o] = value;
    }
}

// Threadgroups with the same outputs are adjacent in launch order, so weights are read from device memory once.
BODY(gemm_tiles) {
    const Span span = rows_of(&in, pass, at.group_x, ROWS, LANE);
    const u32 first_row = span.first, live = span.end, first_out = at.group_y * OUTS;
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (first_row >= live) return;
    // A SIMD group may have no live row.
    const bool holds = first_row + TOP < live;
    Sums sums;
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        UNROLL for (u32 n = 0; n < COLUMN_TILES; n++) sums.v[m][n] = filled_tile(0);
    }
    TG_ARRAY(f32, inputs, 0);
    TG_ARRAY(Number, weights, AT_WEIGHTS);
    Raw raw[PIECES] = {};
    load_weights(in, at, first_out, 0, raw);
    for (u32 from = 0; from < INPUTS; from += DEEP) {
        put_inputs(in, at, first_row, live, from, inputs);
        put_weights(at, first_out, from, raw, weights);
        BARRIER();
        if (from + DEEP < INPUTS) load_weights(in, at, first_out, from + DEEP, raw);
        if (holds) multiply_stage(&sums, at, inputs, weights);
        BARRIER();
    }
    store_sums(in, params, at, &sums, first_row, first_out, live);
}
