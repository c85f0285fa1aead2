// What the kernels for attention of many rows on tensor cores share. A threadgroup has LINES query lines (a line is one head
// of one row), a SIMD group 16 of them. Scores and sums are distributed over the lanes as multiply_halves has them.

#define WORKERS (2 * LINES)
#define LOWEST -1e30f
#define LOG2_E 1.44269504f

// A lane's lines: g and g + 8 of its SIMD group's.
#define LINE(r) (SIMD * 16 + r * 8 + LANE / 4)

// The online softmax state of a line.
struct Line {
    // The visible positions; empty for padding lines.
    u32 from, end;
    // What its weights are relative to, and their sum.
    f32 most, total;
};

// Whether a line of the threadgroup is one of the run of rows `start` … `end`. The others are padding.
INLINE bool in_run(u32 line, u32 first_head, u32 start, u32 end) {
    const u32 head = first_head + line % HEADS_HERE;
    return start + line / HEADS_HERE < end && line < TILE_ROWS * HEADS_HERE && head / GROUP == first_head / GROUP;
}

// The lane's lines. Padding sees nothing.
INLINE void find_lines(Params params, const DEVICE Row* rows, u32 first_head, u32 start, u32 end, THREAD_PTR Line* lines, Place at) {
    const u32 window = params.attention.window, ahead = params.attention.ahead;
    UNROLL for (u32 r = 0; r < 2; r++) {
        lines[r].most = LOWEST;
        lines[r].total = 0;
        lines[r].from = lines[r].end = 0;
        if (in_run(LINE(r), first_head, start, end)) {
            const Row row = rows[start + LINE(r) / HEADS_HERE];
            lines[r].from = first_visible(row, window);
            lines[r].end = visible_end(row, window, ahead);
        }
    }
}

struct Two {
    f32 v[2];
};

// Numbers d and d + 1 of a line's query, times the attention scale; zeros for padding.
INLINE Two query_numbers(Bindings in, Params params, u32 line, u32 first_head, u32 start, u32 end, u32 d) {
    Two numbers = {};
    if (in_run(line, first_head, start, end)) {
        const u32 row = start + line / HEADS_HERE, head = first_head + line % HEADS_HERE;
        const u32x2 two = read8(in.q + (((u64)row * HEADS + head) * HEAD_DIM + d) * 4);
        const f32 scale = QUERY_SCALE(in, params, ((const DEVICE Row*)in.rows)[row]);
        numbers.v[0] = as_f32(two.x) * scale;
        numbers.v[1] = as_f32(two.y) * scale;
    }
    return numbers;
}

// The positions that all lines of a SIMD group see.
struct SeenByAll {
    u32 from, end;
};

INLINE SeenByAll seen_by_all(const THREAD_PTR Line* lines, Place at) {
    SeenByAll seen;
    seen.end = ~SIMD_MAX_U32(~(lines[0].end < lines[1].end ? lines[0].end : lines[1].end));
    seen.from = SIMD_MAX_U32(lines[0].from > lines[1].from ? lines[0].from : lines[1].from);
    return seen;
}

struct Scores {
    Floats v[SPAN / 8];
};

struct Output {
    Floats sums[HEAD_DIM / 8];
};

// A line's weights are relative to its reference: its maximum so far, or less by this at most. So weights are at most
// e^5.5 = 245, which f16 rounds no worse than 1, and sums are seldom rescaled.
#define SLACK 5.5f

// What the sums of a lane's two lines are multiplied by because their references have changed.
struct Keep {
    f32 of[2];
    // Whether those of any line of the SIMD group have.
    bool changed;
};

// Turns scores into softmax weights, and updates the lines' references and sums. `whole`: all positions of the span are visible
// to all lines, so no mask is needed.
INLINE Keep online_softmax(THREAD_PTR Scores* scores, THREAD_PTR Line* lines, u32 base, bool whole, f32 cap, Place at) {
    if (CAPPED) {
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 4; e++) scores->v[n].v[e] = cap * TANH(scores->v[n].v[e] / cap);
        }
    }
    if (!whole) {
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 4; e++) {
                const u32 position = base + n * 8 + LANE % 4 * 2 + e % 2;
                if (position < lines[e / 2].from || position >= lines[e / 2].end) scores->v[n].v[e] = 2 * LOWEST;
            }
        }
    }
    Keep keep;
    u32 changed = 0;
    UNROLL for (u32 r = 0; r < 2; r++) {
        f32 most = LOWEST;
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 2; e++) most = MAX_F32(most, scores->v[n].v[r * 2 + e]);
        }
        most = MAX_F32(most, SIMD_XOR(most, 1));
        most = MAX_F32(most, SIMD_XOR(most, 2));
        changed |= most > lines[r].most + SLACK;
        most = most > lines[r].most + SLACK ? most : lines[r].most;
        keep.of[r] = EXP2((lines[r].most - most) * LOG2_E);
        lines[r].most = most;
        lines[r].total *= keep.of[r];
        UNROLL for (u32 n = 0; n < SPAN / 8; n++) {
            UNROLL for (u32 e = 0; e < 2; e++) {
                const f32 weight = EXP2(fused(scores->v[n].v[r * 2 + e], LOG2_E, -most * LOG2_E));
                scores->v[n].v[r * 2 + e] = weight;
                lines[r].total += weight;
            }
        }
    }
    keep.changed = SIMD_MAX_U32(changed) > 0;
    return keep;
}

INLINE void rescale(THREAD_PTR Output* out, Keep keep) {
    UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
        UNROLL for (u32 e = 0; e < 4; e++) out->sums[d].v[e] *= keep.of[e / 2];
    }
}

// What a line's sums are multiplied by at the end.
INLINE f32 inverse_of(Bindings in, Line line, u32 head, Place at) {
    f32 total = line.total;
    total += SIMD_XOR(total, 1);
    total += SIMD_XOR(total, 2);
    return inverse_total(in, head < HEADS ? head : 0, line.most, total);
}

// f16 alone: 8 elements of a line a lane and step. Lines are 16 bytes further apart than they are long, so that all lanes
// write to different banks.
INLINE void store_lines_f16(Bindings in, THREAD_PTR Line* lines, const THREAD_PTR Output* out, u32 first_head, u32 start, u32 end, Place at) {
    const u32 words = HEAD_DIM / 2 + 4, chunks = HEAD_DIM / 8, cols = HEADS * HEAD_DIM;
    TG_ARRAY(u32, together, 0);
    THREADGROUP u32* const mine = together + SIMD * 16 * words;
    UNROLL for (u32 r = 0; r < 2; r++) {
        const f32 inverse = inverse_of(in, lines[r], first_head + LINE(r) % HEADS_HERE, at);
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
            const f32 a = out->sums[d].v[r * 2] * inverse, b = out->sums[d].v[r * 2 + 1] * inverse;
            mine[(r * 8 + LANE / 4) * words + d * 4 + LANE % 4] = two_halves(a, b);
        }
    }
    SIMD_SYNC();
    for (u32 i = LANE; i < 16 * chunks; i += 32) {
        const u32 line = SIMD * 16 + i / chunks, row = start + line / HEADS_HERE, head = first_head + line % HEADS_HERE;
        if (!in_run(line, first_head, start, end)) continue;
        const u32 col = head * HEAD_DIM + i % chunks * 8;
        DEVICE u8* const to = in.out_f16 + (u64)row * cols * 2;
        const THREADGROUP u32* const from = mine + i / chunks * words + i % chunks * 4;
        if (OUT_LANES) {
            UNROLL for (u32 k = 0; k < 2; k++) {
                *(DEVICE u32*)(to + lane_place(col + 4 * k) * 2) = byte_perm(from[2 * k], from[2 * k + 1], 0x5410u);
                *(DEVICE u32*)(to + lane_place(col + 4 * k + 1) * 2) = byte_perm(from[2 * k], from[2 * k + 1], 0x7632u);
            }
        } else {
            *(DEVICE u32x4*)(to + col * 2) = *(const THREADGROUP u32x4*)from;
        }
        if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
    }
}

// The lines of a SIMD group go through its own part of threadgroup memory, so that it writes 32 consecutive elements.
INLINE void store_lines(Bindings in, THREAD_PTR Line* lines, const THREAD_PTR Output* out, u32 first_head, u32 start, u32 end, Place at) {
    TG_ARRAY(f32, together, 0);
    THREADGROUP f32* const mine = together + SIMD * 16 * HEAD_DIM;
    UNROLL for (u32 r = 0; r < 2; r++) {
        const f32 inverse = inverse_of(in, lines[r], first_head + LINE(r) % HEADS_HERE, at);
        UNROLL for (u32 d = 0; d < HEAD_DIM / 8; d++) {
            UNROLL for (u32 e = 0; e < 2; e++) {
                mine[(r * 8 + LANE / 4) * HEAD_DIM + d * 8 + LANE % 4 * 2 + e] = out->sums[d].v[r * 2 + e] * inverse;
            }
        }
    }
    SIMD_SYNC();
    const u32 cols = HEADS * HEAD_DIM;
    for (u32 i = 0; i < 16; i++) {
        const u32 line = SIMD * 16 + i, row = start + line / HEADS_HERE, head = first_head + line % HEADS_HERE;
        if (!in_run(line, first_head, start, end)) continue;
        for (u32 d = LANE; d < HEAD_DIM; d += 32) {
            const f32 value = mine[i * HEAD_DIM + d];
            const u32 col = head * HEAD_DIM + d;
            if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * cols + col] = value;
            if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(cols), cols, col / 32, value, LANE);
            if (OUT_F16) {
                ((DEVICE u16*)in.out_f16)[(u64)row * cols + (OUT_LANES ? lane_place(col) : col)] = f32_to_f16(value);
                if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
            }
        }
    }
}

INLINE void store_all_lines(Bindings in, THREAD_PTR Line* lines, const THREAD_PTR Output* out, u32 first_head, u32 start, u32 end, Place at) {
    if (OUT_F16 && !OUT_F32 && !OUT_Q8) {
        store_lines_f16(in, lines, out, first_head, start, end, at);
    } else {
        store_lines(in, lines, out, first_head, start, end, at);
    }
}
