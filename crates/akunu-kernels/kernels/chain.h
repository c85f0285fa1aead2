// What follows once a step's tokens are known: they are stored, rows advance, and a stop token ends the chain of
// steps.

#define NO_TOKEN 0xffffffffu

// One stop token per lane. There are fewer stop tokens than lanes, so at least one lane holds NO_TOKEN and a NaN row
// (NO_TOKEN) also stops the chain.
INLINE u32 stop_of(const DEVICE Pass* pass, u32 lane) { return lane < pass->stop_count ? pass->stop[lane] : NO_TOKEN; }

// A row that requested logits, before it advances.
struct RequestedRow {
    u32 index;
    Row row;
};

INLINE RequestedRow requested_row(Bindings in, u32 j) {
    RequestedRow requested;
    requested.index = ((const DEVICE u32*)in.logit_rows)[j];
    requested.row = ((const DEVICE Row*)in.rows)[requested.index];
    return requested;
}

// Stores the token of the j-th row that requested logits and advances that row. Must be reached by all 32 lanes. Sets
// `stops` if the token ends the chain.
INLINE void settle(Bindings in, u32 step, u32 j, RequestedRow requested, u32 stop, u32 token, bool advance, THREADGROUP u32* stops, u32 lane) {
    const u32 ends = SIMD_MAX_U32(stop == token ? 1 : 0);
    if (lane > 0) return;
    if (ends == 1) *stops = 1;
    ((DEVICE u32*)in.tokens)[(u64)(step + 1) * LOGIT_CAPACITY + j] = token;
    if (!advance || token == NO_TOKEN) return;
    requested.row.token = token;
    requested.row.position++;
    requested.row.kv_len++;
    ((DEVICE Row*)in.rows)[requested.index] = requested.row;
}

// Called by all threads of the group after the last call of `settle`.
INLINE void end_step(DEVICE Pass* pass, u32 next, bool advance, THREADGROUP u32* stops, Place at) {
    BARRIER();
    if (at.in_group != 0 || !advance) return;
    pass->step = next;
    pass->stopped = *stops;
}
