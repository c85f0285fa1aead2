// Emulates cuda/warpgroup.h. Each lane computes its own sums, when it waits for them; with threads in reverse order, at once. So
// what is read too early and what is overwritten too early gives other results, in one of the orders.

namespace emulated {

struct Tile {
    const u8* space;
    u32 offset, apart;
};

// Element i of a row of a tile.
static f32 of_row(Tile tile, u32 row, u32 i) {
    const u32 straight = tile.offset + row * 128 + i * 2, swizzled = straight ^ (straight >> 7 & 7) << 4;
    u16 bits;
    memcpy(&bits, tile.space + swizzled, 2);
    return half_of(bits, 0);
}

// Element i of a column: its rows are the elements.
static f32 of_column(Tile tiles, u32 column, u32 i) {
    const Tile tile = {tiles.space, tiles.offset + column / 64 * tiles.apart, 0};
    return of_row(tile, i, column % 64);
}

// 16 elements of a lane's two lines.
struct LinesOf16 {
    f32 v[2][16];
};

static LinesOf16 lines_in_registers(Quad lines, int line) {
    const Contributed contributed = gather(lines.v, 4, line);
    const u32 g = thread % LANES / 4;
    LinesOf16 of;
    for (u32 r = 0; r < 2; r++) {
        for (u32 i = 0; i < 16; i++) of.v[r][i] = half_of(contributed[g * 4 + i % 8 / 2][i / 8 * 2 + r], i);
    }
    return of;
}

struct Product {
    f32* sums;
    LinesOf16 lines;
    Tile by;
    u32 count;
    f32 (*element)(Tile, u32, u32);
    u32 group;
};

// The most pending products of a thread.
enum { MOST_PRODUCTS = 32 };

static Product products[MOST_THREADS][MOST_PRODUCTS];
static u32 product_counts[MOST_THREADS], product_groups[MOST_THREADS];

static void compute(const Product& of) {
    for (u32 j = 0; j < of.count / 8; j++) {
        for (u32 c = 0; c < 2; c++) {
            for (u32 i = 0; i < 16; i++) {
                const f32 x = of.element(of.by, 8 * j + 2 * (thread % 4) + c, i);
                for (u32 r = 0; r < 2; r++) of.sums[4 * j + 2 * r + c] += of.lines.v[r][i] * x;
            }
        }
    }
}

// Computes the products of all groups before this one.
static void products_done_before(u32 group) {
    u32 kept = 0;
    for (u32 i = 0; i < product_counts[thread]; i++) {
        const Product product = products[thread][i];
        if ((i32)(product.group - group) >= 0) products[thread][kept++] = product;
        else compute(product);
    }
    product_counts[thread] = kept;
}

static void multiply(f32* sums, LinesOf16 lines, Tile by, u32 count, f32 (*element)(Tile, u32, u32), int line) {
    const Product product = {sums, lines, by, count, element, product_groups[thread]};
    if (call->backwards) compute(product);
    else if (product_counts[thread] == MOST_PRODUCTS) fail("more products than the emulator remembers", line);
    else products[thread][product_counts[thread]++] = product;
}

// The products and sums of halves below are exact in f32.
static u32 of_halves(u32 a, u32 b, u32 c, f32 (*of)(f32, f32, f32)) {
    u32 both = 0;
    for (u32 i = 0; i < 2; i++) {
        const f32 value = of(half_of(a, i), half_of(b, i), half_of(c, i));
        u32 bits;
        memcpy(&bits, &value, 4);
        both |= (u32)f32_bits_to_f16(bits) << 16 * i;
    }
    return both;
}

}  // namespace emulated

typedef emulated::Tile Tile;
static inline Tile tiles_at(const u8* space, u32 offset, u32 apart) { return {space, offset, apart}; }
static inline Tile tile_at(const u8* space, u32 offset) { return {space, offset, 0}; }
static inline Tile further(Tile tile, u32 bytes) { return {tile.space, tile.offset + bytes, tile.apart}; }
#define IN_REGISTER(name, value) const u32 name = value
#define MULTIPLY_IN_REGISTERS(sums, lines, by, count, element) \
    emulated::multiply(sums, emulated::lines_in_registers(lines, __LINE__), by, count, emulated::element, __LINE__)
#define multiply_by_64_rows(sums, lines, rows) MULTIPLY_IN_REGISTERS(sums, lines, rows, 64, of_row)
#define multiply_by_128_rows(sums, lines, rows) MULTIPLY_IN_REGISTERS(sums, lines, rows, 128, of_row)
#define multiply_by_64_columns(sums, lines, columns) MULTIPLY_IN_REGISTERS(sums, lines, columns, 64, of_column)
#define multiply_by_128_columns(sums, lines, columns) MULTIPLY_IN_REGISTERS(sums, lines, columns, 128, of_column)
static inline u32 plus_halves(u32 a, u32 b) { return emulated::of_halves(a, b, 0, [](f32 x, f32 y, f32) { return x + y; }); }
static inline u32 times_halves(u32 a, u32 b) { return emulated::of_halves(a, b, 0, [](f32 x, f32 y, f32) { return x * y; }); }
static inline u32 fused_halves(u32 a, u32 b, u32 c) { return emulated::of_halves(a, b, c, [](f32 x, f32 y, f32 z) { return x * y + z; }); }
#define SHOW_COPIES()
#define BEGIN_PRODUCTS()
#define END_PRODUCTS() (void)emulated::product_groups[emulated::thread]++
#define PRODUCTS_DONE_BUT(n) emulated::products_done_before(emulated::product_groups[emulated::thread] - (n))
