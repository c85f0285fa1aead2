// Runs a kernel's threads as fibres. BARRIER and SIMD operations are synchronisation points: a thread that reaches one
// yields, and resumes once all threads that have to reach it have done so. If that cannot happen, it is reported with
// the lines where the threads are waiting.

// Standard headers would be most of what the compiler has to read.
typedef __UINT8_TYPE__ u8;
typedef __UINT16_TYPE__ u16;
typedef __UINT32_TYPE__ u32;
typedef unsigned long long u64;
typedef __INT8_TYPE__ i8;
typedef __INT32_TYPE__ i32;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef float f32;
#define memcpy __builtin_memcpy
#define memcmp __builtin_memcmp
#define memset __builtin_memset
#define snprintf __builtin_snprintf
#define lrintf __builtin_lrintf
#define fmaf __builtin_fmaf
#define fmaxf __builtin_fmaxf
#define sqrtf __builtin_sqrtf
#define expf __builtin_expf
#define exp2f __builtin_exp2f
#define tanhf __builtin_tanhf
#define sinf __builtin_sinf
#define cosf __builtin_cosf
struct alignas(8) u32x2 { u32 x, y; };
struct alignas(16) u32x4 { u32 x, y, z, w; };
struct alignas(16) f32x4 { f32 x, y, z, w; };

// `Call` in src/library.rs.
struct Call {
    void* const* arguments;
    const u32* constants;
    u32 groups[3];
    u32 threads;
    u8* shared;
    u32 shared_bytes;
    // Bytes of each thread's stack; the stacks are contiguous.
    u32 stack_bytes;
    u8* stacks;
    // 1: threadgroups, SIMD groups and lanes run in reverse order.
    u32 backwards;
    u32 message_bytes;
    char* message;
};

// Saves this fibre's state to `*from` and resumes the one saved in `to`.
extern "C" void emulated_switch(void** from, void* to) __asm__("emulated_switch");
#if defined(__x86_64__)
__asm__(
    ".text\n"
    "emulated_switch:\n"
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
    "ret\n");
// Words that a switch pops; the index of the return address among them; words of padding for alignment.
enum { SAVED = 7, RESUME = 6, REST = 1 };
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".balign 4\n"
    "emulated_switch:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n"
    "ret\n");
enum { SAVED = 20, RESUME = 11, REST = 0 };
#else
#error "the emulator switches fibres on x86-64 and aarch64 only"
#endif

extern "C" int usleep(u32 microseconds);

namespace emulated {

enum { MOST_THREADS = 1024, LANES = 32 };
// `WAITING`: for another device.
enum State { READY, WAITING, AT_SIMD, AT_BARRIER, DONE };

struct Fibre {
    void* stack;
    State state;
    // The line of the operation at which it waits.
    int line;
    // Which of the two sets of slots its next exchange uses (double buffering): a lane may be one exchange ahead of
    // another.
    u32 parity;
};

STATE const u32* constants;
STATE const Call* call;
STATE Fibre fibres[MOST_THREADS];
STATE u32 slots[MOST_THREADS / LANES][2][LANES];
STATE void* scheduler;
STATE u32 thread, group[3];
STATE bool failed;

// The kernel, defined after the dialect.
static void body(void* const* arguments, u32 x, u32 y, u32 z, u32 thread, u8* shared);

// What runs next: the following lane of the SIMD group, in the order of the call, that can; after the last one the
// scheduler.
static void* next() {
    while (!failed && thread % LANES != (call->backwards ? 0 : LANES - 1)) {
        thread += call->backwards ? -1 : 1;
        if (fibres[thread].state <= WAITING) return fibres[thread].stack;
    }
    return scheduler;
}

static void give_way(State state, int line) {
    Fibre& own = fibres[thread];
    own.state = state;
    own.line = line;
    emulated_switch(&own.stack, next());
}

static void fail(const char* what, int line) {
    if (!failed) {
        snprintf(call->message, call->message_bytes, "%s, at line %d in thread %u of group (%u, %u, %u)", what, line, thread,
                 group[0], group[1], group[2]);
    }
    failed = true;
}

static u32 exchange(u32 value, u32 mask, int line) {
    const u32 simd = thread / LANES, lane = thread % LANES, parity = fibres[thread].parity;
    fibres[thread].parity = 1 - parity;
    slots[simd][parity][lane] = value;
    give_way(AT_SIMD, line);
    return slots[simd][parity][lane ^ mask];
}

// The most words that a lane contributes to an exchange of all lanes.
enum { WORDS = 6 };

STATE u32 contributed[MOST_THREADS / LANES][2][LANES][WORDS];

// What each lane of the SIMD group contributed.
typedef const u32 (*Contributed)[WORDS];

static Contributed gather(const u32* words, u32 count, int line) {
    u32 (*all)[WORDS] = contributed[thread / LANES][fibres[thread].parity];
    memcpy(all[thread % LANES], words, count * 4);
    exchange(0, 0, line);
    return all;
}

template <class T>
static T simd_xor(T value, u32 mask, int line) {
    u32 bits;
    memcpy(&bits, &value, 4);
    bits = exchange(bits, mask, line);
    memcpy(&value, &bits, 4);
    return value;
}

static void enter() {
    body(call->arguments, group[0], group[1], group[2], thread, call->shared);
    give_way(DONE, 0);
}

static void start(u32 t) {
    void** top = (void**)(call->stacks + (u64)(t + 1) * call->stack_bytes) - SAVED - REST;
    memset(top, 0, (SAVED + REST) * sizeof(void*));
    top[RESUME] = (void*)enter;
    fibres[t] = {top, READY, 0, 0};
}

// The i-th of `n` indices, in the order of the call.
static u32 in_order(u32 i, u32 n) { return call->backwards ? n - 1 - i : i; }

// Runs a SIMD group until all of its lanes are done or at barriers.
static bool run_simd(u32 simd) {
    for (;;) {
        u32 first = 0;
        while (fibres[simd * LANES + in_order(first, LANES)].state > WAITING) first++;
        thread = simd * LANES + in_order(first, LANES);
        emulated_switch(&scheduler, fibres[thread].stack);
        if (failed) return false;
        u32 waiting = 0, at_simd = 0;
        for (u32 lane = 0; lane < LANES; lane++) {
            waiting += fibres[simd * LANES + lane].state == WAITING;
            at_simd += fibres[simd * LANES + lane].state == AT_SIMD;
        }
        if (waiting > 0) {
            (void)usleep(20);
            continue;
        }
        if (at_simd == 0) return true;
        const int line = fibres[simd * LANES].line;
        for (u32 lane = 0; lane < LANES; lane++) {
            thread = simd * LANES + lane;
            if (fibres[thread].state != AT_SIMD || fibres[thread].line != line) {
                fail("a SIMD word that some lanes do not reach", fibres[thread].line);
                return false;
            }
            fibres[thread].state = READY;
        }
    }
}

static bool run_group() {
    memset(call->shared, 0xff, call->shared_bytes);
    for (u32 t = 0; t < call->threads; t++) start(t);
    for (;;) {
        for (u32 i = 0; i < call->threads / LANES; i++) {
            if (!run_simd(in_order(i, call->threads / LANES))) return false;
        }
        const Fibre first = fibres[0];
        for (thread = 0; thread < call->threads; thread++) {
            if (fibres[thread].state != first.state || fibres[thread].line != first.line) {
                fail("a BARRIER that some threads do not reach", fibres[thread].line);
                return false;
            }
            if (first.state == AT_BARRIER) fibres[thread].state = READY;
        }
        if (first.state == DONE) return true;
    }
}

template <class T>
static T read(const u8* from, int line) {
    T value;
    memset(&value, 0, sizeof value);
    if ((uintptr_t)from % alignof(T) != 0) fail("a load from an address that is not aligned", line);
    else memcpy(&value, from, sizeof value);
    return value;
}

static u32 f16_bits_to_f32_bits(u16 half) {
    const u32 sign = (u32)(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return sign | 0x7f800000u | fraction << 13;
    if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;
    // Subnormal: a whole number of 2^-24.
    const f32 value = (f32)fraction * 5.9604644775390625e-8f;
    u32 bits;
    memcpy(&bits, &value, 4);
    return sign | bits;
}

static u16 f32_bits_to_f16(u32 bits) {
    const u16 sign = (u16)(bits >> 16 & 0x8000);
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fff;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00;
    if (magnitude < 0x38800000u) {
        f32 value;
        memcpy(&value, &magnitude, 4);
        return sign | (u16)lrintf(value * 16777216.0f);
    }
    const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return sign | (u16)((rounded - 0x38000000u) >> 13);
}

}  // namespace emulated

// Returns 0 on success; otherwise the message says what went wrong.
extern "C" int emulated_launch(const Call* call) {
    using namespace emulated;
    emulated::call = call;
    constants = call->constants;
    failed = false;
    const u32* n = call->groups;
    const u64 groups = (u64)n[0] * n[1] * n[2];
    for (u64 i = 0; i < groups; i++) {
        const u64 g = call->backwards ? groups - 1 - i : i;
        group[0] = (u32)(g % n[0]);
        group[1] = (u32)(g / n[0] % n[1]);
        group[2] = (u32)(g / n[0] / n[1]);
        if (!run_group()) return 1;
    }
    return 0;
}

#define TABLE_SPACE static const
#define INLINE static inline
#define OUTLINE static
#define EXP2 exp2f
#define RECIPROCAL(v) (1.0f / (v))
#define UNROLL
#define ROLLED
#define BARRIER() emulated::give_way(emulated::AT_BARRIER, __LINE__)
#define SIMD_XOR(v, mask) emulated::simd_xor(v, mask, __LINE__)
#define SIMD_SYNC() (void)emulated::exchange(0, 0, __LINE__)
#define WAIT_FOR_INPUT()
#define LAUNCH_NEXT()
#define FENCE_EACH()
#define FENCE_ONE()
INLINE u32 emulated_add(u32* p, u32 v) { const u32 old = *p; *p += v; return old; }
#define ATOMIC_ADD(p, v) emulated_add(p, v)
#define TG_ATOMIC_ADD(p, v) emulated_add(p, v)
INLINE i32 dp4a(u32 a, u32 b, i32 sum) {
    for (u32 i = 0; i < 32; i += 8) sum += (i8)(a >> i) * (i8)(b >> i);
    return sum;
}
INLINE u32 byte_perm(u32 a, u32 b, u32 pick) {
    const u64 both = (u64)b << 32 | a;
    u32 out = 0;
    for (u32 i = 0; i < 4; i++) out |= (u32)(both >> 8 * (pick >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
INLINE u32 as_u32(f32 v) { u32 r; memcpy(&r, &v, 4); return r; }
INLINE f32 as_f32(u32 v) { f32 r; memcpy(&r, &v, 4); return r; }
INLINE f32 f16_to_f32(u16 v) { return as_f32(emulated::f16_bits_to_f32_bits(v)); }
INLINE u16 f32_to_f16(f32 v) { return emulated::f32_bits_to_f16(as_u32(v)); }
INLINE i32 round_even(f32 v) { return (i32)lrintf(v); }
INLINE f32 fused(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
INLINE f32 times(f32 a, f32 b) { return a * b; }
INLINE f32 plus(f32 a, f32 b) { return a + b; }
INLINE f32 over(f32 a, f32 b) { return a / b; }
#define weights16(p) emulated::read<u32x4>(p, __LINE__)
#define weights16_half(p) weights16(p)
#define weights8(p) emulated::read<u32x2>(p, __LINE__)
#define weights4(p) emulated::read<u32>(p, __LINE__)
#define weights2(p) emulated::read<u16>(p, __LINE__)
#define weights1(p) emulated::read<u8>(p, __LINE__)
#define read16(p) emulated::read<u32x4>(p, __LINE__)
#define read8(p) emulated::read<u32x2>(p, __LINE__)

// What devices write into each other's memory. Each half is a data word and a word beside it, which arrive together.
static inline void send8(u8* to, u32x2 v) {
    u64 both;
    memcpy(&both, &v, 8);
    __atomic_store_n((u64*)to, both, __ATOMIC_RELEASE);
}
static inline void send16(u8* to, u32x4 v) {
    u64 halves[2];
    memcpy(halves, &v, 16);
    __atomic_store_n((u64*)to, halves[0], __ATOMIC_RELEASE);
    __atomic_store_n((u64*)to + 1, halves[1], __ATOMIC_RELEASE);
}
static inline u32x4 receive16(const u8* from) {
    const u64 halves[2] = {__atomic_load_n((const u64*)from, __ATOMIC_ACQUIRE), __atomic_load_n((const u64*)from + 1, __ATOMIC_ACQUIRE)};
    u32x4 v;
    memcpy(&v, halves, 16);
    return v;
}
static inline void signal(u32* to, u32 v) { __atomic_store_n(to, v, __ATOMIC_RELEASE); }
static inline u32 signalled(const u32* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
extern "C" int clock_gettime(int clock, void* to);
static inline u64 now_ns() {
    long time[2] = {0, 0};
    clock_gettime(1, time);
    return (u64)time[0] * 1000000000ull + (u64)time[1];
}
// The other lanes have to send, too, before all that is waited for can be there.
#define LET_OTHERS_RUN() emulated::give_way(emulated::WAITING, __LINE__)
