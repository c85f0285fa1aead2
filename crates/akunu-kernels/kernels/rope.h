// Rotation of a head that a SIMD group has in threadgroup memory.

// The elements of pair i: STYLE 0 is half-split, 1 interleaved.
#define PAIR_FIRST(i) (STYLE == 1 ? 2 * (i) : (i))
#define PAIR_SECOND(i) (STYLE == 1 ? 2 * (i) + 1 : (i) + ROPE_DIMS / 2)

INLINE void rotate(THREADGROUP f32* head, u32 i, f32 c, f32 s) {
    const f32 x = head[PAIR_FIRST(i)], y = head[PAIR_SECOND(i)];
    head[PAIR_FIRST(i)] = x * c - y * s;
    head[PAIR_SECOND(i)] = x * s + y * c;
}
