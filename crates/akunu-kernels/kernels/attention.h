// Attention of one row over its sequence's cache, for every cache type. LANES lanes share a cached row, PIECE numbers
// each, and each such lane group has DEEP positions in flight at once.

#define DEEP 4
#define PER_SIMD (32 / LANES)
#define PARALLEL (SIMDS * PER_SIMD)
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

// Merges the online softmax state (running maximum, sum, weighted values) with that of the lane at XOR distance
// `step`.
INLINE Head merged(Head head, u32 step) {
    const f32 other = SIMD_XOR(head.most, step), most = MAX_F32(head.most, other);
    const f32 mine = EXP(head.most - most), theirs = EXP(other - most);
    head.total = head.total * mine + SIMD_XOR(head.total, step) * theirs;
    UNROLL for (u32 i = 0; i < PIECE; i++) head.sum[i] = head.sum[i] * mine + SIMD_XOR(head.sum[i], step) * theirs;
    head.most = most;
    return head;
}

// The keys and values that a lane group handles in one iteration.
struct KvTile {
    Piece keys[DEEP], values[DEEP];
};

// Loads DEEP positions from `base` on, PARALLEL apart; zeros past the end.
INLINE KvTile load_kv_tile(Bindings in, Task task, u32 base, u32 first) {
    const Span span = task.span;
    KvTile kv = {};
    UNROLL for (u32 u = 0; u < DEEP; u++) {
        const u32 position = base + u * PARALLEL;
        if (first < HEAD_DIM && position < span.end && !(ROPE && position == span.own)) {
            const u64 row = kv_place(in, task.place.start + position) * KV_ROW_BYTES;
            kv.keys[u] = load_piece(task.k + row, first);
            kv.values[u] = load_piece(task.v + row, first);
        }
    }
    return kv;
}

// The lane's piece of a cached row; for the own position it comes from threadgroup memory. Lanes past the end of the
// row (`holds` false) have no data there.
INLINE Numbers numbers_at(Piece piece, u32 position, Span span, const THREADGROUP f32* own, bool holds) {
    Numbers n = numbers(piece);
#if ROPE
    if (holds && position == span.own) {
        UNROLL for (u32 i = 0; i < PIECE; i++) n.v[i] = own[i];
    }
#endif
    return n;
}

#if BIASED
// The relative position bias of head g for this key.
INLINE f32 position_bias(Bindings in, Params params, Task task, u32 g, u32 key) {
    const u32 far = params.attention.reach - 1, head = task.first_head + (g < task.heads ? g : 0), query = task.place.position;
    const u32 after = key > query ? key - query : 0, before = query > key ? query - key : 0;
    const u32 col = far + (after < far ? after : far) - (before < far ? before : far);
    return ((const DEVICE f32*)in.position_bias)[head * (2 * far + 1) + col];
}
#endif

// One iteration of online softmax for all heads of the tile. Positions past the end get weight 0. `own`: this lane's
// piece of the own position's key; its value is HEAD_DIM further.
INLINE void attend(Bindings in, Params params, Task task, THREAD_PTR Head* heads, const THREAD_PTR Numbers* q, KvTile kv, u32 base,
                   const THREADGROUP f32* own, bool holds) {
    const Span span = task.span;
    const f32 cap = params.attention.soft_cap;
    f32 scores[DEEP][HEAD_TILE];
    UNROLL for (u32 u = 0; u < DEEP; u++) {
        const Numbers key = numbers_at(kv.keys[u], base + u * PARALLEL, span, own, holds);
        UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
            f32 score = 0;
            UNROLL for (u32 i = 0; i < PIECE; i++) score += q[g].v[i] * key.v[i];
            score = holds ? score : 0.0f;
            UNROLL for (u32 step = LANES / 2; step > 0; step /= 2) score += SIMD_XOR(score, step);
            scores[u][g] = CAPPED ? cap * TANH(score / cap) : score;
#if BIASED
            scores[u][g] += position_bias(in, params, task, g, base + u * PARALLEL);
#endif
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
        const Numbers value = numbers_at(kv.values[u], base + u * PARALLEL, span, own + HEAD_DIM, holds);
        if (base + u * PARALLEL >= span.end) continue;
        UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
            UNROLL for (u32 i = 0; i < PIECE; i++) heads[g].sum[i] += scores[u][g] * value.v[i];
        }
    }
}

// The lane's piece of a query head, times the attention scale.
INLINE Numbers load_query(Bindings in, Params params, Task task, u32 tile_head, u32 first, const THREADGROUP f32* rotated) {
    Numbers q;
    const bool holds = first < HEAD_DIM;
#if !ROPE
    const DEVICE f32* from = (const DEVICE f32*)in.q + ((u64)task.row * HEADS + task.first_head + tile_head) * HEAD_DIM + first;
    const f32 scale = QUERY_SCALE(in, params, task.place);
    UNROLL for (u32 i = 0; i < PIECE; i++) q.v[i] = holds ? from[i] * scale : 0.0f;
#else
    const THREADGROUP f32* from = rotated + tile_head * HEAD_DIM + first;
    UNROLL for (u32 i = 0; i < PIECE; i++) q.v[i] = holds ? from[i] : 0.0f;
#endif
    return q;
}

BODY(attention) {
    const Task task = task_of(in, pass, params, at);
    const Span span = task.span;
    const u32 first = LANE % LANES * PIECE, mine = SIMD * PER_SIMD + LANE / LANES;
    const bool holds = first < HEAD_DIM;
    TG_ARRAY(f32, rotated, 0);
    if (!task.live) {
        leave_early(task);
        return;
    }
#if ROPE
    KvTile kv = load_kv_tile(in, task, span.from + mine, first);
#endif
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
#if ROPE
    rotate_heads(in, params, task, rotated, at);
    BARRIER();
#else
    KvTile kv = load_kv_tile(in, task, span.from + mine, first);
#endif

    Numbers q[HEAD_TILE];
    Head heads[HEAD_TILE];
    UNROLL for (u32 g = 0; g < HEAD_TILE; g++) {
        const u32 h = g < task.heads ? g : 0;
        q[g] = load_query(in, params, task, h, first, rotated);
        heads[g].most = LOWEST;
        heads[g].total = 0;
        UNROLL for (u32 i = 0; i < PIECE; i++) heads[g].sum[i] = 0;
    }
    // All lanes run the same number of iterations.
    for (u32 base = span.from; base < span.end; base += DEEP * PARALLEL) {
        attend(in, params, task, heads, q, kv, base + mine, rotated + HEAD_TILE * HEAD_DIM + first, holds);
        if (base + DEEP * PARALLEL < span.end) kv = load_kv_tile(in, task, base + DEEP * PARALLEL + mine, first);
    }

    TG_ARRAY(f32, parts, ROTATED_FLOATS * 4);
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
    finish_heads(in, scratch, parts, task, at);
}
