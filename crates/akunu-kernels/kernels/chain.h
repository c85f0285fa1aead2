// What the tokens that a step found mean: written, rows moved on, chains stopped.

// Greater for a greater value, greatest for a NaN; the two zeros are the same.
INLINE u32 ordered(f32 value) {
    const u32 bits = as_u32(value + 0.0f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The value back.
INLINE f32 unordered(u32 key) { return as_f32(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

#define NO_TOKEN 0xffffffffu

// A lane's of the tokens to stop at. There are fewer than lanes, so that some lane has none, and NO_TOKEN is among them.
INLINE u32 stop_of(const DEVICE Pass* pass, u32 lane) { return lane < pass->stop_count ? pass->stop[lane] : NO_TOKEN; }

// A row that asked, as it is before its token is known.
struct Asking {
    u32 index;
    Row row;
};

INLINE Asking asking_row(Bindings in, u32 j) {
    Asking asking;
    asking.index = ((const DEVICE u32*)in.logit_rows)[j];
    asking.row = ((const DEVICE Row*)in.rows)[asking.index];
    return asking;
}

// Row `j` of those that asked has its token. All 32 lanes come; `stops` is set where the chain ends.
INLINE void settle(Bindings in, u32 step, u32 j, Asking asking, u32 stop, u32 token, bool advance, THREADGROUP u32* stops, u32 lane) {
    const u32 ends = SIMD_MAX_U32(stop == token ? 1 : 0);
    if (lane > 0) return;
    if (ends == 1) *stops = 1;
    ((DEVICE u32*)in.tokens)[(u64)(step + 1) * LOGIT_CAPACITY + j] = token;
    if (!advance || token == NO_TOKEN) return;
    asking.row.token = token;
    asking.row.position++;
    asking.row.kv_len++;
    ((DEVICE Row*)in.rows)[asking.index] = asking.row;
}

// After the last row is settled, by all of the group's threads.
INLINE void end_step(DEVICE Pass* pass, u32 step, bool advance, THREADGROUP u32* stops, Place at) {
    BARRIER();
    if (at.in_group != 0 || !advance) return;
    pass->step = step + 1;
    pass->stopped = *stops;
}
