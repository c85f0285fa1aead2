// One row: weights come through threadgroup memory by bulk copies. Each SIMD group has SLOTS places there of its own, which fill before
// the input is there and while the kernel before this one still runs; as soon as it has read one, the next piece is on its way to it.
//
// A group has UNIT neighbouring outputs, then those GROUPS · UNIT further on. PARTS SIMD groups have a part of the inputs each, which stay in
// registers; sums meet in threadgroup memory. A piece is LINES neighbouring outputs' part of one stream.

#define SETS (SIMDS / PARTS)
#define UNITS ((OUTPUTS + UNIT - 1) / UNIT)
// Of a SIMD group in a unit: outputs, and pieces.
#define OWN (UNIT / SETS)
#define PIECES (OWN / LINES * STREAMS)
#define TURNS ((PART_BLOCKS + 31) / 32)

// Bytes of a piece in a plane of its place, which begin up to 15 bytes after the place does.
#define PLANE_SLOT(i) ((LINES * PART_BLOCKS * plane_bytes(i) / 8 + 15) / 16 * 16 + (ALIGNED ? 0 : 16))

#define AT_SUMS (SIMDS * SLOTS * 8)
#define UNIT_SUMS (UNIT * STREAMS * PARTS)
#define AT_SLOTS ((AT_SUMS + 2 * UNIT_SUMS * 4 + 127) / 128 * 128)

struct Piece {
    u32 output, stream;
};

// The SIMD group's piece `i`.
INLINE Piece piece_of(u32 i, Place at) {
    const u32 within = i % PIECES, first = (at.group_x + i / PIECES * GROUPS) * UNIT;
    const Piece piece = {first + SIMD / PARTS * OWN + within / STREAMS * LINES, within % STREAMS};
    return piece;
}

// Blocks of a line.
INLINE u32 part_blocks(Place at) {
    const u32 from = SIMD % PARTS * PART_BLOCKS;
    return from + PART_BLOCKS <= BLOCKS ? PART_BLOCKS : BLOCKS - from;
}

// Where a piece's planes are; blocks count from its first one.
INLINE Planes source_of(Bindings in, Piece piece, Place at) {
    u32 row = piece.output;
    Planes planes = planes_of(matrix_of(in, piece.stream, &row));
    const u64 first = (u64)row * BLOCKS + SIMD % PARTS * PART_BLOCKS;
    UNROLL for (u32 i = 0; i < PLANES; i++) planes.at[i] += first * plane_bytes(i) / 8;
    return planes;
}

INLINE u32 beside(const DEVICE u8* p) { return ALIGNED ? 0 : (u32)((u64)p % 16); }

// Sends piece `i` on its way. One lane.
INLINE void fetch(Bindings in, u32 i, THREADGROUP u8* slot, THREADGROUP u64* arrival, Place at) {
    const Planes planes = source_of(in, piece_of(i, at), at);
    const u32 blocks = LINES * part_blocks(at);
    u32 bytes[PLANES], all = 0;
    UNROLL for (u32 k = 0; k < PLANES; k++) {
        bytes[k] = (beside(planes.at[k]) + blocks * plane_bytes(k) / 8 + 15) / 16 * 16;
        all += bytes[k];
    }
    expect_bytes(arrival, all);
    UNROLL for (u32 k = 0; k < PLANES; k++) {
        bulk_copy(slot, planes.at[k] - beside(planes.at[k]), bytes[k], arrival);
        slot += PLANE_SLOT(k);
    }
}

// The piece as it lies in its place.
INLINE Planes arrived(Bindings in, Piece piece, THREADGROUP u8* slot, Place at) {
    Planes planes = source_of(in, piece, at);
    UNROLL for (u32 k = 0; k < PLANES; k++) {
        planes.at[k] = slot + beside(planes.at[k]);
        slot += PLANE_SLOT(k);
    }
    return planes;
}

struct Inputs {
    Input v[TURNS];
};

// An output of a unit a lane, of one SIMD group.
INLINE void store_unit(Bindings in, Params params, u32 first, const THREADGROUP f32* sums, f32 added, Place at) {
    const u32 o = first + LANE;
    f32 sum[2] = {0, 0};
    UNROLL for (u32 s = 0; s < STREAMS; s++) {
        UNROLL for (u32 p = 0; p < PARTS; p++) sum[s] += LANE < UNIT ? sums[(s * PARTS + p) * UNIT + LANE] : 0.0f;
    }
    const f32 value = finished(params, sum[0], sum[1], added);
    if (OUT_F32 && LANE < UNIT && o < OUTPUTS) ((DEVICE f32*)in.out)[o] = value;
    if (OUT_Q8 && first < OUTPUTS) store_q8(in.out_q8, OUTPUTS, first / 32, value, LANE);
}

BODY(gemv_stream) {
    if (live_rows(pass, LOGITS) == 0) {
        WAIT_FOR_INPUT();
        return;
    }
    const u32 units = (UNITS - at.group_x + GROUPS - 1) / GROUPS, all = units * PIECES;
    TG_ARRAY(u64, all_arrivals, 0);
    THREADGROUP u64* const arrivals = all_arrivals + SIMD * SLOTS;
    THREADGROUP u8* const slots = at.shared + AT_SLOTS + SIMD * (SLOTS * SLOT_BYTES);
    if (LANE == 0) {
        UNROLL for (u32 i = 0; i < SLOTS; i++) new_arrival(arrivals + i);
        ARRIVALS_READY();
        for (u32 i = 0; i < SLOTS && i < all && piece_of(i, at).output < OUTPUTS; i++) fetch(in, i, slots + i * SLOT_BYTES, arrivals + i, at);
    }
    SIMD_SYNC();
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();

    const u32 blocks = part_blocks(at);
    Inputs inputs;
    UNROLL for (u32 d = 0; d < TURNS; d++) {
        const u32 b = 32 * d + LANE;
        inputs.v[d] = load_input(in.x, 0, SIMD % PARTS * PART_BLOCKS + (b < blocks ? b : 0));
    }
    u32 slot = 0, turn = 0;
    for (u32 unit = 0; unit < units; unit++) {
        const u32 first = (at.group_x + unit * GROUPS) * UNIT;
        TG_ARRAY(f32, both, AT_SUMS);
        THREADGROUP f32* const sums = both + unit % 2 * UNIT_SUMS;
        // SIMD groups take turns to finish a unit.
        const bool mine = unit % SIMDS == SIMD;
        const f32 added = mine && LANE < UNIT && first + LANE < OUTPUTS ? addend(in, 0, first + LANE) : 0.0f;
        for (u32 within = 0; within < PIECES; within++) {
            const u32 i = unit * PIECES + within;
            const Piece piece = piece_of(i, at);
            if (piece.output >= OUTPUTS) break;
            await_arrival(arrivals + slot, turn);
            const Planes planes = arrived(in, piece, slots + slot * SLOT_BYTES, at);
            f32 sum[LINES];
            UNROLL for (u32 line = 0; line < LINES; line++) {
                sum[line] = 0;
                UNROLL for (u32 d = 0; d < TURNS; d++) {
                    const u32 b = 32 * d + LANE;
                    if (b < blocks) sum[line] = multiply(decode(load_block(planes, line * blocks + b)), inputs.v[d], sum[line]);
                }
            }
            SIMD_SYNC();
            if (LANE == 0 && i + SLOTS < all && piece_of(i + SLOTS, at).output < OUTPUTS)
                fetch(in, i + SLOTS, slots + slot * SLOT_BYTES, arrivals + slot, at);
            slot = slot + 1 < SLOTS ? slot + 1 : 0;
            turn ^= slot == 0;
            UNROLL for (u32 line = 0; line < LINES; line++) {
                const f32 whole = SIMD_SUM(sum[line]);
                if (LANE == 0) sums[(piece.stream * PARTS + SIMD % PARTS) * UNIT + piece.output - first + line] = whole;
            }
        }
        BARRIER();
        if (mine) store_unit(in, params, first, sums, added, at);
    }
}
