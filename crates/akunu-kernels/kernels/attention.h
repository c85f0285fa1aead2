// Attention of a row over its slot's cache. A group has HEAD_TILE query heads that share a KV head, and one of SPLITS stretches of the
// positions, so that keys and values are read once for all those heads, by the whole chip. LANES lanes have a position's row
// between them, PIECE numbers each, and DEEP positions are under way at once. Stretches meet in scratch memory: the last group that
// is done puts them together.

#define DEEP 4
#define PER_SIMD (32 / LANES)
#define PARALLEL (SIMDS * PER_SIMD)
// Floats of a head's part: its sums, then the largest score, then the sum of weights.
#define PART (HEAD_DIM + 2)
#define TILE_FLOATS (HEAD_TILE * PART)
#define LOWEST -1e30f

#if KV_TYPE == 0
#define PIECE_WORDS PIECE
#elif KV_TYPE == 1
#define PIECE_WORDS (PIECE / 2)
#else
#define PIECE_WORDS (PIECE / 4 + 1)
#endif

struct Piece {
    u32 words[PIECE_WORDS];
};

struct Numbers {
    f32 v[PIECE];
};

INLINE Piece load_piece(const DEVICE u8* row, u32 first) {
    Piece piece;
#if KV_TYPE == 2
    const DEVICE u16* block = (const DEVICE u16*)(row + first / 32 * 34);
    piece.words[0] = block[0];
    UNROLL for (u32 i = 0; i < PIECE / 4; i++) {
        const DEVICE u16* two = block + 1 + first % 32 / 2 + 2 * i;
        piece.words[1 + i] = two[0] | (u32)two[1] << 16;
    }
#else
    const DEVICE u8* from = row + first * (KV_TYPE == 0 ? 4 : 2);
#if PIECE_WORDS >= 4
    UNROLL for (u32 i = 0; i < PIECE_WORDS; i += 4) {
        const u32x4 a = read16(from + 4 * i);
        piece.words[i] = a.x; piece.words[i + 1] = a.y; piece.words[i + 2] = a.z; piece.words[i + 3] = a.w;
    }
#elif PIECE_WORDS == 2
    const u32x2 a = read8(from);
    piece.words[0] = a.x; piece.words[1] = a.y;
#else
    piece.words[0] = *(const DEVICE u32*)from;
#endif
#endif
    return piece;
}

INLINE Numbers numbers(Piece piece) {
    Numbers n;
    UNROLL for (u32 i = 0; i < PIECE; i++) {
#if KV_TYPE == 0
        n.v[i] = as_f32(piece.words[i]);
#elif KV_TYPE == 1
        n.v[i] = f16_to_f32((u16)(piece.words[i / 2] >> (i % 2 * 16)));
#else
        n.v[i] = f16_to_f32((u16)piece.words[0]) * (f32)(i8)(piece.words[1 + i / 4] >> (i % 4 * 8) & 255);
#endif
    }
    return n;
}

struct Head {
    f32 most, total;
    f32 sum[PIECE];
};

// Everything of a head that another lane has seen comes to this one.
INLINE Head merged(Head head, u32 step) {
    const f32 other = SIMD_XOR(head.most, step), most = MAX_F32(head.most, other);
    const f32 mine = EXP(head.most - most), theirs = EXP(other - most);
    head.total = head.total * mine + SIMD_XOR(head.total, step) * theirs;
    UNROLL for (u32 i = 0; i < PIECE; i++) head.sum[i] = head.sum[i] * mine + SIMD_XOR(head.sum[i], step) * theirs;
    head.most = most;
    return head;
}

struct Span {
    u32 from, end;
    // How many groups share the row.
    u32 splits;
};

// Positions that group `split` looks at.
INLINE Span span_of(Row row, u32 window, u32 split) {
    const u32 first = window == 0 || row.position + 1 < window ? 0 : row.position + 1 - window;
    const u32 count = row.kv_len - first;
    Span span;
    span.splits = (count + SPAN - 1) / SPAN;
    span.splits = span.splits < SPLITS ? span.splits : SPLITS;
    const u32 each = (count + span.splits - 1) / span.splits;
    span.from = first + split * each;
    span.end = span.from + each < row.kv_len ? span.from + each : row.kv_len;
    return span;
}

// DEEP positions a lane group from `base` on, for all heads. Positions beyond the end weigh nothing.
INLINE void attend(THREAD_PTR Head* heads, const THREAD_PTR Numbers* q, const DEVICE u8* k, const DEVICE u8* v, u32 base, Span span,
                   u32 first, bool holds, f32 cap) {
    Piece keys[DEEP], values[DEEP];
    UNROLL for (u32 u = 0; u < DEEP; u++) {
        const u32 p = base + u * PARALLEL, position = p < span.end ? p : span.end - 1;
        if (holds) {
            keys[u] = load_piece(k + position * KV_ROW_BYTES, first);
            values[u] = load_piece(v + position * KV_ROW_BYTES, first);
        }
    }
    f32 scores[DEEP][HEAD_TILE];
    UNROLL for (u32 u = 0; u < DEEP; u++) {
        const Numbers key = numbers(keys[u]);
        UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
            f32 score = 0;
            UNROLL for (u32 i = 0; i < PIECE; i++) score += q[g].v[i] * key.v[i];
            score = holds ? score : 0.0f;
            UNROLL for (u32 step = LANES / 2; step > 0; step /= 2) score += SIMD_XOR(score, step);
            scores[u][g] = cap == 0 ? score : cap * TANH(score / cap);
        }
    }
    UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
        f32 most = heads[g].most;
        UNROLL for (u32 u = 0; u < DEEP; u++) most = base + u * PARALLEL < span.end ? MAX_F32(most, scores[u][g]) : most;
        const f32 keep = EXP(heads[g].most - most);
        heads[g].most = most;
        heads[g].total *= keep;
        UNROLL for (u32 i = 0; i < PIECE; i++) heads[g].sum[i] *= keep;
        UNROLL for (u32 u = 0; u < DEEP; u++) {
            scores[u][g] = base + u * PARALLEL < span.end ? EXP(scores[u][g] - most) : 0.0f;
            heads[g].total += scores[u][g];
        }
    }
    UNROLL for (u32 u = 0; u < DEEP; u++) {
        const Numbers value = numbers(values[u]);
        if (base + u * PARALLEL >= span.end) continue;
        UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
            UNROLL for (u32 i = 0; i < PIECE; i++) heads[g].sum[i] += scores[u][g] * value.v[i];
        }
    }
}

// Number e of the tile's heads, side by side as in the output. With OUT_Q8 a SIMD group's lanes hold 32 neighbours.
INLINE void store_head(Bindings in, u32 row, u32 first_head, u32 e, f32 value, u32 lane) {
    const u32 cols = HEADS * HEAD_DIM, col = first_head * HEAD_DIM + e;
    if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * cols + col] = value;
    if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(cols), cols, col / 32, value, lane);
}

// What each SIMD group's part of a head weighs beside the others': of a whole row, or of a stretch, whose largest score and sum of
// weights then go to `stretch`.
INLINE void weigh_parts(const THREADGROUP f32* parts, THREADGROUP f32* weights, DEVICE f32* stretch, u32 heads, bool whole, Place at) {
    for (u32 g = SIMD; g < heads; g += SIMDS) {
        const THREADGROUP f32* part = parts + (LANE < SIMDS ? LANE : 0) * TILE_FLOATS + g * PART + HEAD_DIM;
        const f32 score = LANE < SIMDS ? part[0] : LOWEST, most = SIMD_MAX(score);
        const f32 weight = LANE < SIMDS ? EXP(score - most) : 0.0f, total = SIMD_SUM(weight * part[1]);
        if (LANE < SIMDS) weights[g * SIMDS + LANE] = whole ? weight / total : weight;
        if (LANE == 0 && !whole) {
            stretch[g * PART + HEAD_DIM] = most;
            stretch[g * PART + HEAD_DIM + 1] = total;
        }
    }
}

// The last group of a row and tile puts the stretches together.
INLINE void finish_splits(Bindings in, const DEVICE f32* parts, Span span, u32 row, u32 first_head, u32 heads, Place at) {
    TG_ARRAY(f32, weights, 16);
    for (u32 g = SIMD; g < heads; g += SIMDS) {
        const bool mine = LANE < span.splits;
        const DEVICE f32* part = parts + (mine ? LANE : 0) * TILE_FLOATS + g * PART + HEAD_DIM;
        const f32 score = mine ? part[0] : LOWEST, most = SIMD_MAX(score);
        const f32 weight = mine ? EXP(score - most) : 0.0f;
        weights[g * 32 + LANE] = weight / SIMD_SUM(weight * part[1]);
    }
    BARRIER();
    for (u32 e = at.thread; e < heads * HEAD_DIM; e += THREADS) {
        const u32 g = e / HEAD_DIM;
        f32 sum = 0;
        for (u32 i = 0; i < span.splits; i++) sum += weights[g * 32 + i] * parts[i * TILE_FLOATS + g * PART + e % HEAD_DIM];
        store_head(in, row, first_head, e, sum, LANE);
    }
}

BODY(attention) {
    const u32 row = at.group_y, split = at.group_x % SPLITS, tile = at.group_x / SPLITS;
    const u32 kv_head = tile / TILES, done = tile % TILES * HEAD_TILE;
    const u32 heads_here = GROUP - done < HEAD_TILE ? GROUP - done : HEAD_TILE, first_head = kv_head * GROUP + done;
    const bool live = row < live_rows(pass, false);
    const Row place = live ? ((const DEVICE Row*)in.rows)[row] : Row{0, 0, 1, 0};
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const Span span = span_of(place, PARAM_U32(6), split);
    if (!live || split >= span.splits) return;

    const u32 first = LANE % LANES * PIECE;
    const bool holds = first < HEAD_DIM;
    Numbers q[HEAD_TILE];
    Head heads[HEAD_TILE];
    UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
        heads[g].most = LOWEST;
        heads[g].total = 0;
        const u32 h = first_head + (g < heads_here ? g : 0);
        const DEVICE f32* from = (const DEVICE f32*)in.q + ((u64)row * HEADS + h) * HEAD_DIM + first;
        UNROLL for (u32 i = 0; i < PIECE; i++) {
            heads[g].sum[i] = 0;
            q[g].v[i] = holds ? from[i] * PARAM_F32(4) : 0.0f;
        }
    }
    const DEVICE u8* k = kv_row(in.k_cache, place.slot, kv_head, 0);
    const DEVICE u8* v = kv_row(in.v_cache, place.slot, kv_head, 0);
    // The same number of turns for all lanes.
    const u32 own = SIMD * PER_SIMD + LANE / LANES;
    for (u32 base = span.from; base < span.end; base += DEEP * PARALLEL) {
        attend(heads, q, k, v, base + own, span, first, holds, PARAM_F32(5));
    }

    TG_ARRAY(f32, parts, 0);
    UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
        UNROLL for (u32 step = LANES; step < 32; step *= 2) heads[g] = merged(heads[g], step);
        THREADGROUP f32* part = parts + SIMD * TILE_FLOATS + g * PART;
        if (LANE < LANES && holds) {
            UNROLL for (u32 i = 0; i < PIECE; i++) part[first + i] = heads[g].sum[i];
        }
        if (LANE == 0) {
            part[HEAD_DIM] = heads[g].most;
            part[HEAD_DIM + 1] = heads[g].total;
        }
    }
    BARRIER();
    const u32 group = row * (KV_HEADS * TILES) + tile;
    const bool whole = span.splits == 1;
    DEVICE f32* stretches = (DEVICE f32*)(scratch + COUNTER_BYTES) + (u64)group * SPLITS * TILE_FLOATS;
    DEVICE f32* stretch = stretches + split * TILE_FLOATS;
    THREADGROUP f32* const weights = parts + SIMDS * TILE_FLOATS;
    weigh_parts(parts, weights, stretch, heads_here, whole, at);
    BARRIER();
    for (u32 e = at.thread; e < heads_here * HEAD_DIM; e += THREADS) {
        const u32 g = e / HEAD_DIM, d = e % HEAD_DIM;
        f32 sum = 0;
        UNROLL for (u32 i = 0; i < SIMDS; i++) sum += weights[g * SIMDS + i] * parts[i * TILE_FLOATS + g * PART + d];
        if (whole) store_head(in, row, first_head, e, sum, LANE);
        else stretch[g * PART + d] = sum;
    }
    if (whole) return;
    if (last_to_finish(scratch, group, span.splits, at)) {
        finish_splits(in, stretches, span, row, first_head, heads_here, at);
    }
}
