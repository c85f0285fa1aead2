// Attention of a row over its slot's cache. A group has HEAD_TILE query heads that share a KV head, and one of SPLITS stretches of the
// positions, so that keys and values are read once for all those heads, by the whole chip. LANES lanes have a position's row
// between them, PIECE numbers each, and DEEP positions are under way at once. Stretches meet in scratch memory: the last group that
// is done puts them together.
//
// With ROPE it takes Q, K and V as the product left them. A group turns its own query heads; the groups whose stretch has the row's own
// position turn its key too, use key and value from threadgroup memory, and the first of them stores both. So nobody reads what is
// written here, and the other positions are older than this pass: they are on their way before the wait.

#define DEEP 4
#define PER_SIMD (32 / LANES)
#define PARALLEL (SIMDS * PER_SIMD)
// Floats of a head's part: its sums, then the largest score, then the sum of weights.
#define PART (HEAD_DIM + 2)
#define TILE_FLOATS (HEAD_TILE * PART)
#define LOWEST -1e30f
#define MOST_SPLITS 32
#if ROPE
// The group's query heads, then the own position's key and value as the cache has them.
#define TURNED_FLOATS ((HEAD_TILE + 2) * HEAD_DIM)
#else
#define TURNED_FLOATS 0
#endif

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
    // With ROPE, the position whose key and value are not to be read.
    u32 own;
};

// What a lane group looks at in one turn.
struct Turn {
    Piece keys[DEEP], values[DEEP];
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
    span.own = row.position;
    return span;
}

// DEEP positions a lane group from `base` on; nothing for those beyond the end.
INLINE Turn load_turn(const DEVICE u8* k, const DEVICE u8* v, u32 base, Span span, u32 first) {
    Turn turn = {};
    UNROLL for (u32 u = 0; u < DEEP; u++) {
        const u32 position = base + u * PARALLEL;
        if (first < HEAD_DIM && position < span.end && !(ROPE && position == span.own)) {
            turn.keys[u] = load_piece(k + position * KV_ROW_BYTES, first);
            turn.values[u] = load_piece(v + position * KV_ROW_BYTES, first);
        }
    }
    return turn;
}

// A position's piece of a row: of the own one, as it stands in threadgroup memory.
INLINE Numbers numbers_at(Piece piece, u32 position, Span span, const THREADGROUP f32* own) {
    Numbers n = numbers(piece);
#if ROPE
    if (position == span.own) {
        UNROLL for (u32 i = 0; i < PIECE; i++) n.v[i] = own[i];
    }
#endif
    return n;
}

// A turn, for all heads. Positions beyond the end weigh nothing. `own`: this lane's piece of the own key; the value is a row further.
INLINE void attend(THREAD_PTR Head* heads, const THREAD_PTR Numbers* q, Turn turn, u32 base, Span span, const THREADGROUP f32* own,
                   bool holds, f32 cap) {
    f32 scores[DEEP][HEAD_TILE];
    UNROLL for (u32 u = 0; u < DEEP; u++) {
        const Numbers key = numbers_at(turn.keys[u], base + u * PARALLEL, span, own);
        UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
            f32 score = 0;
            UNROLL for (u32 i = 0; i < PIECE; i++) score += q[g].v[i] * key.v[i];
            score = holds ? score : 0.0f;
            UNROLL for (u32 step = LANES / 2; step > 0; step /= 2) score += SIMD_XOR(score, step);
            scores[u][g] = CAPPED ? cap * TANH(score / cap) : score;
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
        const Numbers value = numbers_at(turn.values[u], base + u * PARALLEL, span, own + HEAD_DIM);
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
    if (OUT_F16) {
        ((DEVICE u16*)in.out_f16)[(u64)row * cols + col] = f32_to_f16(value);
        if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
    }
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
        // All stretches' parts are under way at once.
        f32 part[MOST_SPLITS];
        UNROLL for (u32 i = 0; i < SPLITS; i++) part[i] = i < span.splits ? parts[i * TILE_FLOATS + g * PART + e % HEAD_DIM] : 0.0f;
        f32 sum = 0;
        UNROLL for (u32 i = 0; i < SPLITS; i++) sum += (i < span.splits ? weights[g * 32 + i] : 0.0f) * part[i];
        store_head(in, row, first_head, e, sum, LANE);
    }
}

#if ROPE
// Turns a group's query heads, each times `factor`, and what the own position needs where the stretch has it. A SIMD group a head.
INLINE void turn_heads(Bindings in, Params params, Place at, Row row, Span span, u32 first_head, u32 heads_here, THREADGROUP f32* turned) {
    const u32 kv_head = first_head / GROUP, lane = LANE;
    const bool stores = first_head % GROUP == 0, has_own = span.from <= span.own && span.own < span.end;
    const DEVICE f32* qkv = (const DEVICE f32*)in.qkv;
    const DEVICE f32* angles = (const DEVICE f32*)in.angles;
    const DEVICE f32 *q_norm = (const DEVICE f32*)in.q_norm, *k_norm = (const DEVICE f32*)in.k_norm;
    THREADGROUP f32* const key = turned + HEAD_TILE * HEAD_DIM;
    // Key and value first: they have the most to do.
    for (u32 i = SIMD; i < heads_here + 2; i += SIMDS) {
        if (i >= 2) {
            const DEVICE f32* from = qkv + (first_head + i - 2) * HEAD_DIM;
            put_turned(from, q_norm, angles, PARAM_F32(8), PARAM_F32(4), turned + (i - 2) * HEAD_DIM, lane);
        } else if (has_own) {
            const DEVICE f32* from = qkv + (HEADS + i * KV_HEADS + kv_head) * HEAD_DIM;
            DEVICE u8* to = kv_row(i == 0 ? in.k_cache : in.v_cache, row.slot, kv_head, row.position);
            THREADGROUP f32* const own = key + i * HEAD_DIM;
            if (i == 0) put_turned(from, k_norm, angles, PARAM_F32(8), 1.0f, own, lane);
            SIMD_SYNC();
            EACH_OF(e, HEAD_DIM) own[e] = kv_put(to, e, i == 0 ? own[e] : from[e], lane, stores);
        }
    }
}
#endif

// A lane's piece of a query head, times the factor of scores.
INLINE Numbers load_query(Bindings in, Params params, u32 row, u32 head, u32 tile_head, u32 first, const THREADGROUP f32* turned) {
    Numbers q;
    const bool holds = first < HEAD_DIM;
#if !ROPE
    const DEVICE f32* from = (const DEVICE f32*)in.q + ((u64)row * HEADS + head) * HEAD_DIM + first;
    UNROLL for (u32 i = 0; i < PIECE; i++) q.v[i] = holds ? from[i] * PARAM_F32(4) : 0.0f;
#else
    const THREADGROUP f32* from = turned + tile_head * HEAD_DIM + first;
    UNROLL for (u32 i = 0; i < PIECE; i++) q.v[i] = holds ? from[i] : 0.0f;
#endif
    return q;
}

BODY(attention) {
    const u32 row = at.group_y, split = at.group_x % SPLITS, tile = at.group_x / SPLITS;
    const u32 kv_head = tile / TILES, done = tile % TILES * HEAD_TILE;
    const u32 heads_here = GROUP - done < HEAD_TILE ? GROUP - done : HEAD_TILE, first_head = kv_head * GROUP + done;
    const bool live = row < live_rows(pass, false);
    const Row place = live ? ((const DEVICE Row*)in.rows)[row] : Row{0, 0, 1, 0};
    const Span span = span_of(place, PARAM_U32(6), split);
    const u32 first = LANE % LANES * PIECE, mine = SIMD * PER_SIMD + LANE / LANES;
    const bool holds = first < HEAD_DIM;
    const DEVICE u8* k = kv_row(in.k_cache, place.slot, kv_head, 0);
    const DEVICE u8* v = kv_row(in.v_cache, place.slot, kv_head, 0);
    TG_ARRAY(f32, turned, 0);
#if ROPE
    Turn turn = {};
    if (live && split < span.splits) turn = load_turn(k, v, span.from + mine, span, first);
#endif
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (!live || split >= span.splits) return;
#if ROPE
    turn_heads(in, params, at, place, span, first_head, heads_here, turned);
    BARRIER();
#else
    Turn turn = load_turn(k, v, span.from + mine, span, first);
#endif

    Numbers q[HEAD_TILE];
    Head heads[HEAD_TILE];
    UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
        const u32 h = g < heads_here ? g : 0;
        q[g] = load_query(in, params, row, first_head + h, h, first, turned);
        heads[g].most = LOWEST;
        heads[g].total = 0;
        UNROLL for (u32 i = 0; i < PIECE; i++) heads[g].sum[i] = 0;
    }
    // The same number of turns for all lanes.
    for (u32 base = span.from; base < span.end; base += DEEP * PARALLEL) {
        attend(heads, q, turn, base + mine, span, turned + HEAD_TILE * HEAD_DIM + first, holds, PARAM_F32(5));
        if (base + DEEP * PARALLEL < span.end) turn = load_turn(k, v, base + DEEP * PARALLEL + mine, span, first);
    }

    TG_ARRAY(f32, parts, TURNED_FLOATS * 4);
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
