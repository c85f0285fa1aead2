// The memory in which ranks receive what others send.
//
// It follows the scratch memory. A threadgroup exchanges chunks with the threadgroup of the same number on the other ranks, and
// counts them. It has several places for chunks of each rank, which are used again in turn:
// - Two for packets. A rank that sends packets n + 2 has received packets n + 1 of all others, which they send once they
//   have read packets n.
// - Four for floats, of which a chunk is sent before the last one is awaited. A rank that sends chunk n + 4 has received
//   chunk n + 2 of all others, which they send once they have read chunk n.

#define MOST_RANKS 16
#define EXCHANGE_GROUPS 256
// A chunk of packets: two numbers for each thread. The most floats of a chunk; `CHUNK` of the launch, 16 for each thread.
#define PACKETS 256
#define FLOATS 8192

// `EXCHANGE_HEAD` bytes, then the places for packets, then those for floats.
struct Exchange {
    // The addresses of this struct on all ranks.
    u64 peers[MOST_RANKS];
    u32 ranks;
    // A rank did not come in time.
    u32 broken;
    // How long a rank waits for the others.
    u32 patience_ms;
    u32 reserved[29];
    // Chunks that each threadgroup has exchanged: of packets, and of floats.
    u32 packets[EXCHANGE_GROUPS];
    u32 floats[EXCHANGE_GROUPS];
    // The last chunk of floats that each threadgroup has received from each rank.
    u32 arrived[EXCHANGE_GROUPS][MOST_RANKS];
};
#define EXCHANGE_HEAD 32768

INLINE DEVICE Exchange* exchange_of(DEVICE u8* scratch) { return (DEVICE Exchange*)(scratch + SCRATCH_BYTES); }

// The place for a chunk from rank `from`, in the memory of any rank.
INLINE u64 packet_place(u32 group, u32 chunk, u32 from, u32 ranks) {
    return EXCHANGE_HEAD + (u64)((group * 2 + chunk % 2) * ranks + from) * (PACKETS * 16);
}

INLINE u64 float_place(u32 group, u32 chunk, u32 from, u32 ranks) {
    const u64 packets = (u64)EXCHANGE_GROUPS * 2 * ranks * (PACKETS * 16);
    return EXCHANGE_HEAD + packets + (u64)((group * 4 + chunk % 4) * ranks + from) * (FLOATS * 4);
}

// Where a rank sends numbers, in packets, that another kernel adds up: ready before the numbers are.
struct Sending {
    // The next rank's `Exchange`, and the place of the number in each.
    u64 next, place;
    u32 chunk, rank, ranks;
};

// For number `i` of up to EXCHANGE_GROUPS chunks.
INLINE Sending sending(DEVICE u8* scratch, const DEVICE Pass* pass, u32 i) {
    const DEVICE Exchange* const exchange = exchange_of(scratch);
    const u32 group = i / (PACKETS * 2);
    Sending sending;
    sending.rank = pass->rank;
    sending.ranks = exchange->ranks;
    sending.next = exchange->peers[sending.rank + 1 < sending.ranks ? sending.rank + 1 : 0];
    sending.chunk = exchange->packets[group] + 1;
    sending.place = packet_place(group, sending.chunk, sending.rank, sending.ranks) + i % (PACKETS * 2) * 8;
    return sending;
}

// Sends half of a packet to all other ranks.
INLINE void send_number(Sending sending, f32 value, DEVICE u8* scratch) {
    const u32x2 number = {as_u32(value), sending.chunk};
    send8((DEVICE u8*)sending.next + sending.place, number);
    for (u32 i = 2; i < sending.ranks; i++) {
        const u32 peer = (sending.rank + i) % sending.ranks;
        send8((DEVICE u8*)exchange_of(scratch)->peers[peer] + sending.place, number);
    }
}
