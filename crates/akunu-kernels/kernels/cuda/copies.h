// Words for copies that go on while a thread does other things: compute capability 8.0 or more. The emulator has its own.

#if defined(__CUDACC__)
INLINE u32 shared_address(const THREADGROUP void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies of 16, 8 or 4 bytes to threadgroup memory, zeros where `there` is false; done for the thread after COPIES_DONE.
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
// The thread's copies since the last such word are a group. COPIES_DONE_BUT: all groups but the last `n`.
#define COPY_GROUP() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_DONE_BUT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#endif
