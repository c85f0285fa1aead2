// Tensor core instructions: compute capability 8.0 or higher. The emulator has its own implementation.

#if defined(__CUDACC__)
struct Quad {
    u32 v[4];
};

struct Floats {
    f32 v[4];
};

// ldmatrix of four matrices of 8 rows × 16 bytes: lane i gives the address of row i % 8 of matrix i / 8. Word m of the
// result is bytes 4 (lane % 4) … of row lane / 4 of matrix m.
INLINE Quad load_lines(const THREADGROUP u8* line) {
    Quad q;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.v[0]), "=r"(q.v[1]), "=r"(q.v[2]), "=r"(q.v[3])
                 : "r"(shared_address(line))
                 : "memory");
    return q;
}
// The same, transposed as f16: word m of the result is element lane / 4 of rows 2 (lane % 4) and 2 (lane % 4) + 1.
INLINE Quad load_lines_transposed(const THREADGROUP u8* line) {
    Quad q;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.v[0]), "=r"(q.v[1]), "=r"(q.v[2]), "=r"(q.v[3])
                 : "r"(shared_address(line))
                 : "memory");
    return q;
}

// int8 product of 16 rows × 8 columns over 16 elements; each sum starts at `start`. With g = lane / 4 and t = lane %
// 4, a lane passes elements 4t … 4t + 3 of row g, of row g + 8 and of column g, and gets rows g and g + 8 (words 0 1
// and 2 3) of columns 2t and 2t + 1.
INLINE Quad multiply_16(u32 a0, u32 a1, u32 b, u32 start) {
    Quad q;
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(q.v[0]), "=r"(q.v[1]), "=r"(q.v[2]), "=r"(q.v[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(start));
    return q;
}
// The same over 32 elements; the second 16 are in a.v[2], a.v[3] and b1.
INLINE Quad multiply_32(Quad a, u32 b0, u32 b1, u32 start) {
    Quad q;
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(q.v[0]), "=r"(q.v[1]), "=r"(q.v[2]), "=r"(q.v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1), "r"(start));
    return q;
}
// f16 product over 16 elements, accumulated on `sums` in f32: a lane passes elements 2t and 2t + 1 of row g, of row g
// + 8 and of column g, then elements 2t + 8 and 2t + 9 of the same.
INLINE Floats multiply_halves(Quad a, u32 b0, u32 b1, Floats sums) {
    Floats f;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(f.v[0]), "=f"(f.v[1]), "=f"(f.v[2]), "=f"(f.v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1), "f"(sums.v[0]), "f"(sums.v[1]), "f"(sums.v[2]),
          "f"(sums.v[3]));
    return f;
}
// The same of bf16.
INLINE Floats multiply_bfloats(Quad a, u32 b0, u32 b1, Floats sums) {
    Floats f;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(f.v[0]), "=f"(f.v[1]), "=f"(f.v[2]), "=f"(f.v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1), "f"(sums.v[0]), "f"(sums.v[1]), "f"(sums.v[2]),
          "f"(sums.v[3]));
    return f;
}
// Two bf16 packed in a word, the first in the low half; and the differences of two of them, a + b · −1.
INLINE u32 two_bfloats(f32 a, f32 b) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); return r; }
INLINE u32 minus_bfloats(u32 a, u32 b) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return r;
}
// tf32 product over 8 elements, accumulated on `sums`: in words 0 and 1 of `a` and in b0 a lane passes element t of
// row g, of row g + 8 and of column g; in words 2 and 3 and in b1, element t + 4.
INLINE Floats multiply_tf32(Quad a, u32 b0, u32 b1, Floats sums) {
    Floats f;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(f.v[0]), "=f"(f.v[1]), "=f"(f.v[2]), "=f"(f.v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1), "f"(sums.v[0]), "f"(sums.v[1]), "f"(sums.v[2]),
          "f"(sums.v[3]));
    return f;
}
#endif
