// One row: weights come through threadgroup memory. Each SIMD group has SLOTS places there of its own, which fill before the input is
// there and while the kernel before this one still runs; as soon as it has read one, the next piece is on its way to it.
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

#define UNIT_SUMS (UNIT * STREAMS * PARTS)
#define AT_SLOTS ((2 * UNIT_SUMS * 4 + 127) / 128 * 128)

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

// Sends piece `i`, if there is one, on its way.
INLINE void fetch(Bindings in, u32 i, u32 all, THREADGROUP u8* slot, Place at) {
    const Piece piece = piece_of(i, at);
    if (i < all && piece.output < OUTPUTS) {
        const Planes planes = source_of(in, piece, at);
        const u32 blocks = LINES * part_blocks(at);
        UNROLL for (u32 k = 0; k < PLANES; k++) {
            const u32 bytes = beside(planes.at[k]) + blocks * plane_bytes(k) / 8;
            const DEVICE u8* from = planes.at[k] - beside(planes.at[k]);
            for (u32 c = LANE * 16; c < bytes; c += 32 * 16) copy16(slot + c, from + c, true);
            slot += PLANE_SLOT(k);
        }
    }
    COPY_GROUP();
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
    THREADGROUP u8* const slots = at.shared + AT_SLOTS + SIMD * (SLOTS * SLOT_BYTES);
    UNROLL for (u32 i = 0; i < SLOTS; i++) fetch(in, i, all, slots + i * SLOT_BYTES, at);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();

    const u32 blocks = part_blocks(at);
    Inputs inputs;
    UNROLL for (u32 d = 0; d < TURNS; d++) {
        const u32 b = 32 * d + LANE;
        inputs.v[d] = load_input(in.x, 0, SIMD % PARTS * PART_BLOCKS + (b < blocks ? b : 0));
    }
    THREADGROUP u8* slot = slots;
    for (u32 unit = 0; unit < units; unit++) {
        const u32 first = (at.group_x + unit * GROUPS) * UNIT;
        TG_ARRAY(f32, both, 0);
        THREADGROUP f32* const sums = both + unit % 2 * UNIT_SUMS;
        // SIMD groups take turns to finish a unit.
        const bool mine = unit % SIMDS == SIMD;
        const f32 added = mine && LANE < UNIT && first + LANE < OUTPUTS ? addend(in, 0, first + LANE) : 0.0f;
        for (u32 within = 0; within < PIECES; within++) {
            const u32 i = unit * PIECES + within;
            const Piece piece = piece_of(i, at);
            if (piece.output >= OUTPUTS) break;
            COPIES_DONE_BUT(SLOTS - 1);
            SIMD_SYNC();
            const Planes planes = arrived(in, piece, slot, at);
            f32 sum[LINES];
            UNROLL for (u32 line = 0; line < LINES; line++) {
                sum[line] = 0;
                UNROLL for (u32 d = 0; d < TURNS; d++) {
                    const u32 b = 32 * d + LANE;
                    if (b < blocks) sum[line] = multiply(decode(load_block(planes, line * blocks + b)), inputs.v[d], sum[line]);
                }
            }
            SIMD_SYNC();
            fetch(in, i + SLOTS, all, slot, at);
            slot = slot + SLOT_BYTES < slots + SLOTS * SLOT_BYTES ? slot + SLOT_BYTES : slots;
            UNROLL for (u32 line = 0; line < LINES; line++) {
                const f32 whole = SIMD_SUM(sum[line]);
                if (LANE == 0) sums[(piece.stream * PARTS + SIMD % PARTS) * UNIT + piece.output - first + line] = whole;
            }
        }
        BARRIER();
        if (mine) store_unit(in, params, first, sums, added, at);
    }
}
