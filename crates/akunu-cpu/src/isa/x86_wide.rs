//! Two blocks in a 512-bit register: how AVX-512 multiplies one row, and unpacks a panel for many.

use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::simd;
use super::avx512::{Avx512, first_mask};
use super::x86_quants::{Nibbles, QuantX86, Scales, no_scales, unpack_scales};
use crate::panel::{F16x, Panel};
use crate::quants::{Min, Sub, k4_scales, u32_at};
use crate::tile::Terms;

#[inline(always)]
pub(crate) fn join_integers(low: __m256i, high: __m256i) -> __m512i {
    simd!(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1))
}

#[inline(always)]
pub(crate) fn join(low: __m256, high: __m256) -> __m512 {
    simd!(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1))
}

#[inline(always)]
fn load64(p: *const u8) -> __m512i {
    simd!(_mm512_loadu_si512(p.cast()))
}

#[inline(always)]
pub(crate) fn and_wide(v: __m512i, mask: i8) -> __m512i {
    simd!(_mm512_and_si512(v, _mm512_set1_epi8(mask)))
}

/// Shifts the bytes of each half right by its own count; bits that come in from the byte above have to be masked off.
#[inline(always)]
fn shift_halves(v: __m512i, low: usize, high: usize) -> __m512i {
    simd!({
        let counts = join_integers(_mm256_set1_epi16(low as i16), _mm256_set1_epi16(high as i16));
        _mm512_srlv_epi16(v, counts)
    })
}

/// The same 32 bytes in both halves, as quants of two blocks come from them.
#[inline(always)]
pub(crate) fn both_shifted(p: *const u8, low: usize, high: usize) -> __m512i {
    simd!(shift_halves(_mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())), low, high))
}

/// Q6_K's quants of two blocks, 32 too large.
#[inline(always)]
pub(crate) unsafe fn q6k_raised(w: *const u8, b: usize) -> __m512i {
    let (half, quarter) = (b / 4, b % 4);
    simd!({
        let low = load64(w.add(half * 64));
        let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(w.add(128 + half * 32).cast()));
        let (low, high) = if quarter == 0 {
            let counts = join_integers(_mm256_set1_epi16(4), _mm256_set1_epi16(2));
            (low, _mm512_sllv_epi16(high, counts))
        } else {
            (_mm512_srli_epi16(low, 4), shift_halves(high, 0, 2))
        };
        // The low four bits of one, the rest of the other.
        _mm512_ternarylogic_epi32(low, and_wide(high, 0x30), _mm512_set1_epi8(15), 0xe4)
    })
}

/// Q3_K's quants of two blocks, 4 too large.
#[inline(always)]
pub(crate) unsafe fn q3k_raised(w: *const u8, b: usize) -> __m512i {
    let shift = b % 4 * 2;
    simd!({
        let low = and_wide(both_shifted(w.add(32 + b / 4 * 32), shift, shift + 2), 3);
        _mm512_or_si512(low, where_bits(w, b, 4))
    })
}

/// d and m of two octets, `bytes` apart, of Q4_K or Q5_K.
#[inline(always)]
pub(crate) unsafe fn k4_of_two(w: *const u8, bytes: usize) -> (__m512, __m512) {
    simd!({
        let other = w.add(bytes);
        let (sub, min) = k4_scales(w);
        let (other_sub, other_min) = k4_scales(other);
        let halves = _mm_set_epi32(0, 0, u32_at(other, 0) as i32, u32_at(w, 0) as i32);
        // d and −m of the first, then of the other.
        let signed = _mm_xor_ps(_mm_cvtph_ps(halves), _mm_setr_ps(0.0, -0.0, 0.0, -0.0));
        let signed = _mm512_castps128_ps512(signed);
        let places = join_integers(_mm256_setzero_si256(), _mm256_set1_epi32(2));
        let d = _mm512_permutexvar_ps(places, signed);
        let m = _mm512_permutexvar_ps(_mm512_add_epi32(places, _mm512_set1_epi32(1)), signed);
        (_mm512_mul_ps(d, sixteen_bytes(sub, other_sub)), _mm512_mul_ps(m, sixteen_bytes(min, other_min)))
    })
}

#[inline(always)]
fn sixteen_bytes(low: u64, high: u64) -> __m512 {
    simd!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(high as i64, low as i64))))
}

/// `value` in each byte of the first half whose bit `bit` is set, and of the second whose next one is.
#[inline(always)]
pub(crate) fn where_bits(p: *const u8, bit: usize, value: i8) -> __m512i {
    simd!({
        let v = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let mask = |bit: usize| (1_u8 << bit) as i8;
        let bits = join_integers(_mm256_set1_epi8(mask(bit)), _mm256_set1_epi8(mask(bit + 1)));
        _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(v, bits), value)
    })
}

/// Low nibbles of sixteen bytes, then high ones, of two blocks.
#[inline(always)]
pub(crate) fn nibbles_of_two(first: *const u8, second: *const u8) -> __m512i {
    simd!({
        let v = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
        let v = _mm512_mask_broadcast_i32x4(v, 0xff00, _mm_loadu_si128(second.cast()));
        let counts = _mm512_set_epi64(
            0x0004_0004_0004_0004,
            0x0004_0004_0004_0004,
            0,
            0,
            0x0004_0004_0004_0004,
            0x0004_0004_0004_0004,
            0,
            0,
        );
        and_wide(_mm512_srlv_epi16(v, counts), 15)
    })
}

/// What nibbles stand for.
#[inline(always)]
pub(crate) fn looked_up_wide(table: &[i8; 16], nibbles: __m512i) -> __m512i {
    simd!({
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, nibbles)
    })
}

/// What unsigned quants are too large by.
pub(crate) const fn offset<Q: QuantX86>() -> i32 {
    if Q::SIGNED { Q::OFFSET + 128 } else { Q::OFFSET }
}

/// A shift where it can be one: products of 32 bits are slow.
#[inline(always)]
fn times(v: __m512i, n: i32) -> __m512i {
    simd!(if n > 0 && n.unsigned_abs().is_power_of_two() {
        _mm512_sllv_epi32(v, _mm512_set1_epi32(n.trailing_zeros() as i32))
    } else {
        _mm512_mullo_epi32(v, _mm512_set1_epi32(n))
    })
}

/// The sums of each half of eight registers: sixteen blocks in order.
#[inline(always)]
fn reduce16(v: [__m512i; 8]) -> __m512i {
    simd!({
        let mut fours = [_mm512_setzero_si512(); 2];
        for i in 0..2 {
            let at = i * 4;
            let mut twos = [_mm512_setzero_si512(); 2];
            for j in 0..2 {
                let (a, b) = (v[at + j * 2], v[at + j * 2 + 1]);
                twos[j] = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            }
            let (a, b) = (twos[0], twos[1]);
            fours[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        }
        // Quarters 0 and 1 of each are even blocks, 2 and 3 odd ones.
        let first = _mm512_shuffle_i32x4(fours[0], fours[1], 0b10_00_10_00);
        let second = _mm512_shuffle_i32x4(fours[0], fours[1], 0b11_01_11_01);
        let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        _mm512_permutexvar_epi32(order, _mm512_add_epi32(first, second))
    })
}

/// Which words of blocks of `stride` bytes are their first halves, and their second ones: in 32 words at a time, and of
/// which 32 words.
const fn places(stride: usize) -> ([u16; 32], [u32; 9]) {
    let (mut places, mut chunks) = ([0; 32], [0; 9]);
    let mut lane = 0;
    while lane < 32 {
        let word = lane % 16 * stride / 2 + lane / 16;
        places[lane] = (word % 32) as u16;
        chunks[word / 32] |= 1 << lane;
        lane += 1;
    }
    (places, chunks)
}

/// The two halves that begin each of `blocks` ≤ 16 blocks; the other lanes are 0.
#[inline(always)]
unsafe fn leading_halves<Q: QuantX86>(w: *const u8, blocks: usize) -> (__m512, __m512) {
    let (places, chunks) = const { &places(if Q::LEADING_HALVES { Q::BLOCK.bytes } else { 0 }) };
    simd!({
        let bytes = blocks * Q::BLOCK.bytes;
        let order = _mm512_loadu_si512(places.as_ptr().cast());
        let mut v = _mm512_setzero_si512();
        for chunk in 0..9 {
            let at = chunk * 64;
            if at >= bytes {
                continue;
            }
            let words = if bytes - at >= 64 {
                load64(w.add(at))
            } else {
                _mm512_maskz_loadu_epi16((1_u32 << ((bytes - at) / 2)) - 1, w.add(at).cast())
            };
            let wanted = if Q::MIN == Min::None { 0xffff } else { u32::MAX };
            v = _mm512_mask_permutexvar_epi16(v, chunks[chunk] & wanted, order, words);
        }
        (_mm512_cvtph_ps(_mm512_castsi512_si256(v)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1)))
    })
}

/// Scales of each octet, of which only whole ones are read.
#[inline(always)]
pub(crate) unsafe fn octets<Q: QuantX86>(w: *const u8, blocks: usize) -> [Scales; 2] {
    simd!([
        if blocks >= 8 { Q::scales(w) } else { no_scales() },
        if blocks == 16 { Q::scales(w.add(Q::OCTET_BYTES)) } else { no_scales() },
    ])
}

/// Scales of the first halves and of the second ones of sixteen blocks, or their mins.
#[inline(always)]
pub(crate) fn of_halves(octets: &[Scales; 2], mins: bool) -> [Avx512; 2] {
    let bytes = |octet: &Scales| if mins { octet.half_min } else { octet.half_sub };
    let order = simd!(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    simd!({
        let low = _mm_shuffle_epi8(bytes(&octets[0]), order);
        let high = _mm_shuffle_epi8(bytes(&octets[1]), order);
        [_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high)]
            .map(|v| Avx512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v))))
    })
}

/// d and m of sixteen blocks.
#[inline(always)]
pub(crate) unsafe fn block_scales<Q: QuantX86>(
    w: *const u8,
    octets: &[Scales; 2],
    blocks: usize,
) -> (__m512, __m512) {
    simd!({
        if Q::PLANES {
            return (_mm512_setzero_ps(), _mm512_setzero_ps());
        }
        if Q::LEADING_HALVES {
            return leading_halves::<Q>(w, blocks);
        }
        if blocks == 16 {
            return Q::scales_of_two(w);
        }
        if blocks == 8 {
            return (join(octets[0].d, octets[1].d), join(octets[0].m, octets[1].m));
        }
        let (mut d, mut m) = ([0.0_f32; 16], [0.0_f32; 16]);
        for b in 0..blocks {
            (d[b], m[b]) = Q::block_scales::<Avx512>(w.add(b / 8 * Q::OCTET_BYTES), b % 8);
        }
        (_mm512_loadu_ps(d.as_ptr()), _mm512_loadu_ps(m.as_ptr()))
    })
}

/// [`crate::tile::Dot::terms`]
///
/// # Safety
/// `blocks` ≤ 16 blocks can be read at each pointer, activations as [`arrange`] leaves them where quants are nibbles; reached with
/// AVX-512 VNNI.
#[inline(always)]
pub(crate) unsafe fn terms<Q: QuantX86>(
    w: *const u8,
    x: *const i8,
    sums: *const i32,
    blocks: usize,
) -> Terms<Avx512> {
    simd!({
        let octets =
            if Q::LEADING_HALVES || Q::PLANES { [no_scales(), no_scales()] } else { octets::<Q>(w, blocks) };
        let sums = if blocks == 16 {
            _mm512_loadu_si512(sums.cast())
        } else {
            _mm512_maskz_loadu_epi32(first_mask(blocks), sums)
        };
        let mut min_sum = sums;
        let mut scales = None;
        let sum = if let Some(Nibbles::OfBlock(at)) = Q::NIBBLES {
            let words = words_of_fours::<Q>(w, blocks);
            scales = Some(scales_of_fours::<Q>(&words));
            let bytes = bytes_of_fours::<Q>(&words, w, at, blocks);
            less_offset::<Q>(sums_of_nibbles(Nibbles::OfBlock(at), bytes, x, blocks), sums)
        } else if let Some(Nibbles::OfTwo(at)) = Q::NIBBLES {
            let bytes = bytes_of_octets::<Q>(w.add(at), blocks);
            sums_of_nibbles(Nibbles::OfTwo(at), bytes, x, blocks)
        } else if Q::SUB == Sub::Half {
            let (sum, mins) = sums_of_halves::<Q>(w, x, sums, &octets, blocks);
            min_sum = mins;
            sum
        } else {
            less_offset::<Q>(sums_of_blocks::<Q>(w, x, blocks), sums)
        };
        let (d, m) = scales.unwrap_or_else(|| block_scales::<Q>(w, &octets, blocks));
        Terms {
            sum: Avx512(_mm512_cvtepi32_ps(sum)),
            d: Avx512(d),
            min_sum: Avx512(_mm512_cvtepi32_ps(min_sum)),
            m: Avx512(m),
        }
    })
}

/// What unsigned quants add to the sums taken off.
#[inline(always)]
fn less_offset<Q: QuantX86>(sum: __m512i, x_sums: __m512i) -> __m512i {
    if offset::<Q>() == 0 {
        return sum;
    }
    simd!(_mm512_sub_epi32(sum, times(x_sums, offset::<Q>())))
}

/// Σ quant · x of each block, quants unsigned.
#[inline(always)]
unsafe fn sums_of_blocks<Q: QuantX86>(w: *const u8, x: *const i8, blocks: usize) -> __m512i {
    simd!({
        let zero = _mm512_setzero_si512();
        let mut v = [zero; 8];
        for i in 0..8 {
            let b = i * 2;
            if b >= blocks {
                continue;
            }
            let at = w.add(b / 8 * Q::OCTET_BYTES);
            let (q, x) = if b + 1 < blocks {
                (Q::load_two(at, b % 8), load64(x.add(b * 32).cast()))
            } else {
                let x = _mm256_loadu_si256(x.add(b * 32).cast());
                (_mm512_zextsi256_si512(Q::load(at, b % 8)), _mm512_zextsi256_si512(x))
            };
            v[i] = _mm512_dpbusd_epi32(zero, bytes::<Q>(q, false), x);
        }
        reduce16(v)
    })
}

/// Where the pair sums of blocks 2i and 2i + 1 find the scales of their halves.
const fn places_of_halves(i: usize) -> [u16; 32] {
    let (mut places, mut pair) = ([0; 32], 0);
    while pair < 32 {
        places[pair] = (4 * i + pair / 8) as u16;
        pair += 1;
    }
    places
}

/// The scales or mins of all halves, as words.
#[inline(always)]
fn words_of_halves(low: __m128i, high: __m128i) -> __m512i {
    simd!(_mm512_cvtepi8_epi16(_mm256_set_m128i(high, low)))
}

/// Σ sub · quant · x and Σ min · x of each block, of types whose halves have scales of their own. `x_sums` are as [`sum_halves`]
/// leaves them.
#[inline(always)]
unsafe fn sums_of_halves<Q: QuantX86>(
    w: *const u8,
    x: *const i8,
    x_sums: __m512i,
    octets: &[Scales; 2],
    blocks: usize,
) -> (__m512i, __m512i) {
    const PLACES: [[u16; 32]; 8] = {
        let (mut places, mut i) = ([[0; 32]; 8], 0);
        while i < 8 {
            places[i] = places_of_halves(i);
            i += 1;
        }
        places
    };
    simd!({
        let subs = words_of_halves(octets[0].half_sub, octets[1].half_sub);
        let mut v = [_mm512_setzero_si512(); 8];
        for i in 0..8 {
            let b = i * 2;
            if b >= blocks {
                continue;
            }
            // At most 2 · 63 · 127 in 16 bits.
            let q = Q::raised_two(w.add(b / 8 * Q::OCTET_BYTES), b % 8);
            let pairs = _mm512_maddubs_epi16(q, load64(x.add(b * 32).cast()));
            let places = _mm512_loadu_si512(PLACES[i].as_ptr().cast());
            v[i] = _mm512_madd_epi16(pairs, _mm512_permutexvar_epi16(places, subs));
        }
        let mut sum = reduce16(v);
        if Q::RAISED != 0 {
            sum = _mm512_sub_epi32(sum, times(_mm512_madd_epi16(x_sums, subs), Q::RAISED));
        }
        let mins = words_of_halves(octets[0].half_min, octets[1].half_min);
        (sum, _mm512_madd_epi16(x_sums, mins))
    })
}

/// The sums of each block's halves, two words a block, for [`sums_of_halves`].
///
/// # Safety
/// `blocks`, an even number of them, can be read, and as many dwords written.
#[inline(always)]
pub(crate) unsafe fn sum_halves(x: *const i8, blocks: usize, to: *mut i32) {
    simd!({
        for b in (0..blocks).step_by(2) {
            let x = load64(x.add(b * 32).cast());
            let fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), x);
            let twos = _mm512_add_epi32(fours, _mm512_shuffle_epi32(fours, 0b10_11_00_01));
            let halves = _mm512_add_epi32(twos, _mm512_shuffle_epi32(twos, 0b01_00_11_10));
            // Of quarters 0 and 1, then of 2 and 3.
            let first = _mm512_setr_epi32(0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            let low = _mm512_permutexvar_epi32(first, halves);
            let high = _mm512_permutexvar_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(4)), halves);
            let low = _mm512_and_si512(low, _mm512_set1_epi32(0xffff));
            let both = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
            _mm_storel_epi64(to.add(b).cast(), _mm512_castsi512_si128(both));
        }
    });
}

/// The i-th quarters of four registers, side by side.
#[inline(always)]
fn quarters(v: [__m512i; 4]) -> [__m512i; 4] {
    simd!({
        let low = _mm512_shuffle_i32x4(v[0], v[1], 0b01_00_01_00);
        let high = _mm512_shuffle_i32x4(v[0], v[1], 0b11_10_11_10);
        let other_low = _mm512_shuffle_i32x4(v[2], v[3], 0b01_00_01_00);
        let other_high = _mm512_shuffle_i32x4(v[2], v[3], 0b11_10_11_10);
        [
            _mm512_shuffle_i32x4(low, other_low, 0b10_00_10_00),
            _mm512_shuffle_i32x4(low, other_low, 0b11_01_11_01),
            _mm512_shuffle_i32x4(high, other_high, 0b10_00_10_00),
            _mm512_shuffle_i32x4(high, other_high, 0b11_01_11_01),
        ]
    })
}

/// Activations for [`sums_of_nibbles`]: of each four blocks (every second one of eight, where nibbles are of two) the first halves, then
/// the second ones; zeros after the last block.
///
/// # Safety
/// `blocks` blocks can be read, and whole fours of them written.
#[inline(always)]
pub(crate) unsafe fn arrange(nibbles: Nibbles, x: *const i8, blocks: usize, to: *mut i8) {
    simd!(match nibbles {
        Nibbles::OfBlock(_) => {
            for b in (0..blocks).step_by(4) {
                let mut two = [_mm512_setzero_si512(); 2];
                for (i, two) in two.iter_mut().enumerate() {
                    let from = x.add((b + 2 * i) * 32);
                    *two = match blocks.saturating_sub(b + 2 * i) {
                        0 => _mm512_setzero_si512(),
                        1 => _mm512_zextsi256_si512(_mm256_loadu_si256(from.cast())),
                        _ => load64(from.cast()),
                    };
                }
                let to = to.add(b * 32);
                _mm512_storeu_si512(to.cast(), _mm512_shuffle_i32x4(two[0], two[1], 0b10_00_10_00));
                _mm512_storeu_si512(to.add(64).cast(), _mm512_shuffle_i32x4(two[0], two[1], 0b11_01_11_01));
            }
        }
        Nibbles::OfTwo(_) => {
            for b in (0..blocks).step_by(8) {
                let mut two = [_mm512_setzero_si512(); 4];
                for (i, two) in two.iter_mut().enumerate() {
                    *two = load64(x.add((b + 2 * i) * 32).cast());
                }
                for (i, v) in quarters(two).into_iter().enumerate() {
                    _mm512_storeu_si512(to.add(b * 32 + i * 64).cast(), v);
                }
            }
        }
    });
}

/// The first 64 bytes of each four blocks, in which their scales are.
#[inline(always)]
unsafe fn words_of_fours<Q: QuantX86>(w: *const u8, blocks: usize) -> [__m512i; 4] {
    simd!({
        let mut words = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            if i * 4 >= blocks {
                continue;
            }
            let (at, bytes) = (w.add(i * 4 * Q::BLOCK.bytes), (blocks - i * 4).min(4) * Q::BLOCK.bytes);
            words[i] = if bytes >= 64 {
                load64(at)
            } else {
                _mm512_maskz_loadu_epi16((1_u32 << (bytes / 2)) - 1, at.cast())
            };
        }
        words
    })
}

/// Sixteen bytes of each four blocks, from byte `at` of a block on.
#[inline(always)]
unsafe fn bytes_of_fours<Q: QuantX86>(
    words: &[__m512i; 4],
    w: *const u8,
    at: usize,
    blocks: usize,
) -> [__m512i; 4] {
    simd!({
        let stride = Q::BLOCK.bytes;
        let mut places = [0_u16; 32];
        for i in 0..32 {
            // The last block's are not all among the first 64 bytes.
            places[i] = ((i / 8 * stride + at) / 2 + i % 8).min(31) as u16;
        }
        let places = _mm512_loadu_si512(places.as_ptr().cast());
        let mut bytes = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            if i * 4 >= blocks {
                continue;
            }
            bytes[i] = _mm512_permutexvar_epi16(places, words[i]);
            if i * 4 + 3 < blocks {
                let last = _mm_loadu_si128(w.add((i * 4 + 3) * stride + at).cast());
                bytes[i] = _mm512_mask_broadcast_i32x4(bytes[i], 0xf000, last);
            }
        }
        bytes
    })
}

/// d and m of sixteen blocks.
#[inline(always)]
fn scales_of_fours<Q: QuantX86>(words: &[__m512i; 4]) -> (__m512, __m512) {
    simd!({
        let mut places = [0_u16; 32];
        for i in 0..32 {
            places[i] = (i % 4 * Q::BLOCK.bytes / 2 + i / 16) as u16;
        }
        let places = _mm512_loadu_si512(places.as_ptr().cast());
        let mut v = _mm512_setzero_si512();
        for i in 0..4 {
            v = _mm512_mask_permutexvar_epi16(v, 0x000f_000f << (4 * i), places, words[i]);
        }
        (_mm512_cvtph_ps(_mm512_castsi512_si256(v)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1)))
    })
}

/// The first halves of every second block of an octet, from its first one on, and the second halves; low nibbles are those, high ones
/// the blocks after them.
#[inline(always)]
unsafe fn bytes_of_octets<Q: QuantX86>(w: *const u8, blocks: usize) -> [__m512i; 4] {
    simd!({
        let mut bytes = [_mm512_setzero_si512(); 4];
        for i in 0..2 {
            if i * 8 >= blocks {
                continue;
            }
            let at = w.add(i * Q::OCTET_BYTES);
            let (low, high) = (load64(at), load64(at.add(64)));
            bytes[i * 2] = _mm512_shuffle_i32x4(low, high, 0b10_00_10_00);
            bytes[i * 2 + 1] = _mm512_shuffle_i32x4(low, high, 0b11_01_11_01);
        }
        bytes
    })
}

#[inline(always)]
fn halved(a: __m512i, b: __m512i) -> __m512i {
    simd!(_mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1)))
}

#[inline(always)]
fn low_nibbles(v: __m512i) -> __m512i {
    and_wide(v, 15)
}

#[inline(always)]
fn high_nibbles(v: __m512i) -> __m512i {
    and_wide(simd!(_mm512_srli_epi16(v, 4)), 15)
}

/// Σ quant · x of each block, of types whose quants are nibbles as they are. A block has a quarter of a register, whose four sums are
/// added up in 16 bits: at most 2 · 4 · 15 · 127 before the first addition, and twice that before the second.
#[inline(always)]
unsafe fn sums_of_nibbles(nibbles: Nibbles, bytes: [__m512i; 4], x: *const i8, blocks: usize) -> __m512i {
    simd!({
        let zero = _mm512_setzero_si512();
        let mut v = [zero; 4];
        for i in 0..4 {
            // The registers of the first halves' and of the second halves' nibbles.
            let (first, second) = match nibbles {
                Nibbles::OfBlock(_) => (low_nibbles(bytes[i]), high_nibbles(bytes[i])),
                Nibbles::OfTwo(_) if i % 2 == 0 => (low_nibbles(bytes[i]), low_nibbles(bytes[i + 1])),
                Nibbles::OfTwo(_) => (high_nibbles(bytes[i - 1]), high_nibbles(bytes[i])),
            };
            if i * 4 >= blocks {
                continue;
            }
            let x = x.add(i * 128).cast::<u8>();
            v[i] =
                _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, first, load64(x)), second, load64(x.add(64)));
        }
        let sum = if blocks > 8 {
            halved(halved(v[0], v[1]), halved(v[2], v[3]))
        } else {
            halved(halved(v[0], v[1]), zero)
        };
        // In quarter j stand the sums of quarter j of each register.
        let order = match nibbles {
            Nibbles::OfBlock(_) => _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
            Nibbles::OfTwo(_) => _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15),
        };
        _mm512_permutexvar_epi32(order, sum)
    })
}

/// Sixteen rows of two blocks to their panel's lines: `[4 elements][output · 4 + element]`, of each block eight.
#[inline(always)]
pub(crate) fn lines_of_two(v: [__m512i; 16]) -> [__m512i; 16] {
    simd!({
        let zero = _mm512_setzero_si512();
        // Columns of four rows: quarters 0 and 1 are columns i and i + 4 of the first block, 2 and 3 of the second.
        let mut columns = [[zero; 4]; 4];
        for four in 0..4 {
            let at = four * 4;
            let (a0, a1) = (_mm512_unpacklo_epi32(v[at], v[at + 1]), _mm512_unpackhi_epi32(v[at], v[at + 1]));
            let (b0, b1) =
                (_mm512_unpacklo_epi32(v[at + 2], v[at + 3]), _mm512_unpackhi_epi32(v[at + 2], v[at + 3]));
            columns[0][four] = _mm512_unpacklo_epi64(a0, b0);
            columns[1][four] = _mm512_unpackhi_epi64(a0, b0);
            columns[2][four] = _mm512_unpacklo_epi64(a1, b1);
            columns[3][four] = _mm512_unpackhi_epi64(a1, b1);
        }
        let mut lines = [zero; 16];
        for i in 0..4 {
            let [a, b, c, d] = columns[i];
            let (ab, cd) =
                (_mm512_shuffle_i32x4(a, b, 0b01_00_01_00), _mm512_shuffle_i32x4(c, d, 0b01_00_01_00));
            let (ef, gh) =
                (_mm512_shuffle_i32x4(a, b, 0b11_10_11_10), _mm512_shuffle_i32x4(c, d, 0b11_10_11_10));
            lines[i] = _mm512_shuffle_i32x4(ab, cd, 0b10_00_10_00);
            lines[i + 4] = _mm512_shuffle_i32x4(ab, cd, 0b11_01_11_01);
            lines[i + 8] = _mm512_shuffle_i32x4(ef, gh, 0b10_00_10_00);
            lines[i + 12] = _mm512_shuffle_i32x4(ef, gh, 0b11_01_11_01);
        }
        lines
    })
}

/// Whether quants less their offset fit a signed byte.
pub(crate) const fn is_signed<Q: QuantX86>() -> bool {
    !Q::SIGNED || Q::OFFSET == 0
}

/// Quants as bytes: less their offset if `signed` is asked for and they fit, else unsigned.
#[inline(always)]
fn bytes<Q: QuantX86>(v: __m512i, signed: bool) -> __m512i {
    simd!(match (signed && is_signed::<Q>(), Q::SIGNED) {
        (true, true) | (false, false) => v,
        (true, false) => _mm512_sub_epi8(v, _mm512_set1_epi8(Q::OFFSET as i8)),
        (false, true) => _mm512_xor_si512(v, _mm512_set1_epi8(-128)),
    })
}

/// Sixteen blocks of sixteen outputs: quants as [`bytes`], `[block][output][32]`, and scales `[block][output]`.
///
/// # Safety
/// `blocks` ≤ 16 blocks can be read at each row.
#[inline(always)]
pub(crate) unsafe fn unpack<Q: QuantX86>(
    panel: *mut Panel,
    rows: &[*const u8; 16],
    blocks: usize,
    signed: bool,
) {
    simd!({
        let panel = &mut *panel;
        let quants = (&raw mut panel.quants).cast::<u8>();
        for b in (0..blocks).step_by(2) {
            let at = b / 8 * Q::OCTET_BYTES;
            for o in 0..16 {
                let row = rows[o].add(at);
                // The same blocks of the next panel.
                Avx512::prefetch(row.wrapping_add(2 * Q::OCTET_BYTES + b % 8 * (Q::OCTET_BYTES / 8)));
                let to = quants.add((b * 16 + o) * 32);
                let both = b + 1 < blocks;
                let v =
                    if both { Q::load_two(row, b % 8) } else { _mm512_zextsi256_si512(Q::load(row, b % 8)) };
                let v = bytes::<Q>(v, signed);
                _mm256_store_si256(to.cast(), _mm512_castsi512_si256(v));
                if both {
                    _mm256_store_si256(to.add(16 * 32).cast(), _mm512_extracti64x4_epi64(v, 1));
                }
            }
        }
        if Q::PLANES {
            return;
        }
        if !Q::LEADING_HALVES {
            return unpack_scales::<Avx512, Q>(panel, rows, blocks);
        }
        let mut scales = [[F16x([0.0; 16]); 16]; 2];
        for o in 0..16 {
            let (d, m) = leading_halves::<Q>(rows[o], blocks);
            Avx512(d).store(scales[0][o].0.as_mut_ptr());
            Avx512(m).store(scales[1][o].0.as_mut_ptr());
        }
        Avx512::transpose(&scales[0], &mut panel.d);
        if Q::MIN != Min::None {
            Avx512::transpose(&scales[1], &mut panel.m);
        }
    })
}
