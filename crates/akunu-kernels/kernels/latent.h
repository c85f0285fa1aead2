// Latent attention, and what goes before and after it. HEADS heads; a row of the cache is a vector of LATENT numbers and a
// rotated key of ROPE_DIMS. What is sorted by head has all live rows of the first head, then those of the next.

#ifdef LATENT_ROWS
// A SIMD group normalises the vector of a row, rotates its key, and stores both in the cache.
BODY(latent_kv) {
    const u32 row = at.group_x, live = live_rows(pass, false);
    const Row place = ((const DEVICE Row*)in.rows)[row < live ? row : 0];
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    TG_ARRAY(f32, made, 0);
    const DEVICE f32* x = (const DEVICE f32*)in.x + (u64)row * HEAD_DIM;
    const DEVICE f32* norm = (const DEVICE f32*)in.norm;
    const DEVICE f32* angles = (const DEVICE f32*)in.angles + (u64)row * ROPE_DIMS;
    f32 squares = 0;
    for (u32 i = LANE; i < LATENT; i += 32) squares += x[i] * x[i];
    const f32 scale = 1.0f / SQRT(SIMD_SUM(squares) / (f32)LATENT + params.latent_kv.epsilon);
    for (u32 i = LANE; i < HEAD_DIM; i += 32) made[i] = i < LATENT ? x[i] * scale * norm[i] : x[i];
    SIMD_SYNC();
    for (u32 i = LANE; i < ROPE_DIMS / 2; i += 32) rotate_pair(made + LATENT, i, angles[2 * i], angles[2 * i + 1]);
    SIMD_SYNC();
    kv_store(kv_row(in.cache, 0, kv_place(in, place.start + place.position)), made, LANE);
}
#endif

#ifdef HEAD_STRIDE
// The first COLS numbers of each head, sorted by head. One thread per element.
BODY(heads_apart) {
    const u32 col = at.group_x * THREADS + at.in_group, sorted = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (sorted >= live * HEADS || col >= COLS) return;
    DEVICE u32* starts = (DEVICE u32*)in.starts;
    if (col == 0 && sorted < HEADS) starts[sorted] = sorted * live;
    if (col == 0 && sorted == 0) starts[HEADS] = HEADS * live;
    const u32 head = sorted / live, row = sorted % live;
    store_element(in, sorted, col, ((const DEVICE f32*)in.x)[((u64)row * HEADS + head) * HEAD_STRIDE + col], LANE);
}
#endif

#ifdef EACH_HEAD
// Rows of all heads, from what is sorted by head. One thread per element.
BODY(heads_together) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const u32 head = col / EACH_HEAD, i = col % EACH_HEAD;
    store_element(in, row, col, ((const DEVICE f32*)in.x)[((u64)head * live + row) * EACH_HEAD + i], LANE);
}
#endif

#ifdef PLAIN
// A head's query: what its matrix made of the part without RoPE, sorted by head, and the rotated part. One thread per element.
BODY(latent_queries) {
    const u32 col = at.group_x * THREADS + at.in_group, row = at.group_y, live = live_rows(pass, false);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live || col >= COLS) return;
    const u32 head = col / (LATENT + ROPE_DIMS), i = col % (LATENT + ROPE_DIMS);
    f32 value;
    if (i < LATENT) {
        value = ((const DEVICE f32*)in.x)[((u64)head * live + row) * LATENT + i];
    } else {
        const DEVICE f32* from = (const DEVICE f32*)in.q + ((u64)row * HEADS + head) * (PLAIN + ROPE_DIMS) + PLAIN;
        const u32 own = i - LATENT, pair = STYLE == 1 ? own / 2 : own % (ROPE_DIMS / 2);
        const DEVICE f32* angles = (const DEVICE f32*)in.angles + (u64)row * ROPE_DIMS + 2 * pair;
        const f32 x = from[PAIR_FIRST(pair)], y = from[PAIR_SECOND(pair)], c = angles[0], s = angles[1];
        value = own == PAIR_FIRST(pair) ? x * c - y * s : x * s + y * c;
    }
    ((DEVICE f32*)in.out)[(u64)row * COLS + col] = value;
}
#endif

#ifdef HEAD_TILE
// Numbers of a SIMD group's result of a head: the largest score, the sum of weights, the weighted sums.
#define PART (LATENT + 2)

// A threadgroup has HEAD_TILE heads of a row, whose queries are in threadgroup memory. Each SIMD group takes every SIMDS-th
// position: its lanes hold the cached row, which is key and value of all heads, in KEY_PIECES numbers each, of which the first
// VALUE_PIECES are the value's.
BODY(latent_attention) {
    const u32 row = at.group_y, first = at.group_x * HEAD_TILE, live = live_rows(pass, false);
    const Row own = ((const DEVICE Row*)in.rows)[row < live ? row : 0];
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (row >= live) return;
    TG_ARRAY(f32, queries, 0);
    TG_ARRAY(f32, parts, HEAD_TILE * HEAD_DIM * 4);
    for (u32 i = at.in_group; i < HEAD_TILE * HEAD_DIM; i += THREADS) {
        const u32 head = first + i / HEAD_DIM;
        const DEVICE f32* q = (const DEVICE f32*)in.q + ((u64)row * HEADS + (head < HEADS ? head : 0)) * HEAD_DIM;
        queries[i] = q[i % HEAD_DIM] * params.latent_attention.scale;
    }
    BARRIER();
    f32 sums[HEAD_TILE][VALUE_PIECES], most[HEAD_TILE], total[HEAD_TILE];
    UNROLL for (u32 h = 0; h < HEAD_TILE; h++) {
        most[h] = as_f32(0xff800000u);
        total[h] = 0;
        UNROLL for (u32 k = 0; k < VALUE_PIECES; k++) sums[h][k] = 0;
    }
    for (u32 position = SIMD; position < own.kv_len; position += SIMDS) {
        const DEVICE u8* from = kv_row(in.cache, 0, kv_place(in, own.start + position));
        f32 key[KEY_PIECES];
        UNROLL for (u32 k = 0; k < KEY_PIECES; k++) key[k] = k * 32 + LANE < HEAD_DIM ? kv_load(from, k * 32 + LANE) : 0.0f;
        UNROLL for (u32 h = 0; h < HEAD_TILE; h++) {
            f32 score = 0;
            UNROLL for (u32 k = 0; k < KEY_PIECES; k++) {
                if (k * 32 + LANE < HEAD_DIM) score += key[k] * queries[h * HEAD_DIM + k * 32 + LANE];
            }
            score = SIMD_SUM(score);
            const f32 now = MAX_F32(most[h], score), keep = EXP(most[h] - now), weight = EXP(score - now);
            most[h] = now;
            total[h] = total[h] * keep + weight;
            UNROLL for (u32 k = 0; k < VALUE_PIECES; k++) sums[h][k] = sums[h][k] * keep + weight * key[k];
        }
    }
    UNROLL for (u32 h = 0; h < HEAD_TILE; h++) {
        THREADGROUP f32* const part = parts + (SIMD * HEAD_TILE + h) * PART;
        if (LANE == 0) {
            part[0] = most[h];
            part[1] = total[h];
        }
        UNROLL for (u32 k = 0; k < VALUE_PIECES; k++) {
            if (k * 32 + LANE < LATENT) part[2 + k * 32 + LANE] = sums[h][k];
        }
    }
    BARRIER();
    for (u32 piece = SIMD; piece < HEAD_TILE * VALUE_PIECES; piece += SIMDS) {
        const u32 h = piece / VALUE_PIECES, i = piece % VALUE_PIECES * 32 + LANE;
        if (first + h >= HEADS || i >= LATENT) continue;
        // The first SIMD group has a position whenever there is one.
        f32 highest = parts[h * PART];
        for (u32 simd = 1; simd < SIMDS; simd++) highest = MAX_F32(highest, parts[(simd * HEAD_TILE + h) * PART]);
        f32 sum = 0, weights = 0;
        for (u32 simd = 0; simd < SIMDS; simd++) {
            const THREADGROUP f32* part = parts + (simd * HEAD_TILE + h) * PART;
            if (part[1] == 0.0f) continue;
            const f32 keep = EXP(part[0] - highest);
            sum += part[2 + i] * keep;
            weights += part[1] * keep;
        }
        store_element(in, (first + h) * live + row, i, sum / weights, LANE);
    }
}
#endif
