// Words for copies to threadgroup memory that need no thread while they go on: compute capability 9.0 or more. The emulator has its own.
// Addresses and sizes are multiples of 16.

#if defined(__CUDACC__)
INLINE u32 arrival_address(const THREADGROUP void* p) { return (u32)__cvta_generic_to_shared(p); }

// An arrival counts the bytes that one thread said would come. ARRIVALS_READY makes new ones known to the copies.
INLINE void new_arrival(THREADGROUP u64* arrival) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrival_address(arrival)) : "memory");
}
#define ARRIVALS_READY() asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory")
INLINE void expect_bytes(THREADGROUP u64* arrival, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrival_address(arrival)), "r"(bytes) : "memory");
}
INLINE void bulk_copy(THREADGROUP u8* to, const DEVICE u8* from, u32 bytes, THREADGROUP u64* arrival) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(arrival_address(to)),
                 "l"(from), "r"(bytes), "r"(arrival_address(arrival))
                 : "memory");
}
// Waits until all that was expected is there: `turn` is 0 for the first such wait, then 1, 0, 1 …
INLINE void await_arrival(THREADGROUP u64* arrival, u32 turn) {
    u32 done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(arrival_address(arrival)), "r"(turn)
                     : "memory");
    }
}
#endif
