// Bit-identical to akunu_plan::random: times, plus and over are single operations that the compiler must not contract.

struct Four {
    u32 words[4];
};

// Philox4x32-10.
INLINE Four philox(u32 c0, u32 c1, u32 c2, u32 k0, u32 k1) {
    u32 c3 = 0;
    UNROLL for (u32 i = 0; i < 10; i++) {
        const u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
        c0 = (u32)(b >> 32) ^ c1 ^ k0;
        c2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b;
        c3 = (u32)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const Four four = {{c0, c1, c2, c3}};
    return four;
}

INLINE f32 natural_log(f32 x) {
    const i32 e = (i32)(as_u32(x) - 0x3f3504f3u) >> 23;
    const f32 m = as_f32(as_u32(x) - ((u32)e << 23));
    const f32 s = over(plus(m, -1.0f), plus(m, 1.0f)), z = times(s, s);
    f32 series = 2.0f / 9.0f;
    series = plus(times(series, z), 2.0f / 7.0f);
    series = plus(times(series, z), 2.0f / 5.0f);
    series = plus(times(series, z), 2.0f / 3.0f);
    const f32 low = plus(times(times(s, z), series), times((f32)e, 1.4286068e-6f));
    return plus(times((f32)e, 0.69314575f), plus(times(2.0f, s), low));
}

INLINE f32 exponential(u32 x) {
    const f32 unit = 1.0f / 4294967296.0f;
    if (x < 0x80000000u) return -natural_log(times(plus((f32)x, 0.5f), unit));
    const f32 w = times(plus((f32)~x, 0.5f), unit);
    const f32 s = over(w, plus(2.0f, -w)), z = times(s, s);
    f32 series = 1.0f / 15.0f;
    series = plus(times(series, z), 1.0f / 13.0f);
    series = plus(times(series, z), 1.0f / 11.0f);
    series = plus(times(series, z), 1.0f / 9.0f);
    series = plus(times(series, z), 1.0f / 7.0f);
    series = plus(times(series, z), 1.0f / 5.0f);
    series = plus(times(series, z), 1.0f / 3.0f);
    return times(2.0f, plus(s, times(times(s, z), series)));
}

INLINE f32 gumbel(u32 x) { return -natural_log(exponential(x)); }

// 2^31 · e^x for x up to 0.
INLINE u32 weight_of(f32 x) {
    const f32 t = times(x, 1.44269504f);
    if (!(t >= -33.0f)) return 0;
    const i32 n = (i32)plus(t, -0.5f);
    const f32 r = times(plus(t, -(f32)n), 0.693147181f);
    f32 series = 1.0f / 5040.0f;
    series = plus(times(series, r), 1.0f / 720.0f);
    series = plus(times(series, r), 1.0f / 120.0f);
    series = plus(times(series, r), 1.0f / 24.0f);
    series = plus(times(series, r), 1.0f / 6.0f);
    series = plus(times(series, r), 0.5f);
    series = plus(times(series, r), 1.0f);
    series = plus(times(series, r), 1.0f);
    return (u32)times(times(series, as_f32((u32)(n + 127) << 23)), 2147483648.0f);
}
