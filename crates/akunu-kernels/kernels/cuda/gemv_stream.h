// Product of one q8 row whose weights stream through threadgroup memory. Each SIMD group has a ring of SLOTS slots
// there, filled by asynchronous copies that start before the input is available, while the previous kernel still runs.
// As soon as a slot has been read, the copy of the next piece into it is issued.
//
// Short loops are not unrolled: an instruction cache miss costs more than a branch.
//
// A threadgroup computes UNIT consecutive outputs, then the UNIT that lie GROUPS · UNIT further on, and so on. A SIMD
// group has OWN of them, and so LINES lines (rows of a weight matrix). A piece is CHUNK blocks of each line. The input
// is staged in threadgroup memory as well.

#define LINES (OWN * STREAMS)
#define ITERATIONS (CHUNK / 32)
#define CHUNKS ((BLOCKS + CHUNK - 1) / CHUNK)
#define UNITS ((OUTPUTS + UNIT - 1) / UNIT)

// For plane k: the bytes of a line's part of a piece, the 16-byte copies for all lines' parts, and the number of
// iterations in which 32 lanes issue them.
#define PART_BYTES(k) (CHUNK * plane_bytes(k) / 8)
#define PARTS_16(k) (LINES * PART_BYTES(k) / 16)
#define COPY_ITERATIONS(k) ((PARTS_16(k) + 31) / 32)

#define UNIT_SUMS (UNIT * STREAMS)
#define AT_INPUT (2 * UNIT_SUMS * 4)
#define AT_SLOTS (AT_INPUT + INPUT_ROW_BYTES)

// The next piece to copy, and the source address of each of the lane's copies.
struct Next {
    u32 unit, chunk, left;
    const DEVICE u8* from[PLANES][MAX_COPY_ITERATIONS];
};

INLINE u32 first_output(u32 unit, Place at) { return (at.group_x + unit * GROUPS) * UNIT + SIMD * OWN; }

// Moves to a unit's first piece; `left` is unchanged.
INLINE Next next_unit(Bindings in, Next next, u32 unit, Place at) {
    next.unit = unit;
    next.chunk = 0;
    UNROLL for (u32 k = 0; k < PLANES; k++) {
        UNROLL for (u32 i = 0; i < MAX_COPY_ITERATIONS; i++) {
            const u32 p = i * 32 + LANE < PARTS_16(k) ? i * 32 + LANE : 0, line = p / (PART_BYTES(k) / 16);
            const u32 o = first_output(unit, at) + line % OWN;
            u32 row = o < OUTPUTS ? o : 0;
            const Planes planes = planes_of(matrix_of(in, line / OWN, &row));
            next.from[k][i] = planes.at[k] + (u64)row * (BLOCKS * plane_bytes(k) / 8) + p % (PART_BYTES(k) / 16) * 16;
        }
    }
    return next;
}

// Issues the copies of a piece, if one is left, and advances to the next.
INLINE Next fetch(Bindings in, Next next, THREADGROUP u8* slot, Place at) {
    if (next.left > 0) {
        const bool last = next.chunk == CHUNKS - 1;
        slot += LANE * 16;
        UNROLL for (u32 k = 0; k < PLANES; k++) {
            UNROLL for (u32 i = 0; i < MAX_COPY_ITERATIONS; i++) {
                const u32 p = i * 32 + LANE;
                bool there = (i + 1) * 32 <= PARTS_16(k) || (i < COPY_ITERATIONS(k) && p < PARTS_16(k));
                if (BLOCKS % CHUNK != 0) there = there && (!last || p % (PART_BYTES(k) / 16) * 16 < BLOCKS % CHUNK * plane_bytes(k) / 8);
                if (there) copy16(slot + i * 512, next.from[k][i], true);
            }
            slot += PARTS_16(k) * 16;
        }
        next.left--;
        next.chunk++;
        if (KIND == 1 && last) {
            next = next_unit(in, next, next.unit + 1, at);
        } else {
            UNROLL for (u32 k = 0; k < PLANES; k++) {
                const u64 further = ((u64)GROUPS * UNIT * BLOCKS - (CHUNKS - 1) * CHUNK) * plane_bytes(k) / 8;
                UNROLL for (u32 i = 0; i < MAX_COPY_ITERATIONS; i++) next.from[k][i] += last ? further : PART_BYTES(k);
            }
            next.chunk = last ? 0 : next.chunk;
        }
    }
    COPY_GROUP();
    return next;
}

struct Sums {
    f32 v[LINES];
};

// Accumulates the products of a piece.
INLINE Sums add_piece(Sums sums, u32 chunk, const THREADGROUP u8* slot, const THREADGROUP u8* input, Place at) {
    UNROLL for (u32 t = 0; t < ITERATIONS; t++) {
        const u32 b = t * 32 + LANE;
        if (BLOCKS % CHUNK != 0 && chunk * CHUNK + b >= BLOCKS) break;
        // All loads are issued before any arithmetic.
        const Input x = load_input(input, 0, chunk * CHUNK + b);
        Raw raw[LINES];
        UNROLL for (u32 line = 0; line < LINES; line++) {
            Planes planes;
            u32 plane = 0;
            UNROLL for (u32 k = 0; k < PLANES; k++) {
                planes.at[k] = slot + plane + line * PART_BYTES(k);
                plane += LINES * PART_BYTES(k);
            }
            raw[line] = load_block(planes, b);
        }
        UNROLL for (u32 line = 0; line < LINES; line++) sums.v[line] = multiply(decode(raw[line]), x, sums.v[line]);
    }
    return sums;
}

BODY(gemv_stream) {
    if (live_rows(pass, LOGITS) == 0) {
        WAIT_FOR_INPUT();
        return;
    }
    const u32 units = (UNITS - at.group_x + GROUPS - 1) / GROUPS;
    THREADGROUP u8* const slots = at.shared + AT_SLOTS + SIMD * (SLOTS * SLOT_BYTES);
    Next next;
    next.left = 0;
    ROLLED for (u32 unit = 0; unit < units; unit++) next.left += first_output(unit, at) < OUTPUTS ? CHUNKS : 0;
    next = next_unit(in, next, 0, at);
    ROLLED for (u32 i = 0; i < SLOTS; i++) next = fetch(in, next, slots + i * SLOT_BYTES, at);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();

#if SQUARES
    const Squares squares = load_squares(in, 0, LANE);
#endif
    THREADGROUP u8* const input = at.shared + AT_INPUT;
    stage_input(in.x, input, at);
    THREADGROUP u8* slot = slots;
    ROLLED for (u32 unit = 0; unit < units; unit++) {
        const u32 first = (at.group_x + unit * GROUPS) * UNIT;
        TG_ARRAY(f32, both, 0);
        THREADGROUP f32* const unit_sums = both + unit % 2 * UNIT_SUMS;
        // SIMD groups store units in round-robin order, one output per lane.
        const u32 o = first + LANE;
        const bool mine = unit % SIMDS == SIMD, holds = mine && LANE < UNIT && o < OUTPUTS;
        Addend added = {};
        if (holds) added = addend(in, 0, o);
#if SENDS
        const Sending to = sending(scratch, pass, holds ? o : 0);
#endif
        const f32 weight = holds ? norm_weight(in, o) : 0.0f;
        Sums sums = {};
        if (first_output(unit, at) < OUTPUTS) {
            ROLLED for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
                COPIES_DONE_BUT(SLOTS - 1);
                SIMD_SYNC();
                sums = add_piece(sums, chunk, slot, input, at);
                SIMD_SYNC();
                next = fetch(in, next, slot, at);
                slot = slot + SLOT_BYTES < slots + SLOTS * SLOT_BYTES ? slot + SLOT_BYTES : slots;
            }
        }
        UNROLL for (u32 line = 0; line < LINES; line++) {
            const f32 sum = SIMD_SUM(sums.v[line]);
            if (LANE == 0) unit_sums[line / OWN * UNIT + SIMD * OWN + line % OWN] = sum;
        }
        BARRIER();
        if (!mine) continue;
        f32 scale = 1;
#if SQUARES
        scale = row_scale(squares);
#endif
        const f32 sum = holds ? unit_sums[LANE] : 0.0f, second = holds && STREAMS == 2 ? unit_sums[UNIT + LANE] : 0.0f;
        const f32 value = finished(params, sum * scale, second * scale, added);
        if (IN_BLOCKS && first < OUTPUTS) store_block(in, params, 0, o, value, weight, LANE);
        else if (holds) ((DEVICE f32*)in.out)[o] = value;
#if SENDS
        if (holds) send_number(to, value, scratch);
#endif
    }
}
