// The dialect: one vocabulary over CUDA, Metal and the emulator. Kernels use only these macros and functions. A SIMD
// group has 32 lanes. SIMD_* operations must be reached by all 32 lanes, BARRIER by all threads of the threadgroup.

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
using namespace metal;
typedef uchar u8; typedef ushort u16; typedef uint u32; typedef ulong u64;
typedef char i8; typedef int i32; typedef float f32; typedef uint4 u32x4; typedef uint2 u32x2; typedef float4 f32x4;
#define DEVICE device
#define THREADGROUP threadgroup
#define THREAD_PTR thread
#define TABLE_SPACE constant
#define INLINE static inline
#define OUTLINE static __attribute__((noinline))
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll(1)")
#define BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define SIMD_XOR(v, mask) simd_shuffle_xor(v, (ushort)(mask))
#define SIMD_SUM(v) simd_sum(v)
#define SIMD_SUM_I32(v) simd_sum(v)
#define SIMD_MAX(v) simd_max(v)
#define SIMD_MAX_U32(v) simd_max(v)
#define SIMD_SYNC() simdgroup_barrier(mem_flags::mem_threadgroup)
#define WAIT_FOR_INPUT()
#define LAUNCH_NEXT()
// Before Metal 3.2 (macOS 15) there is no device-scope fence. A threadgroup barrier on device memory is the closest
// substitute, but the specification does not promise that other threadgroups see the writes.
#if __METAL_VERSION__ >= 320
#define FENCE_EACH() atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device)
#else
#define FENCE_EACH() threadgroup_barrier(mem_flags::mem_device)
#endif
#define FENCE_ONE()
#define ATOMIC_ADD(p, v) atomic_fetch_add_explicit((device atomic_uint*)(p), v, memory_order_relaxed)
#define TG_ATOMIC_ADD(p, v) atomic_fetch_add_explicit((threadgroup atomic_uint*)(p), v, memory_order_relaxed)
// Until the launch ends, plain device stores are coherent only within the threadgroup; atomics are coherent across
// threadgroups. So data for another threadgroup is written and read as 32-bit atomics.
template <typename T>
INLINE void publish(DEVICE T* to, T value) {
    const THREAD_PTR u32* words = (const THREAD_PTR u32*)&value;
    UNROLL for (u32 i = 0; i < sizeof(T) / 4; i++) atomic_store_explicit((device atomic_uint*)to + i, words[i], memory_order_relaxed);
}
template <typename T>
INLINE T published(const DEVICE T* from) {
    T value;
    THREAD_PTR u32* words = (THREAD_PTR u32*)&value;
    UNROLL for (u32 i = 0; i < sizeof(T) / 4; i++) words[i] = atomic_load_explicit((const device atomic_uint*)from + i, memory_order_relaxed);
    return value;
}
INLINE i32 dp4a(u32 a, u32 b, i32 sum) {
    const char4 x = as_type<char4>(a), y = as_type<char4>(b);
    return sum + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
INLINE u32 byte_perm(u32 a, u32 b, u32 pick) {
    const ulong both = (ulong)b << 32 | a;
    u32 out = 0;
    for (u32 i = 0; i < 4; i++) out |= (u32)(both >> (8 * (pick >> (4 * i) & 7)) & 255) << (8 * i);
    return out;
}
INLINE u32 as_u32(f32 v) { return as_type<u32>(v); }
INLINE f32 as_f32(u32 v) { return as_type<f32>(v); }
INLINE f32 f16_to_f32(u16 v) { return (f32)as_type<half>(v); }
INLINE u16 f32_to_f16(f32 v) { return as_type<u16>((half)v); }
INLINE i32 round_even(f32 v) { return (i32)rint(v); }
INLINE f32 fused(f32 a, f32 b, f32 c) { return fma(a, b, c); }
INLINE f32 times(f32 a, f32 b) { return fma(a, b, -0.0f); }
INLINE f32 plus(f32 a, f32 b) { return fma(a, 1.0f, b); }
INLINE f32 over(f32 a, f32 b) { return precise::divide(a, b); }
#define EXP precise::exp
#define EXP2 precise::exp2
#define RECIPROCAL(v) (1.0f / (v))
#define TANH precise::tanh
#define SIN precise::sin
#define COS precise::cos
#define SQRT precise::sqrt
#define MAX_F32 fmax
INLINE u32x4 weights16(const DEVICE u8* p) { return *(const DEVICE u32x4*)p; }
INLINE u32x4 weights16_half(const DEVICE u8* p) { return weights16(p); }
INLINE u32x2 weights8(const DEVICE u8* p) { return *(const DEVICE u32x2*)p; }
INLINE u32 weights4(const DEVICE u8* p) { return *(const DEVICE u32*)p; }
INLINE u32 weights2(const DEVICE u8* p) { return *(const DEVICE u16*)p; }
INLINE u32 weights1(const DEVICE u8* p) { return *p; }
INLINE u32x4 read16(const DEVICE u8* p) { return *(const DEVICE u32x4*)p; }
INLINE u32x2 read8(const DEVICE u8* p) { return *(const DEVICE u32x2*)p; }
INLINE u32x4 read16(const THREADGROUP u8* p) { return *(const THREADGROUP u32x4*)p; }
INLINE u32x2 read8(const THREADGROUP u8* p) { return *(const THREADGROUP u32x2*)p; }

#else
#define DEVICE
#define THREADGROUP
#define THREAD_PTR

#if defined(__CUDACC__)
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef signed char i8; typedef int i32; typedef float f32; typedef uint4 u32x4; typedef uint2 u32x2; typedef float4 f32x4;
#define TABLE_SPACE __device__ const
#define INLINE __device__ __forceinline__
#define OUTLINE static __device__ __noinline__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define BARRIER() __syncthreads()
#define SIMD_XOR(v, mask) __shfl_xor_sync(0xffffffffu, v, mask)
#define SIMD_SYNC() __syncwarp()
#define FENCE_EACH()
#define FENCE_ONE() asm volatile("fence.acq_rel.gpu;" ::: "memory")
#define ATOMIC_ADD(p, v) atomicAdd(p, v)
#define TG_ATOMIC_ADD(p, v) atomicAdd(p, v)
#if __CUDA_ARCH__ >= 900
// Code before the wait overlaps the tail of the previous kernel (programmatic dependent launch), so it must not read
// anything that kernel writes. Writes of earlier kernels are visible: each kernel triggers its dependent launch only
// after its own wait.
#define WAIT_FOR_INPUT() asm volatile("griddepcontrol.wait;" ::: "memory")
#define LAUNCH_NEXT() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define WAIT_FOR_INPUT()
#define LAUNCH_NEXT()
#endif
INLINE i32 dp4a(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }
INLINE u32 byte_perm(u32 a, u32 b, u32 pick) { return __byte_perm(a, b, pick); }
INLINE u32 as_u32(f32 v) { return __float_as_uint(v); }
INLINE f32 as_f32(u32 v) { return __uint_as_float(v); }
INLINE f32 f16_to_f32(u16 v) { f32 r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v)); return r; }
INLINE u16 f32_to_f16(f32 v) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }
INLINE i32 round_even(f32 v) { return __float2int_rn(v); }
INLINE f32 fused(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
INLINE f32 times(f32 a, f32 b) { return __fmul_rn(a, b); }
INLINE f32 plus(f32 a, f32 b) { return __fadd_rn(a, b); }
INLINE f32 over(f32 a, f32 b) { return __fdiv_rn(a, b); }
INLINE f32 exp2_of(f32 v) { f32 r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
INLINE f32 reciprocal(f32 v) { f32 r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
#define EXP2 exp2_of
#define RECIPROCAL reciprocal
#if defined(STREAMED)
// Streaming kernels have copied their weights to threadgroup memory before they read them.
INLINE u32x4 weights16(const u8* p) { return *(const u32x4*)p; }
INLINE u32x4 weights16_half(const u8* p) { return weights16(p); }
INLINE u32x2 weights8(const u8* p) { return *(const u32x2*)p; }
INLINE u32 weights4(const u8* p) { return *(const u32*)p; }
INLINE u32 weights2(const u8* p) { return *(const u16*)p; }
INLINE u32 weights1(const u8* p) { return *p; }
#else
// Weights are read once, so they bypass L1, which is left to the activations. Not `ld.global.nc`: the compiler may
// move such loads down to where their results are used, and so past the grid dependency wait.
INLINE u32x4 weights16(const u8* p) {
    u32x4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
INLINE u32x2 weights8(const u8* p) {
    u32x2 v;
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
// Loads narrower than a 32-byte sector do allocate in L1: the next load hits the same sector or line.
INLINE u32x4 weights16_half(const u8* p) {
    u32x4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
INLINE u32 weights4(const u8* p) { u32 v; asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
INLINE u32 weights2(const u8* p) { u16 v; asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p)); return v; }
INLINE u32 weights1(const u8* p) { u32 v; asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
#endif
INLINE u32x4 read16(const u8* p) { return *(const u32x4*)p; }
INLINE u32x2 read8(const u8* p) { return *(const u32x2*)p; }
// Between GPUs: 8 bytes, which arrive together; 16, of which each half does; and words that are seen after all that the group wrote before.
INLINE void send8(u8* to, u32x2 v) { asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" : : "l"(to), "r"(v.x), "r"(v.y) : "memory"); }
INLINE void send16(u8* to, u32x4 v) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" : : "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
INLINE u32x4 receive16(const u8* from) {
    u32x4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}
INLINE void signal(u32* to, u32 v) { asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u32 [%0], %1;" : : "l"(to), "r"(v) : "memory"); }
INLINE u32 signalled(const u32* from) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}
INLINE u64 now_ns() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
#define LET_OTHERS_RUN()
#endif // Otherwise the emulator's header, which precedes this file, defines all of the above.

// Data that another threadgroup of the same launch reads after `last_to_finish`.
#define publish(to, value) (void)(*(to) = (value))
#define published(from) (*(from))

#define EXP expf
#define TANH tanhf
#define SIN sinf
#define COS cosf
#define SQRT sqrtf
#define MAX_F32 fmaxf

INLINE f32 simd_sum(f32 v) {
    UNROLL for (u32 step = 16; step > 0; step /= 2) v += SIMD_XOR(v, step);
    return v;
}
INLINE f32 simd_max(f32 v) {
    UNROLL for (u32 step = 16; step > 0; step /= 2) v = MAX_F32(v, SIMD_XOR(v, step));
    return v;
}
#if defined(__CUDACC__)
INLINE i32 simd_sum_i32(i32 v) { return __reduce_add_sync(0xffffffffu, v); }
INLINE u32 simd_max_u32(u32 v) { return __reduce_max_sync(0xffffffffu, v); }
#else
INLINE i32 simd_sum_i32(i32 v) {
    UNROLL for (u32 step = 16; step > 0; step /= 2) v += SIMD_XOR(v, step);
    return v;
}
INLINE u32 simd_max_u32(u32 v) {
    UNROLL for (u32 step = 16; step > 0; step /= 2) {
        const u32 other = SIMD_XOR(v, step);
        v = v > other ? v : other;
    }
    return v;
}
#endif
#define SIMD_SUM(v) simd_sum(v)
#define SIMD_SUM_I32(v) simd_sum_i32(v)
#define SIMD_MAX(v) simd_max(v)
#define SIMD_MAX_U32(v) simd_max_u32(v)
#endif

INLINE f32 bf16_to_f32(u32 v) { return as_f32(v << 16); }

// Two f16 packed in a word, the first in the low half.
INLINE u32 two_halves(f32 a, f32 b) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
#else
    return f32_to_f16(a) | (u32)f32_to_f16(b) << 16;
#endif
}

// A pointer into the launch's dynamic threadgroup memory, `offset` bytes from its start.
#define TG_ARRAY(type, name, offset) THREADGROUP type* const name = (THREADGROUP type*)(at.shared + (offset))

// The address space from which a product reads its input. With INPUT_PIECES the threads first stage it in threadgroup
// memory, INPUT_PIECES chunks of 16 bytes per thread.
#if INPUT_PIECES
#define INPUT THREADGROUP
#else
#define INPUT DEVICE
#endif
