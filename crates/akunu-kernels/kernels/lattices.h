// Blocks of the IQ1 to IQ3 types. LATTICE is the type's number in GGUF files, POINTS its table: eight coordinates of two
// bits or four of three bits, the first one lowest. A plane is a field of the file's blocks:
//
//   IQ2_XXS 16   points, and signs with the scale: 8 bytes per block; d
//   IQ2_XS  17   points and signs: 8; scales of halves: 1; d
//   IQ2_S   22   points: 4; signs: 4; upper two bits of the points: 1; scales of halves: 1; d
//   IQ3_XXS 18   points: 8; signs with the scale: 4; d
//   IQ3_S   21   points: 8; signs: 4; ninth bits of the points: 1; two scales in a byte; d
//   IQ1_S   19   points: 4; upper three bits of the points, scale and shift: 2; d
//   IQ1_M   29   points: 4; upper three bits of the points and shifts: 2; scales and d: 8 per 256
//
// d is an f16 per 256. The coordinates of IQ1 are −8, 0 and 8, and a point is shifted by 1 or −1.

#define IQ2_XXS 16
#define IQ2_XS 17
#define IQ3_XXS 18
#define IQ1_S 19
#define IQ3_S 21
#define IQ2_S 22
#define IQ1_M 29

// The number of points that a block's elements take.
#define POINTS_OF_4 (LATTICE == IQ3_XXS || LATTICE == IQ3_S)

INLINE Raw load_block(Planes planes, u64 b) {
    Raw raw;
    raw.points[1] = raw.signs = raw.high = raw.more = 0;
#if LATTICE == IQ2_S || LATTICE == IQ1_S || LATTICE == IQ1_M
    raw.points[0] = weights4(planes.at[0] + b * 4);
#else
    const u32x2 points = weights8(planes.at[0] + b * 8);
    raw.points[0] = points.x;
    raw.points[1] = points.y;
#endif
#if LATTICE == IQ2_S || LATTICE == IQ3_S || LATTICE == IQ3_XXS
    raw.signs = weights4(planes.at[1] + b * 4);
#endif
#if LATTICE == IQ2_S
    raw.high = weights1(planes.at[2] + b);
    raw.more = weights1(planes.at[3] + b);
#elif LATTICE == IQ3_S
    raw.high = weights1(planes.at[2] + b);
    raw.more = weights1(planes.at[3] + b / 2) >> (b % 2 * 4) & 15;
#elif LATTICE == IQ2_XS
    raw.more = weights1(planes.at[1] + b);
#elif LATTICE == IQ1_S || LATTICE == IQ1_M
    raw.high = weights2(planes.at[1] + b * 2);
#endif
#if LATTICE == IQ1_M
    const u32x2 scales = weights8(planes.at[2] + b / 8 * 8);
    raw.scale = scales.x;
    raw.more = scales.y;
    raw.signs = (u32)(b % 8);
#else
    raw.scale = weights2(planes.at[PLANES - 1] + b / 8 * 2);
#endif
    return raw;
}

// The coordinates of four elements as bytes.
INLINE u32 coordinates(u32 code) {
#if POINTS_OF_4
    const u32 c = (code & 7) | (code & 0x38) << 5 | (code & 0x1c0) << 10 | (code & 0xe00) << 15;
    return LATTICE == IQ3_S ? 0x01010101u + 2 * c : 0x04040404u + 8 * c + 2 * (c & c >> 1 & c >> 2 & 0x01010101u);
#else
    const u32 pairs = (code & 15) | (code & 0xf0) << 12, c = (pairs & 0x00030003u) | (pairs & 0x000c000cu) << 6;
    // For IQ1 only the place of the coordinate: its meaning depends on the shift.
    return LATTICE == IQ1_S || LATTICE == IQ1_M ? c : 0x08080808u + 17 * c + (c >> 1 & 0x01010101u);
#endif
}

// The eight signs of point pair `i`. Types without a sign bit for each element have seven, which an eighth makes even.
INLINE u32 signs_of(Raw raw, u32 i) {
#if LATTICE == IQ2_S || LATTICE == IQ3_S
    return raw.signs >> (8 * i) & 255;
#else
#if LATTICE == IQ2_XXS
    const u32 seven = raw.points[1] >> (7 * i) & 127;
#elif LATTICE == IQ2_XS
    const u32 seven = raw.points[i / 2] >> (16 * (i % 2) + 9) & 127;
#else
    const u32 seven = raw.signs >> (7 * i) & 127;
#endif
    const u32 folded = seven ^ seven >> 4;
    return seven | (0x6996u >> (folded & 15) & 1) << 7;
#endif
}

// Negates the bytes, none of which is 0, whose bit of the lower four is set.
INLINE u32 negated(u32 word, u32 bits) {
    const u32 ones = (bits & 15) * 0x00204081u & 0x01010101u;
    return (word ^ ones * 255) + ones;
}

INLINE Block decode(Raw raw) {
    Block block;
    UNROLL for (u32 i = 0; i < 4; i++) {
#if POINTS_OF_4
        const u32 points = raw.points[i / 2] >> (16 * (i % 2)), high = LATTICE == IQ3_S ? raw.high >> (2 * i) : 0;
        const u32 low_four = coordinates(POINTS[(points & 255) | (high & 1) << 8]);
        const u32 high_four = coordinates(POINTS[(points >> 8 & 255) | (high >> 1 & 1) << 8]);
#else
#if LATTICE == IQ2_XS
        const u32 code = raw.points[i / 2] >> (16 * (i % 2)) & 511;
#elif LATTICE == IQ2_XXS
        const u32 code = raw.points[0] >> (8 * i) & 255;
#else
        const u32 high = LATTICE == IQ2_S ? raw.high >> (2 * i) & 3 : raw.high >> ((LATTICE == IQ1_S ? 3 : 4) * i) & 7;
        const u32 code = (raw.points[0] >> (8 * i) & 255) | high << 8;
#endif
        const u32 point = POINTS[code], low_four = coordinates(point & 255), high_four = coordinates(point >> 8);
#endif
#if LATTICE == IQ1_S || LATTICE == IQ1_M
        // 128 too large, so that no byte carries over.
        const bool less = LATTICE == IQ1_S ? raw.high >> 15 : raw.high >> (4 * i + 3) & 1;
        const u32 least = less ? 0x77777777u : 0x79797979u;
        block.quants[2 * i] = (least + 8 * low_four) ^ 0x80808080u;
        block.quants[2 * i + 1] = (least + 8 * high_four) ^ 0x80808080u;
#else
        const u32 signs = signs_of(raw, i);
        block.quants[2 * i] = negated(low_four, signs);
        block.quants[2 * i + 1] = negated(high_four, signs >> 4);
#endif
    }
#if LATTICE == IQ1_M
    // The upper four bits of four 16-bit words are d, their lower twelve four scales each.
    const u32 d_low = (raw.scale >> 12 & 15) | (raw.scale >> 24 & 0xf0);
    const u32 d = d_low | (raw.more >> 4 & 0xf00) | (raw.more >> 16 & 0xf000);
    const u32 stored = (raw.signs < 4 ? raw.scale : raw.more) >> (raw.signs / 2 % 2 * 16 + raw.signs % 2 * 6);
#else
    const u32 d = raw.scale;
#endif
    UNROLL for (u32 h = 0; h < HALVES; h++) {
#if LATTICE == IQ2_XXS
        const u32 scale = raw.points[1] >> 28;
#elif LATTICE == IQ3_XXS
        const u32 scale = raw.signs >> 28;
#elif LATTICE == IQ1_S
        const u32 scale = raw.high >> 12 & 7;
#elif LATTICE == IQ1_M
        const u32 scale = stored >> (3 * h) & 7;
#else
        const u32 scale = raw.more >> (4 * h) & 15;
#endif
        const f32 factor = LATTICE == IQ3_S ? 1.0f : LATTICE == IQ3_XXS ? 0.25f : 0.125f;
        block.scale[h] = f16_to_f32((u16)d) * factor * (f32)(2 * scale + 1);
        block.offset[h] = 0;
    }
    return block;
}
