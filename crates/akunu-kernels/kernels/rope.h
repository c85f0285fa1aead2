// RoPE of one head held in threadgroup memory by a SIMD group.

// The two elements of pair i. STYLE 0 is half-split (NeoX), 1 interleaved.
#define PAIR_FIRST(i) (STYLE == 1 ? 2 * (i) : (i))
#define PAIR_SECOND(i) (STYLE == 1 ? 2 * (i) + 1 : (i) + ROPE_DIMS / 2)

INLINE void rotate_pair(THREADGROUP f32* head, u32 i, f32 c, f32 s) {
    const f32 x = head[PAIR_FIRST(i)], y = head[PAIR_SECOND(i)];
    head[PAIR_FIRST(i)] = x * c - y * s;
    head[PAIR_SECOND(i)] = x * s + y * c;
}

#ifdef QK_NORM
// Iterates over this lane's share of n numbers, with the same trip count in every lane so that the loop can be
// unrolled. Compilers warn of `i < n` where n is 0.
#define EACH_OF(i, n) UNROLL for (u32 i = lane; i - lane + 1 <= (n); i += 32) if (i + 1 <= (n))

// A SIMD group reads a head as the product wrote it, normalises it (with QK_NORM), rotates it, scales it by `factor`
// and stores it in threadgroup memory. Each lane handles whole pairs, so that all loads are in flight at once.
INLINE void put_rotated(const DEVICE f32* from, const DEVICE f32* norm, const DEVICE f32* angles, f32 epsilon, f32 factor,
                       THREADGROUP f32* to, u32 lane) {
    f32 scale = factor;
    if (QK_NORM) {
        f32 squares = 0;
        EACH_OF(i, HEAD_DIM) squares += from[i] * from[i];
        scale = factor / SQRT(SIMD_SUM(squares) / (f32)HEAD_DIM + epsilon);
    }
    EACH_OF(i, ROPE_DIMS / 2) {
        const u32 a = PAIR_FIRST(i), b = PAIR_SECOND(i);
        const f32 x = from[a] * scale * (QK_NORM ? norm[a] : 1.0f), y = from[b] * scale * (QK_NORM ? norm[b] : 1.0f);
        const f32 c = angles[2 * i], s = angles[2 * i + 1];
        to[a] = x * c - y * s;
        to[b] = x * s + y * c;
    }
    UNROLL for (u32 i = ROPE_DIMS + lane; i < HEAD_DIM; i += 32) to[i] = from[i] * scale * (QK_NORM ? norm[i] : 1.0f);
}
#endif
