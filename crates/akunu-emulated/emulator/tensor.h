// Emulates cuda/tensor.h, lane by lane, as the instructions are defined.

namespace emulated {

struct Quad { u32 v[4]; };

static Quad load_lines(const u8* line_at, int line) {
    if ((uintptr_t)line_at % 16 != 0) fail("a line that is not aligned", line);
    u32 words[2];
    memcpy(words, &line_at, 8);
    const Contributed contributed = gather(words, 2, line);
    const u32 lane = thread % LANES;
    Quad quad;
    for (u32 m = 0; m < 4; m++) {
        const u8* from;
        memcpy(&from, contributed[m * 8 + lane / 4], 8);
        memcpy(&quad.v[m], from + lane % 4 * 4, 4);
    }
    return quad;
}

static Quad load_lines_transposed(const u8* line_at, int line) {
    if ((uintptr_t)line_at % 16 != 0) fail("a line that is not aligned", line);
    u32 words[2];
    memcpy(words, &line_at, 8);
    const Contributed contributed = gather(words, 2, line);
    const u32 lane = thread % LANES;
    Quad quad;
    for (u32 m = 0; m < 4; m++) {
        u16 halves[2];
        for (u32 i = 0; i < 2; i++) {
            const u8* from;
            memcpy(&from, contributed[m * 8 + lane % 4 * 2 + i], 8);
            memcpy(&halves[i], from + lane / 4 * 2, 2);
        }
        quad.v[m] = halves[0] | (u32)halves[1] << 16;
    }
    return quad;
}

// Product over `pieces` × 16 elements: for each piece `a` has two rows' words, and `b` a column's.
static Quad multiply(const u32* a, const u32* b, u32 pieces, u32 start, int line) {
    u32 words[WORDS];
    memcpy(words, a, pieces * 8);
    memcpy(words + pieces * 2, b, pieces * 4);
    const Contributed contributed = gather(words, pieces * 3, line);
    const u32 g = thread % LANES / 4, t = thread % 4;
    Quad quad;
    for (u32 e = 0; e < 4; e++) {
        u32 sum = start;
        for (u32 i = 0; i < pieces * 16; i++) {
            const u32 piece = i / 16, lane = i % 16 / 4, shift = i % 4 * 8;
            const u32 row = contributed[g * 4 + lane][piece * 2 + e / 2], column = contributed[(2 * t + e % 2) * 4 + lane][pieces * 2 + piece];
            sum += (u32)((i8)(row >> shift) * (i8)(column >> shift));
        }
        quad.v[e] = sum;
    }
    return quad;
}

static Quad multiply_16(u32 a0, u32 a1, u32 b, u32 start, int line) {
    const u32 a[2] = {a0, a1};
    return multiply(a, &b, 1, start, line);
}

static Quad multiply_32(Quad a, u32 b0, u32 b1, u32 start, int line) {
    const u32 b[2] = {b0, b1};
    return multiply(a.v, b, 2, start, line);
}

struct Floats { f32 v[4]; };

static f32 half_of(u32 word, u32 i) {
    const u32 bits = f16_bits_to_f32_bits((u16)(word >> i % 2 * 16));
    f32 value;
    memcpy(&value, &bits, 4);
    return value;
}

static f32 bfloat_of(u32 word, u32 i) {
    const u32 bits = i % 2 == 0 ? word << 16 : word & 0xffff0000u;
    f32 value;
    memcpy(&value, &bits, 4);
    return value;
}

// To the nearest, ties to even.
static u32 bfloat_bits(f32 value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static u32 two_bfloats(f32 a, f32 b) { return bfloat_bits(a) | bfloat_bits(b) << 16; }

static u32 minus_bfloats(u32 a, u32 b) {
    return two_bfloats(bfloat_of(a, 0) - bfloat_of(b, 0), bfloat_of(a, 1) - bfloat_of(b, 1));
}

// `of`: element i of a word.
static Floats multiply_pairs(Quad a, u32 b0, u32 b1, Floats sums, f32 (*of)(u32 word, u32 i), int line) {
    const u32 words[6] = {a.v[0], a.v[1], a.v[2], a.v[3], b0, b1};
    const Contributed contributed = gather(words, 6, line);
    const u32 g = thread % LANES / 4, t = thread % 4;
    for (u32 e = 0; e < 4; e++) {
        f32 sum = sums.v[e];
        for (u32 i = 0; i < 16; i++) {
            const u32 lane = i % 8 / 2, piece = i / 8;
            const u32 row = contributed[g * 4 + lane][piece * 2 + e / 2], column = contributed[(2 * t + e % 2) * 4 + lane][4 + piece];
            sum += of(row, i) * of(column, i);
        }
        sums.v[e] = sum;
    }
    return sums;
}

static f32 tf32_of(u32 word) {
    const u32 bits = word & 0xffffe000u;
    f32 value;
    memcpy(&value, &bits, 4);
    return value;
}

static Floats multiply_tf32(Quad a, u32 b0, u32 b1, Floats sums, int line) {
    const u32 words[6] = {a.v[0], a.v[1], a.v[2], a.v[3], b0, b1};
    const Contributed contributed = gather(words, 6, line);
    const u32 g = thread % LANES / 4, t = thread % 4;
    for (u32 e = 0; e < 4; e++) {
        for (u32 i = 0; i < 8; i++) {
            const u32 row = contributed[g * 4 + i % 4][i / 4 * 2 + e / 2], column = contributed[(2 * t + e % 2) * 4 + i % 4][4 + i / 4];
            sums.v[e] += tf32_of(row) * tf32_of(column);
        }
    }
    return sums;
}

}  // namespace emulated

typedef emulated::Quad Quad;
#define load_lines(line) emulated::load_lines(line, __LINE__)
typedef emulated::Floats Floats;
#define load_lines_transposed(line) emulated::load_lines_transposed(line, __LINE__)
#define multiply_halves(a, b0, b1, sums) emulated::multiply_pairs(a, b0, b1, sums, emulated::half_of, __LINE__)
#define multiply_bfloats(a, b0, b1, sums) emulated::multiply_pairs(a, b0, b1, sums, emulated::bfloat_of, __LINE__)
using emulated::minus_bfloats;
using emulated::two_bfloats;
#define multiply_tf32(a, b0, b1, sums) emulated::multiply_tf32(a, b0, b1, sums, __LINE__)
#define multiply_16(a0, a1, b, start) emulated::multiply_16(a0, a1, b, start, __LINE__)
#define multiply_32(a, b0, b1, start) emulated::multiply_32(a, b0, b1, start, __LINE__)
