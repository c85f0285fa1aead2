// Asynchronous tensor instructions of a warpgroup (wgmma): compute capability 9.0. The emulator has its own implementation.
//
// Rows in threadgroup memory are in tiles of 64 elements, 128 bytes a row, at a multiple of 1024 bytes; the chunks of 16
// bytes of row n are permuted: chunk c is in place c ^ n % 8.

#if defined(__CUDACC__)
INLINE u32 plus_halves(u32 a, u32 b) { u32 r; asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
INLINE u32 fused_halves(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
INLINE u32 times_halves(u32 a, u32 b) { u32 r; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }

// What this thread has copied is seen by the instructions of all threads after a barrier.
#define SHOW_COPIES() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
// Before the first product of a group, and after registers of sums or weights have changed.
#define BEGIN_PRODUCTS() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define END_PRODUCTS() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
// Waits for all groups but the last `n`.
#define PRODUCTS_DONE_BUT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PRODUCT(shape) "{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned." shape ".f32.f16.f16 "
#define PRODUCT_64 PRODUCT("m64n64k16") "{" NAMES_32 "}, "
#define PRODUCT_128 PRODUCT("m64n128k16") "{" NAMES_64 "}, "
#define IN_REGISTERS(quad) "r"(quad.v[0]), "r"(quad.v[1]), "r"(quad.v[2]), "r"(quad.v[3])

// Where a tile of rows begins, as the instructions take it.
typedef u64 Tile;

// `apart`: bytes from a tile to that of the next 64 elements, for multiply_by_128_columns; rows do not use it.
INLINE Tile tiles_at(THREADGROUP u8* space, u32 offset, u32 apart) {
    return (u64)((shared_address(space) + offset) >> 4 & 0x3fff) | (u64)(apart >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
INLINE Tile tile_at(THREADGROUP u8* space, u32 offset) { return tiles_at(space, offset, 16); }
// The tile from `bytes` on, a multiple of 16.
INLINE Tile further(Tile tile, u32 bytes) { return tile + (bytes >> 4); }

// A constant that the compiler keeps in a register.
#define IN_REGISTER(name, value) u32 name; asm volatile("mov.u32 %0, " #value ";" : "=r"(name))

// Each adds the products of 64 lines over 16 elements to `sums`. With g = lane / 4 and t = lane % 4, sums[4j + e] is that of
// line g + e / 2 · 8 of the SIMD group's 16, and of row, or column, 8j + 2t + e % 2. Where a lane passes elements of lines, they
// are 2t and 2t + 1 of lines g and g + 8, then 2t + 8 and 2t + 9 of the same.

// Lines in registers, times 64 or 128 rows in a tile.
INLINE void multiply_by_64_rows(THREAD_PTR f32* sums, Quad lines, Tile rows) {
    asm volatile(PRODUCT_64 "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }" : SUMS_32(0) : IN_REGISTERS(lines), "l"(rows));
}
INLINE void multiply_by_128_rows(THREAD_PTR f32* sums, Quad lines, Tile rows) {
    asm volatile(PRODUCT_128 "{%64, %65, %66, %67}, %68, p, 1, 1, 0; }" : SUMS_32(0), SUMS_32(32) : IN_REGISTERS(lines), "l"(rows));
}
// Lines in registers, times 64 or 128 columns: element i of all columns is row i of the tiles.
INLINE void multiply_by_64_columns(THREAD_PTR f32* sums, Quad lines, Tile columns) {
    asm volatile(PRODUCT_64 "{%32, %33, %34, %35}, %36, p, 1, 1, 1; }" : SUMS_32(0) : IN_REGISTERS(lines), "l"(columns));
}
INLINE void multiply_by_128_columns(THREAD_PTR f32* sums, Quad lines, Tile columns) {
    asm volatile(PRODUCT_128 "{%64, %65, %66, %67}, %68, p, 1, 1, 1; }" : SUMS_32(0), SUMS_32(32) : IN_REGISTERS(lines), "l"(columns));
}
#endif
