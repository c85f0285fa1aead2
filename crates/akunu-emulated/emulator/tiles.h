// Words of metal/tiles.h. Of a tile, row by row, a lane has numbers 2 · lane and 2 · lane + 1; kernels may not know.

namespace emulated {

// T is what a number is in memory.
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

// All lanes have to come with the same place.
static void meet_at(const void* at, u32 stride, u32 align, int line) {
    u32 words[3];
    memcpy(words, &at, 8);
    words[2] = stride;
    const Brought brought = meet(words, 3, line);
    if (memcmp(brought[0], words, sizeof words) != 0) fail("a tile that lanes look for in different places", line);
    if ((uintptr_t)at % align != 0) fail("a tile that is not aligned", line);
}

template <class T, class Stored>
static void bring_tile(TileOf<T>* tile, const Stored* from, u32 stride, bool aside, int line) {
    static_assert(sizeof(T) == sizeof(Stored), "a tile's numbers");
    meet_at(from, stride, sizeof(T), line);
    for (u32 i = 0; i < 2; i++) {
        const u32 e = thread % LANES * 2 + i, row = e / 8, column = e % 8;
        T stored;
        memcpy(&stored, from + (aside ? column * stride + row : row * stride + column), sizeof stored);
        tile->v[i] = number(stored);
    }
}

static void store_tile(const TileOf<f32>* tile, f32* to, u32 stride, int line) {
    meet_at(to, stride, 4, line);
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
    const Brought brought = meet(words, 4, line);
    for (u32 i = 0; i < 2; i++) {
        const u32 e = thread % LANES * 2 + i, row = e / 8, column = e % 8;
        f32 sum = sums->v[i];
        for (u32 k = 0; k < 8; k++) {
            const u32 from_a = row * 8 + k, from_b = k * 8 + column;
            sum += number_of_bits(brought[from_a / 2][from_a % 2]) * number_of_bits(brought[from_b / 2][2 + from_b % 2]);
        }
        sums->v[i] = sum;
    }
}

}  // namespace emulated

typedef emulated::TileOf<f32> Tile;
typedef emulated::TileOf<emulated::Half> HalfTile;
typedef emulated::TileOf<emulated::Bf16> Bf16Tile;
static Tile filled_tile(f32 value) { return {{value, value}}; }
#define EXP2 exp2f
#define load_tile(tile, from, stride) emulated::bring_tile(tile, from, stride, false, __LINE__)
#define load_tile_transposed(tile, from, stride) emulated::bring_tile(tile, from, stride, true, __LINE__)
#define store_tile(tile, to, stride) emulated::store_tile(tile, to, stride, __LINE__)
#define multiply_tiles(sums, a, b) emulated::multiply_tiles(sums, a, b, __LINE__)
