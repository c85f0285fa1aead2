// Emulates metal/tiles.h. In row-major order a lane has elements 2 · lane and 2 · lane + 1 of a tile; kernels must not
// rely on it.

namespace emulated {

// T is the type of a number in memory.
template <class T>
struct TileOf { f32 v[2]; };

struct Half { u16 bits; };
struct Bf16 { u16 bits; };

static f32 number(f32 value) { return value; }
static f32 number_of_bits(u32 bits) {
    f32 value;
    memcpy(&value, &bits, 4);
    return value;
}
static f32 number(Half value) { return number_of_bits(f16_bits_to_f32_bits(value.bits)); }
static f32 number(Bf16 value) { return number_of_bits((u32)value.bits << 16); }

// All lanes must pass the same address.
static void gather_address(const void* at, u32 stride, u32 align, int line) {
    u32 words[3];
    memcpy(words, &at, 8);
    words[2] = stride;
    const Contributed contributed = gather(words, 3, line);
    if (memcmp(contributed[0], words, sizeof words) != 0) fail("a tile that lanes look for in different places", line);
    if ((uintptr_t)at % align != 0) fail("a tile that is not aligned", line);
}

template <class T, class Stored>
static void read_tile(TileOf<T>* tile, const Stored* from, u32 stride, bool transposed, int line) {
    static_assert(sizeof(T) == sizeof(Stored), "a tile's numbers");
    gather_address(from, stride, sizeof(T), line);
    for (u32 i = 0; i < 2; i++) {
        const u32 e = thread % LANES * 2 + i, row = e / 8, column = e % 8;
        T stored;
        memcpy(&stored, from + (transposed ? column * stride + row : row * stride + column), sizeof stored);
        tile->v[i] = number(stored);
    }
}

static void store_tile(const TileOf<f32>* tile, f32* to, u32 stride, int line) {
    gather_address(to, stride, 4, line);
    for (u32 i = 0; i < 2; i++) {
        const u32 e = thread % LANES * 2 + i;
        to[e / 8 * stride + e % 8] = tile->v[i];
    }
}

template <class A, class B>
static void multiply_tiles(TileOf<f32>* sums, const TileOf<A>* a, const TileOf<B>* b, int line) {
    u32 words[4];
    memcpy(words, a->v, 8);
    memcpy(words + 2, b->v, 8);
    const Contributed contributed = gather(words, 4, line);
    for (u32 i = 0; i < 2; i++) {
        const u32 e = thread % LANES * 2 + i, row = e / 8, column = e % 8;
        f32 sum = sums->v[i];
        for (u32 k = 0; k < 8; k++) {
            const u32 from_a = row * 8 + k, from_b = k * 8 + column;
            sum += number_of_bits(contributed[from_a / 2][from_a % 2]) * number_of_bits(contributed[from_b / 2][2 + from_b % 2]);
        }
        sums->v[i] = sum;
    }
}

}  // namespace emulated

typedef emulated::TileOf<f32> Tile;
typedef emulated::TileOf<emulated::Half> HalfTile;
typedef emulated::TileOf<emulated::Bf16> Bf16Tile;
static Tile filled_tile(f32 value) { return {{value, value}}; }
#define load_tile(tile, from, stride) emulated::read_tile(tile, from, stride, false, __LINE__)
#define load_tile_transposed(tile, from, stride) emulated::read_tile(tile, from, stride, true, __LINE__)
#define store_tile(tile, to, stride) emulated::store_tile(tile, to, stride, __LINE__)
#define multiply_tiles(sums, a, b) emulated::multiply_tiles(sums, a, b, __LINE__)
