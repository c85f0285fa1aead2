// With X_F16, K and V are f16 as their products have left them: they are scaled, and their biases are added.
// Writes Q, if HEADS is not 0, to `q` and K and V to the cache, as they are: for models without rotation. A thread takes
// four consecutive numbers of ROWS_EACH rows, whose loads are all in flight at once.

#define NUMBERS ((HEADS + 2 * KV_HEADS) * HEAD_DIM)

INLINE void store_four(DEVICE u8* to, u32x4 four) {
#if KV_TYPE == 0
    *(DEVICE u32x4*)to = four;
#else
    const u32x2 halves = {two_halves(as_f32(four.x), as_f32(four.y)), two_halves(as_f32(four.z), as_f32(four.w))};
    *(DEVICE u32x2*)to = halves;
#endif
}

INLINE u32x4 read_four(Bindings in, u32 row, u32 n) {
#if X_F16
    const u32x2 two = read8(in.x_f16 + ((u64)row * NUMBERS + n) * 2);
    const f32 scale = ((const DEVICE f32*)in.x_scales)[row];
    const u32x4 four = {
        as_u32(scale * f16_to_f32((u16)two.x)), as_u32(scale * f16_to_f32((u16)(two.x >> 16))),
        as_u32(scale * f16_to_f32((u16)two.y)), as_u32(scale * f16_to_f32((u16)(two.y >> 16))),
    };
    return four;
#else
    return read16(in.qkv + ((u64)row * NUMBERS + n) * 4);
#endif
}

INLINE u32x4 add_four(u32x4 a, u32x4 b) {
    const u32x4 sum = {
        as_u32(as_f32(a.x) + as_f32(b.x)), as_u32(as_f32(a.y) + as_f32(b.y)),
        as_u32(as_f32(a.z) + as_f32(b.z)), as_u32(as_f32(a.w) + as_f32(b.w)),
    };
    return sum;
}

BODY(kv_write) {
    const u32 n = (at.group_x * THREADS + at.in_group) * 4, first = at.group_y * ROWS_EACH, live = live_rows(pass, false);
    const u32 of_part = KV_HEADS * HEAD_DIM;
    u32x4 bias = {0, 0, 0, 0};
    if (BIAS && n < NUMBERS) bias = read16(n < of_part ? in.k_bias + n * 4 : in.v_bias + (n - of_part) * 4);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (first >= live || n >= NUMBERS) return;
    u32x4 fours[ROWS_EACH];
    Row places[ROWS_EACH];
    UNROLL for (u32 r = 0; r < ROWS_EACH; r++) {
        const u32 row = first + r < live ? first + r : first;
        fours[r] = read_four(in, row, n);
        if (BIAS) fours[r] = add_four(fours[r], bias);
        places[r] = ((const DEVICE Row*)in.rows)[row];
    }
    const u32 h = n / HEAD_DIM, i = n % HEAD_DIM;
    // Compilers warn of `h < HEADS` where HEADS is 0.
    const bool query = h + 1 <= HEADS, key = h < HEADS + KV_HEADS;
    UNROLL for (u32 r = 0; r < ROWS_EACH; r++) {
        if (first + r >= live) break;
        if (query) {
            *(DEVICE u32x4*)(in.q + (((u64)(first + r) * HEADS + h) * HEAD_DIM + i) * 4) = fours[r];
        } else {
            const u32 place = kv_place(in, places[r].start + places[r].position);
            DEVICE u8* to = kv_row(key ? in.k_cache : in.v_cache, h - HEADS - (key ? 0 : KV_HEADS), place);
            store_four(to + (u64)i * KV_ROW_BYTES / HEAD_DIM, fours[r]);
        }
    }
}
