// Emulates cuda/warpgroup.h. Each lane computes its own sums at once.

namespace emulated {

struct Tile {
    const u8* space;
    u32 offset;
};

static f32 half_at(const u8* space, u32 at) {
    u16 bits;
    memcpy(&bits, space + at, 2);
    return half_of(bits, 0);
}

template <u32 count>
static void multiply_warpgroup(f32* sums, Quad a, Tile rows, u32 more, int line) {
    const u8* const space = rows.space;
    const u32 offset = rows.offset + more;
    const Contributed contributed = gather(a.v, 4, line);
    const u32 g = thread % LANES / 4, t = thread % 4;
    f32 weights[2][16];
    for (u32 r = 0; r < 2; r++) {
        for (u32 i = 0; i < 16; i++) weights[r][i] = half_of(contributed[g * 4 + i % 8 / 2][i / 8 * 2 + r], i);
    }
    for (u32 j = 0; j < count / 8; j++) {
        for (u32 c = 0; c < 2; c++) {
            const u32 row = 8 * j + 2 * t + c;
            for (u32 i = 0; i < 16; i++) {
                const u32 straight = offset + row * 128 + i * 2, swizzled = straight ^ (straight >> 7 & 7) << 4;
                const f32 x = half_at(space, swizzled);
                for (u32 r = 0; r < 2; r++) sums[4 * j + 2 * r + c] += weights[r][i] * x;
            }
        }
    }
}

// The products and sums of halves below are exact in f32.
static u32 of_halves(u32 a, u32 b, u32 c, f32 (*of)(f32, f32, f32)) {
    u32 both = 0;
    for (u32 i = 0; i < 2; i++) {
        const f32 value = of(half_of(a, i), half_of(b, i), half_of(c, i));
        u32 bits;
        memcpy(&bits, &value, 4);
        both |= (u32)f32_bits_to_f16(bits) << 16 * i;
    }
    return both;
}

}  // namespace emulated

typedef emulated::Tile Tile;
static inline Tile tile_at(const u8* space, u32 offset) { return {space, offset}; }
#define IN_REGISTER(name, value) const u32 name = value
#define multiply_warpgroup(sums, a, rows, offset) emulated::multiply_warpgroup<ROWS>(sums, a, rows, offset, __LINE__)
static inline u32 plus_halves(u32 a, u32 b) { return emulated::of_halves(a, b, 0, [](f32 x, f32 y, f32) { return x + y; }); }
static inline u32 times_halves(u32 a, u32 b) { return emulated::of_halves(a, b, 0, [](f32 x, f32 y, f32) { return x * y; }); }
static inline u32 fused_halves(u32 a, u32 b, u32 c) { return emulated::of_halves(a, b, c, [](f32 x, f32 y, f32 z) { return x * y + z; }); }
#define SHOW_COPIES()
#define BEGIN_PRODUCTS()
#define END_PRODUCTS()
#define PRODUCTS_DONE_BUT(n)
