// Product of f16 rows with weights that are quantised or have 16 bits, which are rounded to f16 in registers, on the tensor
// instructions of warpgroups: weights are the lines of the matrix product, rows its columns.
//
// A warpgroup, which is four SIMD groups, has 64 lines and all ROWS rows. A line is an output. ACROSS warpgroups cover
// different lines. SLICES warpgroups share the same lines and split the inputs (split-K): of the DEEP groups of 128 inputs of
// a stage, each takes every SLICES-th. Rows are copied AHEAD stages before they are multiplied, and a warpgroup loads its
// weights as many groups before as it multiplies in a stage.
//
// A lane loads a block of 32 weights of each of its two lines, and multiplies its four elements from 4s on in step s. The rows
// are in that order (akunu_plan::halves).

// The warpgroup in the threadgroup, and its slice of the inputs.
#define WARPGROUP (SIMD / 4)
#define SLICE (WARPGROUP / ACROSS)
#define WORKERS (128 * ACROSS * SLICES)
#define LINES (64 * ACROSS)
// The SIMD group's first line.
#define TOP (WARPGROUP % ACROSS * 64 + SIMD % 4 * 16)
// Outputs of a threadgroup, and the matrix of a warpgroup's lines: of gate and up, each has those of the same outputs.
#if KIND == 2
#define OUTS 64
#define STREAM (WARPGROUP % ACROSS)
#else
#define OUTS LINES
#define STREAM 0
#endif

#if ROWS == 64
#define MULTIPLY_BY_ROWS multiply_by_64_rows
#elif ROWS == 128
#define MULTIPLY_BY_ROWS multiply_by_128_rows
#endif

// Whether codes are nibbles that need no table.
#define NIBBLES (BITS == 4 && !TABLE_OF)
// Groups of 128 inputs of a threadgroup, and the first of them.
#define GROUPS (INPUTS / 128 / PARTS)
#define FIRST_GROUP (at.group_z * GROUPS)
// Groups of a stage that a warpgroup multiplies.
#define OWN (DEEP / SLICES)
// Stages of rows in threadgroup memory: those that are copied, the one that is multiplied, and the one before it. Each
// warpgroup begins at least two groups of products in a stage and waits for all but its last, so when all have reached the
// barrier of a stage, the products of the stage before last are done, and its place is free.
#define ROW_STAGE (ROWS * DEEP * 256)
#define ROW_STAGES (AHEAD + 2)

// Chunks of 16 bytes of a row in a stage.
#define CHUNKS (DEEP * 16)
#define CHUNK_STEP (WORKERS / CHUNKS)

// `from` is the stage's first group. Rows that are not live are not written: their columns of the product are never
// stored. Past the last group there are zeros.
INLINE void copy_rows(Bindings in, Place at, u32 first_row, u32 live, u32 from, THREADGROUP u8* stage) {
    const u32 chunk = at.in_group % CHUNKS, row = at.in_group / CHUNKS;
    const bool there = GROUPS % DEEP == 0 || from + chunk / 16 < GROUPS;
    const DEVICE u8* source = in.x + ((u64)(first_row + row) * INPUTS + FIRST_GROUP * 128 + (there ? from * 128 + chunk * 8 : 0)) * 2;
    THREADGROUP u8* const to = stage + chunk / 8 * (ROWS * 128) + row * 128;
    UNROLL for (u32 i = 0; i < ROWS; i += CHUNK_STEP) {
        const u32 place = chunk % 8 ^ (row + i) % 8;
        if (row + i < live) copy16(to + i * 128 + place * 16, source + (u64)i * (INPUTS * 2), there);
    }
}

#ifdef WEIGHT_TYPE
// A block of 32 weights of 16 bits.
struct Weights {
    u32 words[16];
};

// The lane's block of group 0 of its two lines.
struct Lines {
    const DEVICE u8* block[2];
};

INLINE Lines first_lines(Bindings in, Place at, u32 first_out) {
    Lines lines;
    UNROLL for (u32 r = 0; r < 2; r++) {
        const u32 o = first_out + TOP + LANE / 4 + 8 * r;
        // Past the last output, use the last one again.
        lines.block[r] = in.weight + ((u64)(o < OUTPUTS ? o : OUTPUTS - 1) * INPUTS + FIRST_GROUP * 128 + LANE % 4 * 32) * 2;
    }
    return lines;
}

INLINE void load_group(Lines lines, u32 group, THREAD_PTR Weights* weights) {
    const u32 first = (group < GROUPS ? group : GROUPS - 1) * 128;
    UNROLL for (u32 r = 0; r < 2; r++) {
        UNROLL for (u32 i = 0; i < 4; i++) {
            const u32x4 four = weights16_half(lines.block[r] + first * 2 + i * 16);
            weights[r].words[4 * i] = four.x; weights[r].words[4 * i + 1] = four.y;
            weights[r].words[4 * i + 2] = four.z; weights[r].words[4 * i + 3] = four.w;
        }
    }
}
#else
typedef Raw Weights;

// The lane's two lines.
struct Lines {
    Planes planes[2];
    // The lane's block of group 0.
    u32 block[2];
};

INLINE Lines first_lines(Bindings in, Place at, u32 first_out) {
    Lines lines;
    UNROLL for (u32 r = 0; r < 2; r++) {
        const u32 o = first_out + TOP % OUTS + LANE / 4 + 8 * r;
        // Past the last output, use the last one again.
        u32 row = o < OUTPUTS ? o : OUTPUTS - 1;
        lines.planes[r] = planes_of(matrix_of(in, STREAM, &row));
        lines.block[r] = row * BLOCKS + FIRST_GROUP * 4 + LANE % 4;
    }
    return lines;
}

// Past the last group, it loads the last one again; the rows are zeros there.
INLINE void load_group(Lines lines, u32 group, THREAD_PTR Raw* raw) {
    const u32 first = (group < GROUPS ? group : GROUPS - 1) * 4;
    UNROLL for (u32 r = 0; r < 2; r++) raw[r] = load_block(lines.planes[r], lines.block[r] + first);
}
#endif

// The lane's weights in half `h` of a group: four steps.
struct Steps {
    Quad step[4];
};

#ifdef WEIGHT_TYPE
// Nothing is masked.
struct Masks {};

INLINE Masks make_masks() {
    const Masks masks = {};
    return masks;
}

// The lower and the upper numbers of two words, as f16.
INLINE u32 lower_halves(u32 a, u32 b) {
    return WEIGHT_TYPE == 1 ? byte_perm(a, b, 0x5410u) : two_halves(as_f32(a << 16), as_f32(b << 16));
}
INLINE u32 upper_halves(u32 a, u32 b) {
    return WEIGHT_TYPE == 1 ? byte_perm(a, b, 0x7632u) : two_halves(as_f32(a & 0xffff0000u), as_f32(b & 0xffff0000u));
}

INLINE Steps load_steps(const THREAD_PTR Weights* weights, u32 h, Masks masks) {
    Steps steps;
    UNROLL for (u32 r = 0; r < 2; r++) {
        UNROLL for (u32 s = 0; s < 4; s++) {
            const THREAD_PTR u32* const two = weights[r].words + (h * 4 + s) * 2;
            steps.step[s].v[r] = lower_halves(two[0], two[1]);
            steps.step[s].v[2 + r] = upper_halves(two[0], two[1]);
        }
    }
    return steps;
}
#else
// The codes of two bytes of a word that a mask selects, as halves: 1024 + code. An instruction takes one constant only, so masks
// are in registers.
struct Masks {
    u32 low, high;
};

INLINE Masks make_masks() {
#if NIBBLES
    IN_REGISTER(low, 0x000f000f);
    // Of the upper nibbles the halves are 1024 + 16 · code.
    IN_REGISTER(high, 0x00f000f0);
    const Masks masks = {low, high};
#else
    IN_REGISTER(low, 0x00ff00ff);
    const Masks masks = {low, 0};
#endif
    return masks;
}

INLINE u32 halves_of(u32 word, u32 mask) { return (word & mask) | 0x64006400u; }

// What is subtracted from the halves: of bytes, whose sign bit has been flipped, 128 more.
#define LESS_1152 (0xe480e480u + ZERO * 0x10001u)
#define LESS_1024 (0xe400e400u + ZERO * 0x10001u)
#define LESS_64 (0xd400d400u + ZERO * 0x100010u)
#define SIXTEENTH 0x2c002c00u

// The scale and offset of half a block. A scale of f16 is applied in f16, and is there twice; others in f32, because f16
// has too few digits for small ones, and for offsets beside the product.
#define IN_F16 (SCALES == SCALES_F16)

struct Scale {
    u32 twice;
    f32 scale, offset;
};

INLINE Scale scale_of(const THREAD_PTR Block* block, u32 h) {
    const Scale scale = {IN_F16 ? f32_to_f16(block->scale[h]) * 0x10001u : 0, block->scale[h], block->offset[h]};
    return scale;
}

INLINE u32 scaled(u32 quants, Scale scale) {
    if (IN_F16) return times_halves(quants, scale.twice);
    const f32 a = f16_to_f32((u16)quants), b = f16_to_f32((u16)(quants >> 16));
    return two_halves(fused(a, scale.scale, scale.offset), fused(b, scale.scale, scale.offset));
}

// Words of nibbles have two steps each: of a block's first half below, of the second above.
INLINE Steps load_steps(const THREAD_PTR Weights* raw, u32 h, Masks masks) {
    Steps steps;
    UNROLL for (u32 r = 0; r < 2; r++) {
        const Block block = decode(raw[r]);
        const Scale scale = scale_of(&block, h * (HALVES - 1));
        UNROLL for (u32 s = 0; s < 4; s++) {
            u32 first, second;
#if NIBBLES
            const u32 even = raw[r].codes.low[s], odd = even >> 8;
            if (h == 0) {
                first = plus_halves(halves_of(even, masks.low), LESS_1024);
                second = plus_halves(halves_of(odd, masks.low), LESS_1024);
            } else {
                first = fused_halves(halves_of(even, masks.high), SIXTEENTH, LESS_64);
                second = fused_halves(halves_of(odd, masks.high), SIXTEENTH, LESS_64);
            }
#else
            const u32 even = block.quants[h * 4 + s] ^ 0x80808080u, odd = even >> 8;
            first = plus_halves(halves_of(even, masks.low), LESS_1152);
            second = plus_halves(halves_of(odd, masks.low), LESS_1152);
#endif
            steps.step[s].v[r] = scaled(first, scale);
            steps.step[s].v[2 + r] = scaled(second, scale);
        }
    }
    return steps;
}
#endif

// While the products of a group or of half of one are computed, the weights of the next are decoded. Both are in registers, of
// which the compiler keeps two sets apart if there are two in the loop over a stage: groups, or halves where a stage has one
// group. `rows`: where the group's are.
#define AT_ONCE (OWN % 2 == 0 ? 2 : 1)

INLINE void multiply_group(THREAD_PTR f32* sums, const THREAD_PTR Weights* raw, Masks masks, Tile rows) {
    UNROLL for (u32 first = 0; first < 2; first += AT_ONCE) {
        PRODUCTS_DONE_BUT(1);
        Steps steps[AT_ONCE];
        UNROLL for (u32 h = 0; h < AT_ONCE; h++) steps[h] = load_steps(raw, first + h, masks);
        BEGIN_PRODUCTS();
        UNROLL for (u32 h = 0; h < AT_ONCE; h++)
            UNROLL for (u32 s = 0; s < 4; s++)
                MULTIPLY_BY_ROWS(sums, steps[h].step[s], further(rows, (first + h) * (ROWS * 128) + s * 32));
        END_PRODUCTS();
    }
}

// Sums go through threadgroup memory, row by row, one area per slice.
#define SUM_STRIDE (LINES + 4)
#define SUM_AREA (ROWS * SUM_STRIDE)

INLINE void put_sums(Place at, const THREAD_PTR f32* sums, THREADGROUP f32* area) {
    UNROLL for (u32 j = 0; j < ROWS / 8; j++) {
        UNROLL for (u32 e = 0; e < 4; e++) {
            const u32 line = TOP + e / 2 * 8 + LANE / 4;
            area[(j * 8 + LANE % 4 * 2 + e % 2) * SUM_STRIDE + line] = sums[4 * j + e];
        }
    }
}

// Whether four outputs are always there, and aligned to 16 bytes.
INLINE bool in_fours(Bindings in) {
    return OUTPUTS % 4 == 0 && OUT_STRIDE % 4 == 0 && ((u64)in.out | (u64)in.out_f16 | (u64)in.residual) % 16 == 0;
}

// Four outputs of a row.
struct Four {
    f32 v[4];
};

// What is added to four outputs from `o` on.
INLINE Four addends(Bindings in, u32 row, u32 o, bool whole) {
    Four added;
#if KIND == 0
    if (RESIDUAL && !BIAS && whole) {
        const u32x4 four = read16(in.residual + ((u64)row * OUT_STRIDE + o) * 4);
        added.v[0] = as_f32(four.x);
        added.v[1] = as_f32(four.y);
        added.v[2] = as_f32(four.z);
        added.v[3] = as_f32(four.w);
        return added;
    }
#endif
    UNROLL for (u32 i = 0; i < 4; i++) added.v[i] = whole || o + i < OUTPUTS ? addend(in, row, o + i).v[0] : 0.0f;
    return added;
}

// Outputs of f16 get neither scale nor bias.
INLINE void store_four(Bindings in, u32 row, u32 o, Four sums, f32 scale, Four added, bool whole) {
    const u64 first = (u64)row * OUT_STRIDE + o;
    if (OUT_F16) {
        if (whole) {
            const u32x2 halves = {two_halves(sums.v[0], sums.v[1]), two_halves(sums.v[2], sums.v[3])};
            *(DEVICE u32x2*)(in.out_f16 + first * 2) = halves;
        } else {
            UNROLL for (u32 i = 0; i < 4; i++) if (o + i < OUTPUTS) ((DEVICE u16*)in.out_f16)[first + i] = f32_to_f16(sums.v[i]);
        }
    } else {
        f32 out[4];
        UNROLL for (u32 i = 0; i < 4; i++) out[i] = fused(scale, sums.v[i], added.v[i]);
        if (whole) {
            const f32x4 four = {out[0], out[1], out[2], out[3]};
            *(DEVICE f32x4*)(in.out + first * 4) = four;
        } else {
            UNROLL for (u32 i = 0; i < 4; i++) if (o + i < OUTPUTS) ((DEVICE f32*)in.out)[first + i] = out[i];
        }
    }
}

// Pieces of four outputs of a row, and how many a thread loads at once.
#define PIECES (OUTS / 4)
#define BATCH 8

INLINE void add_four(THREAD_PTR Four* sums, f32x4 four) {
    sums->v[0] += four.x;
    sums->v[1] += four.y;
    sums->v[2] += four.z;
    sums->v[3] += four.w;
}

// The sums of piece `piece` of the threadgroup's row `row`, of all slices.
INLINE Four sums_of_slices(const THREADGROUP f32* areas, u32 row, u32 piece) {
    Four sums = {};
    UNROLL for (u32 s = 0; s < SLICES; s++) {
        add_four(&sums, *(const THREADGROUP f32x4*)(areas + s * SUM_AREA + row * SUM_STRIDE + piece * 4));
    }
    return sums;
}

#if KIND == 2
// The outputs from the sums of gate and up.
INLINE Four gated_four(Four gate, Four up, f32 scale) {
    UNROLL for (u32 i = 0; i < 4; i++) gate.v[i] = gated(scale * gate.v[i], scale * up.v[i]);
    return gate;
}
#endif

#if PARTS > 1
// Where a part's sums are in scratch memory, row by row.
INLINE DEVICE f32x4* sums_at(DEVICE u8* scratch, u32 tile, u32 part) {
    return (DEVICE f32x4*)(scratch + COUNTER_BYTES) + (u64)(tile * PARTS + part) * (ROWS * PIECES);
}

INLINE Four sums_of_parts(DEVICE u8* scratch, u32 tile, u32 i) {
    Four sums = {};
    UNROLL for (u32 part = 0; part < PARTS; part++) add_four(&sums, published(&sums_at(scratch, tile, part)[i]));
    return sums;
}
#endif

INLINE void store_sums(Bindings in, DEVICE u8* scratch, Place at, const THREADGROUP f32* areas, u32 first_row, u32 first_out, u32 live) {
#if PARTS > 1
    const u32 tile = at.group_y * TILES + at.group_x;
    for (u32 i = at.in_group; i < live * PIECES; i += WORKERS) {
        const Four sums = sums_of_slices(areas, i / PIECES, i % PIECES);
        const f32x4 four = {sums.v[0], sums.v[1], sums.v[2], sums.v[3]};
        publish(&sums_at(scratch, tile, at.group_z)[i], four);
    }
    if (!last_to_finish(scratch, tile, PARTS, at)) return;
#endif
    const bool whole = in_fours(in);
    for (u32 from = at.in_group; from < live * PIECES; from += BATCH * WORKERS) {
        f32 scales[BATCH];
        Four added[BATCH], sums[BATCH];
        UNROLL for (u32 k = 0; k < BATCH; k++) {
            const u32 i = from + k * WORKERS, row = first_row + i / PIECES, o = first_out + i % PIECES * 4;
            if (i >= live * PIECES || o >= OUTPUTS) continue;
            scales[k] = ((const DEVICE f32*)in.x_scales)[row];
            added[k] = addends(in, row, o, whole);
#if PARTS > 1
            sums[k] = sums_of_parts(scratch, tile, i);
#endif
        }
        UNROLL for (u32 k = 0; k < BATCH; k++) {
            const u32 i = from + k * WORKERS, line = i / PIECES, o = first_out + i % PIECES * 4;
            if (i >= live * PIECES || o >= OUTPUTS) continue;
#if PARTS == 1
            sums[k] = sums_of_slices(areas, line, i % PIECES);
#endif
#if KIND == 2
            sums[k] = gated_four(sums[k], sums_of_slices(areas, line, PIECES + i % PIECES), scales[k]);
            scales[k] = 1;
#endif
            store_four(in, first_row + line, o, sums[k], scales[k], added[k], whole);
        }
    }
}

BODY(gemm_packed) {
    const Span span = rows_of(&in, pass, at.group_y, ROWS, LANE);
    const u32 first_row = span.first, first_out = at.group_x * OUTS;
    const Lines lines = first_lines(in, at, first_out);
    // A uniform number, for the compiler as well.
    const u32 slice = SIMD_MAX_U32(SLICE);
    Weights raw[OWN][2];
    UNROLL for (u32 k = 0; k < OWN; k++) load_group(lines, slice + k * SLICES, raw[k]);
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    if (span.first >= span.end) return;
    const u32 live = span.end - span.first < ROWS ? span.end - span.first : ROWS;
    UNROLL for (u32 k = 0; k < AHEAD; k++) {
        if (k * DEEP < GROUPS) copy_rows(in, at, first_row, live, k * DEEP, at.shared + k * ROW_STAGE);
        COPY_GROUP();
    }
    const Masks masks = make_masks();
    f32 sums[ROWS / 2] = {};
    // The stage's place, and that of the stage that is copied.
    u32 place = 0, next = AHEAD;
    for (u32 from = 0; from < GROUPS; from += DEEP) {
        COPIES_DONE_BUT(AHEAD - 1);
        SHOW_COPIES();
        BARRIER();
        if (from + AHEAD * DEEP < GROUPS) copy_rows(in, at, first_row, live, from + AHEAD * DEEP, at.shared + next * ROW_STAGE);
        COPY_GROUP();
        UNROLL for (u32 k = 0; k < OWN; k++) {
            const u32 depth = slice + k * SLICES;
            multiply_group(sums, raw[k], masks, tile_at(at.shared, place * ROW_STAGE + depth * (ROWS * 256)));
            load_group(lines, from + DEEP + depth, raw[k]);
        }
        place = place + 1 < ROW_STAGES ? place + 1 : 0;
        next = next + 1 < ROW_STAGES ? next + 1 : 0;
    }
    PRODUCTS_DONE_BUT(0);
    COPIES_DONE();
    BARRIER();
    TG_ARRAY(f32, areas, 0);
    put_sums(at, sums, areas + SLICE * SUM_AREA);
    BARRIER();
    store_sums(in, scratch, at, areas, first_row, first_out, live);
}
