// What ranks exchange: each writes its part of the numbers into the memory of all others (exchange.h), and waits for theirs.

// Ends the chain of steps: later kernels return at once, and the host reports it.
INLINE void give_up(DEVICE Exchange* exchange, DEVICE Pass* pass) {
    exchange->broken = 1;
    pass->stopped = 2;
}

INLINE bool is_over(const DEVICE Exchange* exchange, u64 since) {
    return exchange->broken || now_ns() - since > (u64)exchange->patience_ms * 1000000;
}

// Two numbers, each with the number of its chunk, which says that it has arrived: no other signal is needed.
INLINE u32x4 packet(f32 a, f32 b, u32 chunk) {
    const u32x4 packet = {as_u32(a), chunk, as_u32(b), chunk};
    return packet;
}

INLINE u32x4 await_packet(const DEVICE u8* from, u32 chunk, DEVICE Exchange* exchange, DEVICE Pass* pass) {
    u32x4 packet = receive16(from);
    const u64 since = now_ns();
    for (u32 polls = 1; packet.y != chunk || packet.w != chunk; polls++) {
        if (polls % 256 == 0) {
            if (is_over(exchange, since)) {
                give_up(exchange, pass);
                return packet;
            }
            LET_OTHERS_RUN();
        }
        packet = receive16(from);
    }
    return packet;
}

#if DEFERS
// Begins the deferred norm of two numbers of each thread, from `first` on, in blocks of 32, as `store_block` of matrix.h
// does.
INLINE void begin_norm(Bindings in, Params params, u64 first, u64 total, f32 a, f32 b, Place at) {
    THREADGROUP f32* const sums = (THREADGROUP f32*)at.shared;
    // All threads have read what is there.
    BARRIER();
    sums[2 * at.in_group] = a;
    sums[2 * at.in_group + 1] = b;
    BARRIER();
    for (u32 block = SIMD; first + (u64)block * 32 < total && block < PACKETS / 16; block += SIMDS) {
        const u64 i = first + (u64)block * 32;
        const u32 row = (u32)(i / COLS), o = (u32)(i % COLS) + LANE;
        const f32 value = sums[block * 32 + LANE];
        const f32 deferred = value * ((const DEVICE f32*)in.norm_weight)[o], squares = SIMD_SUM(value * value);
        if (LANE == 0) ((DEVICE f32*)in.out_squares)[(u64)row * (COLS / 32) + o / 32] = squares + 32 * params.norm.epsilon;
        if (NORM_F32) ((DEVICE f32*)in.normed)[(u64)row * COLS + o] = deferred;
        if (NORM_Q8) store_q8(in.normed_q8 + row * Q8_ROW_BYTES(COLS), COLS, o / 32, deferred, LANE);
    }
}
#endif

// residual + the sum over ranks, in their order; for few numbers. A thread has two at a time. SENT: the product that computed them
// has sent them.
BODY(all_reduce_few) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    DEVICE Exchange* const exchange = exchange_of(scratch);
    const u32 ranks = exchange->ranks, rank = pass->rank, group = at.group_x;
    const u64 total = (u64)live_rows(pass, false) * COLS;
    const DEVICE f32* const x = (const DEVICE f32*)in.x;
    u32 chunk = exchange->packets[group];
    for (u64 first = (u64)group * (PACKETS * 2); first < total; first += (u64)GROUPS * (PACKETS * 2)) {
        chunk++;
        const u64 i = first + at.in_group * 2;
        const bool both = i + 1 < total, one = i < total;
        const f32 a = one ? x[i] : 0.0f, b = both ? x[i + 1] : 0.0f;
#if !SENT
        const u64 place = packet_place(group, chunk, rank, ranks) + at.in_group * 16;
        for (u32 peer = 0; peer < ranks; peer++) {
            if (peer != rank && one) send16((DEVICE u8*)exchange->peers[peer] + place, packet(a, b, chunk));
        }
#endif
        f32 sum_a = 0.0f, sum_b = 0.0f;
#if RESIDUAL
        const DEVICE f32* const residual = (const DEVICE f32*)in.residual;
        if (one) sum_a = residual[i];
        if (both) sum_b = residual[i + 1];
#endif
        for (u32 from = 0; from < ranks; from++) {
            f32 part_a = a, part_b = b;
            if (from != rank && one) {
                const DEVICE u8* const there = (const DEVICE u8*)exchange + packet_place(group, chunk, from, ranks) + at.in_group * 16;
                const u32x4 part = await_packet(there, chunk, exchange, pass);
                part_a = as_f32(part.x);
                part_b = as_f32(part.z);
            }
            sum_a = plus(sum_a, part_a);
            sum_b = plus(sum_b, part_b);
        }
        if (one) ((DEVICE f32*)in.out)[i] = sum_a;
        if (both) ((DEVICE f32*)in.out)[i + 1] = sum_b;
#if DEFERS
        begin_norm(in, params, first, total, sum_a, sum_b, at);
#endif
    }
    // All threads have read the number of chunks.
    BARRIER();
    if (at.in_group == 0) exchange->packets[group] = chunk;
}

INLINE u32x4 four_numbers(const DEVICE f32* x, u64 i, u64 total) {
    if (i + 4 <= total) return read16((const DEVICE u8*)(x + i));
    const u32x4 four = {
        i < total ? as_u32(x[i]) : 0,
        i + 1 < total ? as_u32(x[i + 1]) : 0,
        i + 2 < total ? as_u32(x[i + 2]) : 0,
        0,
    };
    return four;
}

// Sends the numbers from `first` on to all other ranks, and then the number of the chunk.
INLINE void send_floats(const DEVICE f32* x, u64 first, u64 total, u32 chunk, DEVICE Exchange* exchange, const DEVICE Pass* pass, Place at) {
    const u32 ranks = exchange->ranks, rank = pass->rank, group = at.group_x;
    const u64 place = float_place(group, chunk, rank, ranks);
    UNROLL for (u32 k = at.in_group; k < CHUNK / 4; k += THREADS) {
        const u32x4 four = four_numbers(x, first + k * 4, total);
        for (u32 peer = 0; peer < ranks; peer++) {
            if (peer != rank) send16((DEVICE u8*)exchange->peers[peer] + place + k * 16, four);
        }
    }
    BARRIER();
    if (at.in_group < ranks && at.in_group != rank) {
        signal(&((DEVICE Exchange*)exchange->peers[at.in_group])->arrived[group][rank], chunk);
    }
}

// Waits for a chunk of all other ranks.
INLINE void await_floats(u32 chunk, DEVICE Exchange* exchange, DEVICE Pass* pass, Place at) {
    if (at.in_group < exchange->ranks && at.in_group != pass->rank) {
        const DEVICE u32* const arrived = &exchange->arrived[at.group_x][at.in_group];
        const u64 since = now_ns();
        for (u32 polls = 1; (i32)(signalled(arrived) - chunk) < 0; polls++) {
            if (polls % 256 == 0) {
                if (is_over(exchange, since)) {
                    give_up(exchange, pass);
                    break;
                }
                LET_OTHERS_RUN();
            }
        }
    }
    BARRIER();
}

// Calls `COMBINE(first, chunk)` for each chunk of this threadgroup, once that of all ranks is there. A macro, because the
// dialect has no functions as arguments.
#define EACH_CHUNK(COMBINE) \
    do { \
        const u64 stride = (u64)GROUPS * CHUNK; \
        u64 first = (u64)group * CHUNK; \
        u32 chunk = exchange->floats[group]; \
        if (first < total) send_floats(x, first, total, ++chunk, exchange, pass, at); \
        for (; first < total; first += stride) { \
            const u32 awaited = chunk; \
            if (first + stride < total) send_floats(x, first + stride, total, ++chunk, exchange, pass, at); \
            await_floats(awaited, exchange, pass, at); \
            COMBINE(first, awaited); \
        } \
        BARRIER(); \
        if (at.in_group == 0) exchange->floats[group] = chunk; \
    } while (false)

// What rank `from` has sent, or this rank's own numbers.
INLINE u32x4 four_of(u32 from, const DEVICE f32* x, u64 i, u64 total, u64 place, const DEVICE Exchange* exchange, const DEVICE Pass* pass) {
    return from == pass->rank ? four_numbers(x, i, total) : receive16((const DEVICE u8*)exchange + place);
}

INLINE void sum_chunk(Bindings in, u64 first, u64 total, u32 chunk, const DEVICE Exchange* exchange, const DEVICE Pass* pass, Place at) {
    const u32 ranks = exchange->ranks;
    UNROLL for (u32 k = at.in_group; k < CHUNK / 4; k += THREADS) {
        const u64 i = first + k * 4;
        f32 sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#if RESIDUAL
        const u32x4 start = four_numbers((const DEVICE f32*)in.residual, i, total);
        sums[0] = as_f32(start.x);
        sums[1] = as_f32(start.y);
        sums[2] = as_f32(start.z);
        sums[3] = as_f32(start.w);
#endif
        for (u32 from = 0; from < ranks; from++) {
            const u64 place = float_place(at.group_x, chunk, from, ranks) + k * 16;
            const u32x4 part = four_of(from, (const DEVICE f32*)in.x, i, total, place, exchange, pass);
            sums[0] = plus(sums[0], as_f32(part.x));
            sums[1] = plus(sums[1], as_f32(part.y));
            sums[2] = plus(sums[2], as_f32(part.z));
            sums[3] = plus(sums[3], as_f32(part.w));
        }
        DEVICE f32* const out = (DEVICE f32*)in.out + i;
        if (i + 4 <= total) {
            const f32x4 four = {sums[0], sums[1], sums[2], sums[3]};
            *(DEVICE f32x4*)out = four;
        } else {
            UNROLL for (u32 n = 0; n < 4; n++) {
                if (i + n < total) out[n] = sums[n];
            }
        }
    }
}

// The same for many numbers.
BODY(all_reduce_many) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    DEVICE Exchange* const exchange = exchange_of(scratch);
    const u32 group = at.group_x;
    const u64 total = (u64)live_rows(pass, false) * COLS;
    const DEVICE f32* const x = (const DEVICE f32*)in.x;
#define SUM(first, chunk) sum_chunk(in, first, total, chunk, exchange, pass, at)
    EACH_CHUNK(SUM);
}

// Rows of the columns of all ranks.
#if defined(TOTAL)
INLINE void place_chunk(Bindings in, u64 first, u64 total, u32 chunk, const DEVICE Exchange* exchange, const DEVICE Pass* pass, Place at) {
    const u32 ranks = exchange->ranks;
    for (u32 k = at.in_group; k < CHUNK / 4; k += THREADS) {
        const u64 i = first + k * 4;
        for (u32 from = 0; from < ranks; from++) {
            const u64 place = float_place(at.group_x, chunk, from, ranks) + k * 16;
            const u32x4 part = four_of(from, (const DEVICE f32*)in.x, i, total, place, exchange, pass);
            const u32 four[4] = {part.x, part.y, part.z, part.w};
            UNROLL for (u32 n = 0; n < 4; n++) {
                const u64 row = (i + n) / COLS, col = (i + n) % COLS + (u64)from * COLS;
                if (i + n < total && col < TOTAL) ((DEVICE f32*)in.out)[row * TOTAL + col] = as_f32(four[n]);
            }
        }
    }
}

BODY(all_gather) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    DEVICE Exchange* const exchange = exchange_of(scratch);
    const u32 group = at.group_x;
    const u64 total = (u64)live_rows(pass, true) * COLS;
    const DEVICE f32* const x = (const DEVICE f32*)in.x;
#define PUT(first, chunk) place_chunk(in, first, total, chunk, exchange, pass, at)
    EACH_CHUNK(PUT);
}
#endif

// Ranks in other processes: a library has gathered numbers of all ranks into the memory after the scratch memory, COUNT
// numbers of each rank from number FIRST on, one rank after the other.
#if defined(COUNT)
INLINE const DEVICE f32* gathered_of(u32 rank, DEVICE u8* scratch) {
    return (const DEVICE f32*)(scratch + SCRATCH_BYTES) + (u64)rank * COUNT;
}

#if !defined(TOTAL)
// residual + the sum over ranks, in their order. A thread has two numbers at a time.
BODY(reduce_gathered) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const u64 all = (u64)live_rows(pass, false) * COLS, end = (u64)FIRST + COUNT, total = all < end ? all : end;
    for (u64 first = (u64)FIRST + (u64)at.group_x * (PACKETS * 2); first < total; first += (u64)GROUPS * (PACKETS * 2)) {
        const u64 i = first + at.in_group * 2;
        const bool both = i + 1 < total, one = i < total;
        f32 sum_a = 0.0f, sum_b = 0.0f;
#if RESIDUAL
        const DEVICE f32* const residual = (const DEVICE f32*)in.residual;
        if (one) sum_a = residual[i];
        if (both) sum_b = residual[i + 1];
#endif
        for (u32 from = 0; from < RANKS; from++) {
            const DEVICE f32* const part = gathered_of(from, scratch);
            if (one) sum_a = plus(sum_a, part[i - FIRST]);
            if (both) sum_b = plus(sum_b, part[i - FIRST + 1]);
        }
        if (one) ((DEVICE f32*)in.out)[i] = sum_a;
        if (both) ((DEVICE f32*)in.out)[i + 1] = sum_b;
#if DEFERS
        begin_norm(in, params, first, total, sum_a, sum_b, at);
#endif
    }
}
#else
// Rows of the columns of all ranks.
BODY(place_gathered) {
    WAIT_FOR_INPUT();
    LAUNCH_NEXT();
    const u64 all = (u64)live_rows(pass, true) * COLS, end = (u64)FIRST + COUNT, total = all < end ? all : end;
    for (u64 i = (u64)FIRST + (u64)at.group_x * PACKETS + at.in_group; i < total; i += (u64)GROUPS * PACKETS) {
        for (u32 from = 0; from < RANKS; from++) {
            const u64 row = i / COLS, col = i % COLS + (u64)from * COLS;
            if (col < TOTAL) ((DEVICE f32*)in.out)[row * TOTAL + col] = gathered_of(from, scratch)[i - FIRST];
        }
    }
}
#endif
#endif
