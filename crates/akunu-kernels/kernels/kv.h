// The KV cache. A row is one KV head's key or value at one position: HEAD_DIM numbers as f32, f16, or blocks of an f16
// scale and 32 int8 (KV_TYPE 0, 1, 2). A layer's cache is [KV head][place]; a sequence owns the logical positions from
// its start on. With BLOCK, a table has the block of BLOCK places for each run of logical positions, and sequences
// begin at multiples of BLOCK; without, places are logical positions.

#if KV_TYPE == 0
#define KV_ROW_BYTES ((u64)HEAD_DIM * 4)
#elif KV_TYPE == 1
#define KV_ROW_BYTES ((u64)HEAD_DIM * 2)
#else
#define KV_ROW_BYTES ((u64)HEAD_DIM / 32 * 34)
#endif

// The place of a logical position. A block that the cache does not have is its last one.
INLINE u32 kv_place(Bindings in, u32 logical) {
#if BLOCK
    const u32 block = ((const DEVICE u32*)in.blocks)[logical / BLOCK], last = POSITIONS / BLOCK - 1;
    return (block < last ? block : last) * BLOCK + logical % BLOCK;
#else
    (void)in;
    return logical;
#endif
}

INLINE DEVICE u8* kv_row(DEVICE u8* cache, u32 head, u32 place) {
    return cache + ((u64)head * POSITIONS + place) * KV_ROW_BYTES;
}

// Number i of a row.
INLINE f32 kv_load(const DEVICE u8* row, u32 i) {
#if KV_TYPE == 0
    return ((const DEVICE f32*)row)[i];
#elif KV_TYPE == 1
    return f16_to_f32(((const DEVICE u16*)row)[i]);
#else
    const DEVICE u8* block = row + i / 32 * 34;
    return f16_to_f32(*(const DEVICE u16*)block) * (f32)(i8)block[2 + i % 32];
#endif
}

// A SIMD group stores 32 consecutive numbers of a row, lane's is number i. Returns the value as the cache represents
// it. If `there` is false nothing is stored.
INLINE f32 kv_put(DEVICE u8* row, u32 i, f32 value, u32 lane, bool there) {
#if KV_TYPE == 0
    if (there) ((DEVICE f32*)row)[i] = value;
    return value;
#elif KV_TYPE == 1
    const u16 stored = f32_to_f16(value);
    if (there) ((DEVICE u16*)row)[i] = stored;
    return f16_to_f32(stored);
#else
    const Rounded rounded = round_q8(value);
    const u16 scale = f32_to_f16(rounded.scale);
    if (there) {
        DEVICE u8* block = row + i / 32 * 34;
        block[2 + lane] = (u8)rounded.quant;
        if (lane == 0) *(DEVICE u16*)block = scale;
    }
    return f16_to_f32(scale) * (f32)rounded.quant;
#endif
}

// A SIMD group stores a whole row from threadgroup memory.
INLINE void kv_store(DEVICE u8* row, const THREADGROUP f32* values, u32 lane) {
    for (u32 i = lane; i < HEAD_DIM; i += 32) kv_put(row, i, values[i], lane, true);
}

#if FACTORS
// The factor of a row's queries: the attention scale times a factor that depends on the position.
#define QUERY_SCALE(in, params, row) query_scale(in, params, row)
INLINE f32 query_scale(Bindings in, Params params, Row row) {
    const u32 factor = (row.position + BY_LENGTH) / params.attention.factor_step, last = params.attention.factors - 1;
    return params.attention.scale * ((const DEVICE f32*)in.query_factors)[factor < last ? factor : last];
}
#else
#define QUERY_SCALE(in, params, row) params.attention.scale
#endif

#if SINKS
// What a head's weighted sum is multiplied by at the end, if the softmax's maximum is `most` and its sum `total`: the head's
// sink is one more score, of which nothing is added to the weighted sum.
INLINE f32 inverse_total(Bindings in, u32 head, f32 most, f32 total) {
    const f32 sink = ((const DEVICE f32*)in.sinks)[head], all = MAX_F32(most, sink), keep = EXP(most - all);
    return keep / (total * keep + EXP(sink - all));
}
#else
INLINE f32 inverse_total(Bindings in, u32 head, f32 most, f32 total) { return 1.0f / total; }
#endif

// The first position visible to a row. With CHUNKED, a window is the row's chunk.
INLINE u32 first_visible(Row row, u32 window) {
#if CHUNKED
    return row.position - row.position % window;
#else
    return window == 0 || row.position + 1 < window ? 0 : row.position + 1 - window;
#endif
}

// The end of the positions visible to a row: with a window, at most `ahead` positions after its own.
INLINE u32 visible_end(Row row, u32 window, u32 ahead) {
    const u32 end = row.position + 1 + ahead;
    return window == 0 || row.kv_len < end ? row.kv_len : end;
}
