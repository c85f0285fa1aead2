// Codes of 32 weights in bit planes. BITS is 2, 3, 4, 5, 6 or 8; a plane is [row][block].
//
//   low plane    2 and 3 bits: 8 bytes per block; 4, 5, 6: 16; 8: 32
//   high plane   the bits above those of the low plane. 3 and 5 bits: 4 bytes; 6: 8
//
// Word j of a block (elements 4j … 4j + 3, one per byte) is extracted with shifts and masks only:
//   2 bits   byte b of half h has element 16h + 4k + b at bits 2k
//   4 bits   byte i has element i in the low nibble, element i + 16 in the high one
//   1 bit    byte b has element 4j + b at bit j

#if BITS == 8
#define LOW_WORDS 8
#elif BITS >= 4
#define LOW_WORDS 4
#else
#define LOW_WORDS 2
#endif
#if BITS == 6
#define HIGH_WORDS 2
#elif BITS == 3 || BITS == 5
#define HIGH_WORDS 1
#else
#define HIGH_WORDS 0
#endif

// A matrix has PLANES planes, codes first, each [row][block]. PLANE_k is the number of bytes of eight blocks in plane
// k.
INLINE u32 plane_bytes(u32 plane) {
    return plane == 0 ? PLANE_0 : plane == 1 ? PLANE_1 : plane == 2 ? PLANE_2 : plane == 3 ? PLANE_3 : PLANE_4;
}

struct Codes {
    u32 low[LOW_WORDS];
    u32 high[HIGH_WORDS + 1];
};

// `high` is not read for types without a high plane.
INLINE Codes load_codes(const DEVICE u8* planes, const DEVICE u8* high, u64 block) {
    Codes codes;
#if BITS == 8
    const u32x4 a = weights16_half(planes + block * 32), b = weights16_half(planes + block * 32 + 16);
    codes.low[0] = a.x; codes.low[1] = a.y; codes.low[2] = a.z; codes.low[3] = a.w;
    codes.low[4] = b.x; codes.low[5] = b.y; codes.low[6] = b.z; codes.low[7] = b.w;
#elif BITS >= 4
    const u32x4 a = weights16(planes + block * 16);
    codes.low[0] = a.x; codes.low[1] = a.y; codes.low[2] = a.z; codes.low[3] = a.w;
#else
    const u32x2 a = weights8(planes + block * 8);
    codes.low[0] = a.x; codes.low[1] = a.y;
#endif
#if HIGH_WORDS == 2
    const u32x2 h = weights8(high + block * 8);
    codes.high[0] = h.x; codes.high[1] = h.y;
#elif HIGH_WORDS == 1
    codes.high[0] = weights4(high + block * 4);
#endif
    return codes;
}

// Elements 4j … 4j + 3, unsigned.
INLINE u32 code_word(Codes codes, u32 j) {
#if BITS == 8
    return codes.low[j];
#elif BITS >= 4
    u32 word = codes.low[j % 4] >> (j / 4 * 4) & 0x0f0f0f0fu;
#else
    u32 word = codes.low[j / 4] >> (j % 4 * 2) & 0x03030303u;
#endif
#if BITS == 5
    word |= (codes.high[0] >> j & 0x01010101u) << 4;
#elif BITS == 3
    word |= (codes.high[0] >> j & 0x01010101u) << 2;
#elif BITS == 6
    word |= (codes.high[j / 4] >> (j % 4 * 2) & 0x03030303u) << 4;
#endif
#if BITS < 8
    return word;
#endif
}

// Elements 4q … 4q + 3 and 16 + 4q … 16 + 4q + 3, unsigned, from the words that contain them.
INLINE u32x2 code_pair(u32x2 low, u32x2 high, u32 q) {
#if BITS == 8
    return low;
#elif BITS >= 4
    u32x2 pair = {low.x & 0x0f0f0f0fu, low.x >> 4 & 0x0f0f0f0fu};
#else
    u32x2 pair = {low.x >> (2 * q) & 0x03030303u, low.y >> (2 * q) & 0x03030303u};
#endif
#if BITS == 6
    pair.x |= (high.x >> (2 * q) & 0x03030303u) << 4;
    pair.y |= (high.y >> (2 * q) & 0x03030303u) << 4;
#elif BITS == 5 || BITS == 3
    pair.x |= (high.x >> q & 0x01010101u) << (BITS - 1);
    pair.y |= (high.x >> (q + 4) & 0x01010101u) << (BITS - 1);
#endif
#if BITS < 8
    return pair;
#endif
}
