// Shared by the attention kernels for one or a few rows (flash decoding). A threadgroup handles HEAD_TILE query heads
// of one KV head and one of SPLITS splits of the positions, so keys and values are read once for all heads of the tile
// and the whole GPU takes part. Splits are combined through scratch memory.
//
// With ROPE the kernel takes Q, K and V as the product wrote them. Each threadgroup rotates its own query heads. Those
// whose split contains the row's own position also rotate its key and use key and value from threadgroup memory; the
// first of them stores both to the cache. So no threadgroup reads what this launch writes. All other positions were
// written by earlier passes, so their loads can be issued before the grid dependency wait.

// Floats of a head's partial result: HEAD_DIM weighted sums, the maximum score, the sum of softmax weights.
#define PART (HEAD_DIM + 2)
#define TILE_FLOATS (HEAD_TILE * PART)
#define LOWEST -1e30f
#if ROPE
// The threadgroup's rotated query heads, then the own position's key and value as the cache represents them.
#define ROTATED_FLOATS ((HEAD_TILE + 2) * HEAD_DIM)
#else
#define ROTATED_FLOATS 0
#endif

struct Span {
    u32 from, end;
    // The first visible position: a span may begin before it, at a multiple of ALIGN.
    u32 seen;
    // The number of splits that the row uses.
    u32 splits;
    // With ROPE, the row's own position, whose key and value are not read from the cache.
    u32 own;
};

// The splits of each row's positions that give about GROUPS_WANTED threadgroups for `live` rows.
INLINE u32 most_splits(u32 live) {
    const u32 splits = GROUPS_WANTED / (KV_HEADS * TILES * (live > 0 ? live : 1));
    return splits < 1 ? 1 : splits < SPLITS ? splits : SPLITS;
}

// The positions of split `split`.
INLINE Span span_of(Row row, u32 window, u32 ahead, u32 split, u32 most) {
    const u32 seen = first_visible(row, window), end = visible_end(row, window, ahead);
    const u32 first = seen / ALIGN * ALIGN, count = end - first;
    Span span;
    span.seen = seen;
    span.splits = (count + SPAN - 1) / SPAN;
    span.splits = span.splits < most ? span.splits : most;
    const u32 each = ((count + span.splits - 1) / span.splits + ALIGN - 1) / ALIGN * ALIGN;
    span.splits = (count + each - 1) / each;
    span.from = first + split * each;
    span.end = span.from + each < end ? span.from + each : end;
    span.own = row.position;
    return span;
}

#if LONG_RUN
// Whether the row belongs to LONG_RUN rows or more of one sequence, which another kernel handles together. Runs end at
// multiples of TILE_ROWS, as in that kernel.
INLINE bool in_long_run(const DEVICE Row* rows, u32 row, u32 live, Place at) {
    const u32 first = row / TILE_ROWS * TILE_ROWS, last = first + TILE_ROWS < live ? first + TILE_ROWS : live;
    const u32 sequence = rows[row].start;
    u32 from = first, end = last;
    for (u32 i = first + LANE; i < last; i += 32) {
        if (rows[i].start == sequence) continue;
        if (i < row) from = i + 1;
        if (i > row && i < end) end = i;
    }
    return ~SIMD_MAX_U32(~end) - SIMD_MAX_U32(from) >= LONG_RUN;
}
#endif

// The work of a threadgroup.
struct Task {
    // `asked`: the row is live, and this kernel's. `live`: it also has this split.
    bool asked, live;
    u32 row, split, tile, first_head, heads;
    Row place;
    Span span;
    // The cache rows of its KV head.
    const DEVICE u8 *k, *v;
};

INLINE Task task_of(Bindings in, const DEVICE Pass* pass, Params params, Place at) {
    Task task;
    // The split index varies slowest, so groups of split 0, which always have work, are launched first.
    const u32 live = live_rows(pass, false), heads = KV_HEADS * TILES, groups = live > 0 ? live * heads : heads;
    task.split = at.group_x / groups;
    task.row = at.group_x % groups / heads;
    task.tile = at.group_x % heads;
    const u32 kv_head = task.tile / TILES, done = task.tile % TILES * HEAD_TILE;
    task.heads = GROUP - done < HEAD_TILE ? GROUP - done : HEAD_TILE;
    task.first_head = kv_head * GROUP + done;
    const Row no_row = {0, 0, 1, 0};
    const u32 most = most_splits(live);
    task.asked = task.row < live && task.split < most;
#if LONG_RUN
    if (task.asked && in_long_run((const DEVICE Row*)in.rows, task.row, live, at)) task.asked = false;
#endif
    task.place = no_row;
    if (task.asked) task.place = ((const DEVICE Row*)in.rows)[task.row];
    task.span = span_of(task.place, params.attention.window, params.attention.ahead, task.split, most);
    task.live = task.asked && task.split < task.span.splits;
    task.k = kv_row(in.k_cache, kv_head, 0);
    task.v = kv_row(in.v_cache, kv_head, 0);
    return task;
}

// Called by a threadgroup without work. Every live row has at least one group that waits for the previous kernel, so
// the others may exit at once and free their place for the next kernel.
INLINE void leave_early(Task task) {
    if (!task.asked) WAIT_FOR_INPUT();
}

// Stores element e of the tile's heads, which are adjacent in the output. With OUT_Q8 the lanes of a SIMD group must
// hold 32 consecutive elements.
INLINE void store_head(Bindings in, u32 row, u32 first_head, u32 e, f32 value, u32 lane) {
    const u32 cols = HEADS * HEAD_DIM, col = first_head * HEAD_DIM + e;
    if (OUT_F32) ((DEVICE f32*)in.out)[(u64)row * cols + col] = value;
    if (OUT_Q8) store_q8(in.out_q8 + row * Q8_ROW_BYTES(cols), cols, col / 32, value, lane);
    if (OUT_F16) {
        ((DEVICE u16*)in.out_f16)[(u64)row * cols + (OUT_LANES ? lane_place(col) : col)] = f32_to_f16(value);
        if (col == 0) ((DEVICE f32*)in.out_scales)[row] = 1.0f;
    }
}

// The weight of each split of a head, padded to 32: EXP(its maximum − the overall maximum) / the overall softmax sum.
INLINE void split_weights(Bindings in, const DEVICE f32* parts, THREADGROUP f32* weights, Task task, Place at) {
    const u32 splits = task.span.splits;
    for (u32 g = SIMD; g < task.heads; g += SIMDS) {
        const bool mine = LANE < splits;
        const DEVICE f32* part = parts + (mine ? LANE : 0) * TILE_FLOATS + g * PART + HEAD_DIM;
        const f32 score = mine ? published(&part[0]) : LOWEST, most = SIMD_MAX(score);
        const f32 weight = mine ? EXP(score - most) : 0.0f;
        weights[g * 32 + LANE] = weight * inverse_total(in, task.first_head + g, most, SIMD_SUM(weight * published(&part[1])));
    }
    BARRIER();
}

// Partial results that a thread loads at once, and the elements that they belong to.
#define PARTS_IN_FLIGHT 64
#define AT_ONCE (PARTS_IN_FLIGHT / SPLITS)

// The last threadgroup of a row and tile combines the splits.
INLINE void finish_splits(Bindings in, const DEVICE f32* parts, Task task, Place at) {
    const u32 splits = task.span.splits, all = task.heads * HEAD_DIM;
    TG_ARRAY(f32, weights, 16);
    for (u32 first = at.in_group; first < all + at.in_group; first += AT_ONCE * THREADS) {
        f32 part[PARTS_IN_FLIGHT];
        UNROLL for (u32 k = 0; k < AT_ONCE; k++) {
            const u32 e = first + k * THREADS;
            const DEVICE f32* from = parts + e / HEAD_DIM * PART + e % HEAD_DIM;
            UNROLL for (u32 i = 0; i < SPLITS; i++) part[k * SPLITS + i] = e < all && i < splits ? published(&from[i * TILE_FLOATS]) : 0.0f;
        }
        // The weights are computed while these loads are in flight.
        if (first == at.in_group) split_weights(in, parts, weights, task, at);
        UNROLL for (u32 k = 0; k < AT_ONCE; k++) {
            const u32 e = first + k * THREADS, g = e / HEAD_DIM;
            if (e >= all) break;
            f32 sum = 0;
            UNROLL for (u32 i = 0; i < SPLITS; i++) sum += (i < splits ? weights[g * 32 + i] : 0.0f) * part[k * SPLITS + i];
            store_head(in, task.row, task.first_head, e, sum, LANE);
        }
    }
}

// Merges the partial results of the SIMD groups. If the row has one split that is the output; otherwise the result
// goes to scratch memory, and the last threadgroup to finish combines the splits.
INLINE void finish_heads(Bindings in, DEVICE u8* scratch, const THREADGROUP f32* parts, Task task, Place at) {
    const u32 group = task.row * (KV_HEADS * TILES) + task.tile;
    const bool whole = task.span.splits == 1;
    DEVICE f32* stretches = (DEVICE f32*)(scratch + COUNTER_BYTES) + (u64)group * SPLITS * TILE_FLOATS;
    DEVICE f32* stretch = stretches + task.split * TILE_FLOATS;
    for (u32 e = at.in_group; e < task.heads * HEAD_DIM; e += THREADS) {
        const u32 g = e / HEAD_DIM, d = e % HEAD_DIM;
        const THREADGROUP f32* part = parts + g * PART;
        f32 most = LOWEST, total = 0, sum = 0;
        UNROLL for (u32 i = 0; i < SIMDS; i++) most = MAX_F32(most, part[i * TILE_FLOATS + HEAD_DIM]);
        UNROLL for (u32 i = 0; i < SIMDS; i++) {
            const f32 weight = EXP(part[i * TILE_FLOATS + HEAD_DIM] - most);
            total += weight * part[i * TILE_FLOATS + HEAD_DIM + 1];
            sum += weight * part[i * TILE_FLOATS + d];
        }
        if (whole) {
            store_head(in, task.row, task.first_head, e, sum * inverse_total(in, task.first_head + g, most, total), LANE);
        } else {
            publish(&stretch[g * PART + d], sum);
            if (d == 0) {
                publish(&stretch[g * PART + HEAD_DIM], most);
                publish(&stretch[g * PART + HEAD_DIM + 1], total);
            }
        }
    }
    if (!whole && last_to_finish(scratch, group, task.span.splits, at)) finish_splits(in, stretches, task, at);
}

#if ROPE
// Rotates the threadgroup's query heads and scales them, and prepares the own position's key and value if the split
// contains it. One SIMD group per head.
INLINE void rotate_heads(Bindings in, Params params, Task task, THREADGROUP f32* rotated, Place at) {
    const u32 kv_head = task.first_head / GROUP, lane = LANE;
    const bool stores = task.first_head % GROUP == 0, has_own = task.span.from <= task.span.own && task.span.own < task.span.end;
    const DEVICE f32* qkv = (const DEVICE f32*)in.qkv;
    const DEVICE f32* angles = (const DEVICE f32*)in.angles;
    const DEVICE f32 *q_norm = (const DEVICE f32*)in.q_norm, *k_norm = (const DEVICE f32*)in.k_norm;
    THREADGROUP f32* const key = rotated + HEAD_TILE * HEAD_DIM;
    // Key and value first, as they take longest.
    for (u32 i = SIMD; i < task.heads + 2; i += SIMDS) {
        if (i >= 2) {
            const DEVICE f32* from = qkv + (task.first_head + i - 2) * HEAD_DIM;
            put_rotated(from, q_norm, angles, params.attention.epsilon, QUERY_SCALE(in, params, task.place), rotated + (i - 2) * HEAD_DIM, lane);
        } else if (has_own) {
            const DEVICE f32* from = qkv + (HEADS + i * KV_HEADS + kv_head) * HEAD_DIM;
            const u32 place = kv_place(in, task.place.start + task.place.position);
            DEVICE u8* to = kv_row(i == 0 ? in.k_cache : in.v_cache, kv_head, place);
            THREADGROUP f32* const own = key + i * HEAD_DIM;
            if (i == 0) put_rotated(from, k_norm, angles, params.attention.epsilon, 1.0f, own, lane);
            SIMD_SYNC();
            EACH_OF(e, HEAD_DIM) own[e] = kv_put(to, e, i == 0 ? own[e] : from[e], lane, stores);
        }
    }
}
#endif
