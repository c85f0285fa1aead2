// Many rows of f32 with weights of f16 or bf16 on tensor cores. These multiply tf32, which is f32 less its last 13 bits: a weight is one
// as it stands, and an activation is the sum of two. DEEP numbers of each row and column are multiplied while the next ones come.
// Products may be in any order, so of 8 neighbours lane t of four has numbers 2t and 2t + 1 of both sides.

#define DEEP 16
// Bytes of a row's and of a column's numbers in threadgroup memory, kept apart so that what lanes read together lies in other banks.
#define INPUT_LINE (DEEP * 4 + 32)
#define WEIGHT_LINE (DEEP * 2 + 16)
#define AT_WEIGHTS (ROWS * INPUT_LINE)
#define TURN_BYTES (AT_WEIGHTS + COLUMNS * WEIGHT_LINE)

INLINE void copy_turn(Bindings in, Place at, u32 first_row, u32 first_out, u32 live, u32 from, THREADGROUP u8* turn) {
    UNROLL for (u32 i = at.in_group; i < ROWS * (DEEP / 4); i += WORKERS) {
        const u32 line = i / (DEEP / 4), chunk = i % (DEEP / 4), first = from + chunk * 4;
        const u32 row = first_row + line < live ? first_row + line : live - 1;
        const bool there = first < INPUTS;
        copy16(turn + line * INPUT_LINE + chunk * 16, in.x + ((u64)row * INPUTS + (there ? first : 0)) * 4, there);
    }
    UNROLL for (u32 i = at.in_group; i < COLUMNS * (DEEP / 8); i += WORKERS) {
        const u32 line = i / (DEEP / 8), chunk = i % (DEEP / 8), first = from + chunk * 8;
        const bool there = first < INPUTS;
        const Column of = column_of(in, first_out, line);
        const DEVICE u8* source = of.matrix.weight + ((u64)of.row * INPUTS + (there ? first : 0)) * 2;
        copy16(turn + AT_WEIGHTS + line * WEIGHT_LINE + chunk * 16, source, there);
    }
}

// Number i of two in a word, as f32 whose last 13 bits are zero.
INLINE u32 weight_of(u32 word, u32 i) {
#if WEIGHT_TYPE == 1
    return as_u32(f16_to_f32((u16)(word >> (i * 16))));
#else
    return i == 0 ? word << 16 : word & 0xffff0000u;
#endif
}

// Of rows g and g + 8 of each tile two numbers: what tf32 holds of them, and what it holds of the rest.
struct Rows {
    Quad high[ROW_TILES], low[ROW_TILES];
};

INLINE Rows load_rows(Place at, const THREADGROUP u8* turn, u32 step) {
    Rows rows;
    UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
        UNROLL for (u32 w = 0; w < 4; w++) {
            const u32 row = TOP + m * 16 + w % 2 * 8 + LANE / 4;
            const f32 value = ((const THREADGROUP f32*)(turn + row * INPUT_LINE))[step * 8 + LANE % 4 * 2 + w / 2];
            rows.high[m].v[w] = as_u32(value) & 0xffffe000u;
            rows.low[m].v[w] = as_u32(value - as_f32(rows.high[m].v[w])) & 0xffffe000u;
        }
    }
    return rows;
}

INLINE void multiply_turn(THREAD_PTR Sums* sums, Place at, const THREADGROUP u8* turn) {
    UNROLL for (u32 step = 0; step < DEEP / 8; step++) {
        const Rows rows = load_rows(at, turn, step);
        UNROLL for (u32 n = 0; n < COLUMN_TILES; n++) {
            const u32 column = LEFT + n * 8 + LANE / 4;
            const u32 word = *(const THREADGROUP u32*)(turn + AT_WEIGHTS + column * WEIGHT_LINE + step * 16 + LANE % 4 * 4);
            const u32 b0 = weight_of(word, 0), b1 = weight_of(word, 1);
            UNROLL for (u32 m = 0; m < ROW_TILES; m++) {
                sums->v[m][n] = multiply_tf32(rows.low[m], b0, b1, sums->v[m][n]);
                sums->v[m][n] = multiply_tf32(rows.high[m], b0, b1, sums->v[m][n]);
            }
        }
    }
}

// Groups of the same outputs are neighbours, so that weights come from far memory once.
BODY(gemm_tf32) {
    const u32 first_row = at.group_x * ROWS, first_out = at.group_y * OUTS;
    const u32 live = live_rows(pass, LOGITS);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (first_row >= live) return;
    // A SIMD group may have no row.
    const bool holds = first_row + TOP < live;
    Sums sums = {};
    THREADGROUP u8* turn = at.shared;
    THREADGROUP u8* other = at.shared + TURN_BYTES;
    copy_turn(in, at, first_row, first_out, live, 0, turn);
    COPIES_DONE();
    BARRIER();
    for (u32 from = 0; from < INPUTS; from += DEEP) {
        if (from + DEEP < INPUTS) copy_turn(in, at, first_row, first_out, live, from + DEEP, other);
        if (holds) multiply_turn(&sums, at, turn);
        COPIES_DONE();
        BARRIER();
        THREADGROUP u8* const done = turn;
        turn = other;
        other = done;
    }
    store_sums(in, params, at, &sums, first_row, first_out, live);
}
