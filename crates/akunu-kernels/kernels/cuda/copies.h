// Asynchronous copies to threadgroup memory (cp.async): compute capability 8.0 or higher. The emulator has its own
// implementation.

#if defined(__CUDACC__)
INLINE u32 shared_address(const THREADGROUP void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16, 8 or 4 bytes to threadgroup memory, or fills with zeros if `there` is false. Complete for the issuing
// thread after COPIES_DONE.
INLINE void copy16(THREADGROUP void* to, const DEVICE u8* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
INLINE void copy8(THREADGROUP void* to, const DEVICE u8* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 8 : 0) : "memory");
}
INLINE void copy4(THREADGROUP void* to, const DEVICE u8* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0) : "memory");
}
#define COPIES_DONE() asm volatile("cp.async.wait_all;" ::: "memory")
// COPY_GROUP commits the thread's copies so far as a group. COPIES_DONE_BUT waits for all groups but the last `n`.
#define COPY_GROUP() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_DONE_BUT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#endif
