// Words of cuda/tensor.h, lane by lane as their instructions are defined.

namespace emulated {

// Words that a lane brings to a meeting, and copies that it may have under way.
enum { WORDS = 6, MOST_COPIES = 64 };

static u32 brought[MOST_THREADS / LANES][2][LANES][WORDS];

struct Copy {
    u8* to;
    const u8* from;
    u32 bytes;
};

static Copy copies[MOST_THREADS][MOST_COPIES];
static u32 copy_counts[MOST_THREADS];

// What each lane of the SIMD group brought.
typedef const u32 (*Brought)[WORDS];

static Brought meet(const u32* words, u32 count, int line) {
    u32 (*all)[WORDS] = brought[thread / LANES][fibres[thread].turn];
    memcpy(all[thread % LANES], words, count * 4);
    exchange(0, 0, line);
    return all;
}

// Nothing arrives before the thread waits for it.
static void copy(void* to, const u8* from, u32 bytes, bool there, int line) {
    if ((uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0) fail("a copy from or to an address that is not aligned", line);
    else if (copy_counts[thread] == MOST_COPIES) fail("more copies than the emulator remembers", line);
    else copies[thread][copy_counts[thread]++] = {(u8*)to, there ? from : nullptr, bytes};
}

static void copies_done() {
    for (u32 i = 0; i < copy_counts[thread]; i++) {
        const Copy copy = copies[thread][i];
        if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
        else memset(copy.to, 0, copy.bytes);
    }
    copy_counts[thread] = 0;
}

struct Quad { u32 v[4]; };

static Quad load_lines(const u8* line_at, int line) {
    if ((uintptr_t)line_at % 16 != 0) fail("a line that is not aligned", line);
    u32 words[2];
    memcpy(words, &line_at, 8);
    const Brought brought = meet(words, 2, line);
    const u32 lane = thread % LANES;
    Quad quad;
    for (u32 m = 0; m < 4; m++) {
        const u8* from;
        memcpy(&from, brought[m * 8 + lane / 4], 8);
        memcpy(&quad.v[m], from + lane % 4 * 4, 4);
    }
    return quad;
}

static Quad load_lines_aside(const u8* line_at, int line) {
    if ((uintptr_t)line_at % 16 != 0) fail("a line that is not aligned", line);
    u32 words[2];
    memcpy(words, &line_at, 8);
    const Brought brought = meet(words, 2, line);
    const u32 lane = thread % LANES;
    Quad quad;
    for (u32 m = 0; m < 4; m++) {
        u16 halves[2];
        for (u32 i = 0; i < 2; i++) {
            const u8* from;
            memcpy(&from, brought[m * 8 + lane % 4 * 2 + i], 8);
            memcpy(&halves[i], from + lane / 4 * 2, 2);
        }
        quad.v[m] = halves[0] | (u32)halves[1] << 16;
    }
    return quad;
}

// `pieces` of 16 elements: of each, two rows' words in `a`, then a column's in `b`.
static Quad multiply(const u32* a, const u32* b, u32 pieces, u32 start, int line) {
    u32 words[WORDS];
    memcpy(words, a, pieces * 8);
    memcpy(words + pieces * 2, b, pieces * 4);
    const Brought brought = meet(words, pieces * 3, line);
    const u32 g = thread % LANES / 4, t = thread % 4;
    Quad quad;
    for (u32 e = 0; e < 4; e++) {
        u32 sum = start;
        for (u32 i = 0; i < pieces * 16; i++) {
            const u32 piece = i / 16, lane = i % 16 / 4, shift = i % 4 * 8;
            const u32 row = brought[g * 4 + lane][piece * 2 + e / 2], column = brought[(2 * t + e % 2) * 4 + lane][pieces * 2 + piece];
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

static Floats multiply_halves(Quad a, u32 b0, u32 b1, Floats sums, int line) {
    const u32 words[6] = {a.v[0], a.v[1], a.v[2], a.v[3], b0, b1};
    const Brought brought = meet(words, 6, line);
    const u32 g = thread % LANES / 4, t = thread % 4;
    for (u32 e = 0; e < 4; e++) {
        f32 sum = sums.v[e];
        for (u32 i = 0; i < 16; i++) {
            const u32 lane = i % 8 / 2, piece = i / 8;
            const u32 row = brought[g * 4 + lane][piece * 2 + e / 2], column = brought[(2 * t + e % 2) * 4 + lane][4 + piece];
            sum += half_of(row, i) * half_of(column, i);
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
    const Brought brought = meet(words, 6, line);
    const u32 g = thread % LANES / 4, t = thread % 4;
    for (u32 e = 0; e < 4; e++) {
        for (u32 i = 0; i < 8; i++) {
            const u32 row = brought[g * 4 + i % 4][i / 4 * 2 + e / 2], column = brought[(2 * t + e % 2) * 4 + i % 4][4 + i / 4];
            sums.v[e] += tf32_of(row) * tf32_of(column);
        }
    }
    return sums;
}

}  // namespace emulated

typedef emulated::Quad Quad;
#define copy16(to, from, there) emulated::copy(to, from, 16, there, __LINE__)
#define copy8(to, from, there) emulated::copy(to, from, 8, there, __LINE__)
#define copy4(to, from, there) emulated::copy(to, from, 4, there, __LINE__)
#define EXP2 exp2f
#define COPIES_DONE() emulated::copies_done()
#define load_lines(line) emulated::load_lines(line, __LINE__)
typedef emulated::Floats Floats;
#define load_lines_aside(line) emulated::load_lines_aside(line, __LINE__)
#define multiply_halves(a, b0, b1, sums) emulated::multiply_halves(a, b0, b1, sums, __LINE__)
#define multiply_tf32(a, b0, b1, sums) emulated::multiply_tf32(a, b0, b1, sums, __LINE__)
#define multiply_16(a0, a1, b, start) emulated::multiply_16(a0, a1, b, start, __LINE__)
#define multiply_32(a, b0, b1, start) emulated::multiply_32(a, b0, b1, start, __LINE__)
