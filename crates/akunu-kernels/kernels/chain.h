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

// Row `j` of those that asked. `stops` is set where the chain ends.
INLINE void settle(Bindings in, DEVICE Pass* pass, u32 j, u32 token, bool advance, THREADGROUP u32* stops) {
    ((DEVICE u32*)in.tokens)[(u64)(pass->step + 1) * LOGIT_CAPACITY + j] = token;
    if (token == NO_TOKEN) *stops = 1;
    for (u32 i = 0; i < pass->stop_count; i++) if (pass->stop[i] == token) *stops = 1;
    if (!advance || token == NO_TOKEN) return;
    DEVICE Row* row = (DEVICE Row*)in.rows + ((const DEVICE u32*)in.logit_rows)[j];
    row->token = token;
    row->position++;
    row->kv_len++;
}

// After the last row is settled, by all of the group's threads.
INLINE void end_step(DEVICE Pass* pass, bool advance, THREADGROUP u32* stops, Place at) {
    BARRIER();
    if (at.in_group != 0 || !advance) return;
    pass->step++;
    pass->stopped = *stops;
}
