// The numbers that attention multiplies on tensor cores: f16, or, where the cache is q8, bf16. Codes of q8 are exact in bf16, which
// has the range of f32, so that weights may be multiplied by the scales of values.

#define QUANTISED (KV_TYPE == 2)

#if QUANTISED
// Bytes of a cached row of q8.
#define ROW_BYTES (HEAD_DIM / 32 * 34)
#define TWO_NUMBERS two_bfloats
#define MULTIPLY multiply_bfloats
INLINE f32 first_of(u32 two) { return as_f32(two << 16); }
INLINE f32 second_of(u32 two) { return as_f32(two & 0xffff0000u); }

// The low bytes of a word's halves, as int8, as bf16: 128 + their seven lower bits, less 128, or 256 if they are negative.
INLINE u32 bfloats_in(u32 word) { return minus_bfloats((word & 0x007f007fu) | 0x43004300u, (word & 0x00800080u) | 0x43004300u); }
// Codes a and b of a word.
INLINE u32 bfloats_of(u32 word, u32 a, u32 b) { return bfloats_in(byte_perm(word, word, a | b << 8)); }
// Code j of two words.
INLINE u32 bfloats_of_two(u32 first, u32 second, u32 j) { return bfloats_in(byte_perm(first, second, j | (j + 4) << 8)); }
#else
#define TWO_NUMBERS two_halves
#define MULTIPLY multiply_halves
INLINE f32 first_of(u32 two) { return f16_to_f32((u16)two); }
INLINE f32 second_of(u32 two) { return f16_to_f32((u16)(two >> 16)); }
#endif

// The remainders of two numbers after rounding (`high`), rounded.
INLINE u32 left_of(f32 a, f32 b, u32 high) { return TWO_NUMBERS(a - first_of(high), b - second_of(high)); }
