//! Products of one row: the integer sums of sixteen blocks of an output at a time, weights in their stored layout.

use std::arch::x86_64::*;

use super::lanes::Avx512;
use super::quants::{Nibbles, QuantAvx512, block_scales, bytes, octets, offset};
use super::registers::{and_wide, first_mask, floats_of_halves, join_integers, load64, quarters, reduce16};
use crate::formats::Sub;
use crate::isa::avx2::quants::{Scales, no_scales};
use crate::isa::avx2::simd;
use crate::panel::Chunk;
use crate::tile::{Dot, Terms};

impl<Q: QuantAvx512> Dot<Q> for Avx512 {
    #[inline(always)]
    unsafe fn terms(w: *const u8, x: *const i8, sums: *const i32, blocks: usize) -> Terms<Avx512> {
        // Specialised for the frequent numbers of blocks: whole rounds, half rounds of super-blocks, and the two with
        // which rows of 576 end.
        simd!(match blocks {
            16 => terms::<Q>(w, x, sums, 16),
            8 if Q::BLOCKS == 8 => terms::<Q>(w, x, sums, 8),
            2 if Q::BLOCKS == 1 => terms::<Q>(w, x, sums, 2),
            _ => terms::<Q>(w, x, sums, blocks),
        })
    }

    #[inline(always)]
    unsafe fn arranged(x: Chunk, blocks: usize, to: *mut i8) -> Chunk {
        if let Some(nibbles) = Q::NIBBLES {
            simd!(arrange(nibbles, x.quants, blocks, to));
            return Chunk { quants: to, ..x };
        }
        if Q::SUB == Sub::Half {
            simd!(sum_halves(x.quants, blocks, to.cast()));
            return Chunk { sums: to.cast(), ..x };
        }
        x
    }
}

/// [`crate::tile::Dot::terms`]
///
/// # Safety
/// `blocks` ≤ 16 blocks can be read at each pointer. Activations must be as [`arrange`] leaves them if quants are
/// nibbles, and their sums as [`sum_halves`] leaves them if halves have scales. The processor has AVX-512 VNNI.
#[inline(always)]
pub(crate) unsafe fn terms<Q: QuantAvx512>(
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
        let (mut min_sum, mut scales) = (sums, None);
        let sum = match Q::NIBBLES {
            Some(nibbles @ Nibbles::Halves(at)) => {
                let words = words_of_fours::<Q>(w, blocks);
                scales = Some(scales_of_fours::<Q>(&words));
                let bytes = bytes_of_fours::<Q>(&words, w, at, blocks);
                less_offset::<Q>(sums_of_nibbles(nibbles, bytes, x, blocks), sums)
            }
            Some(nibbles @ Nibbles::Blocks(at)) => {
                let bytes = bytes_of_octets::<Q>(w.add(at), blocks);
                less_offset::<Q>(sums_of_nibbles(nibbles, bytes, x, blocks), sums)
            }
            Some(nibbles @ Nibbles::Pairs) => {
                less_offset::<Q>(sums_of_nibbles(nibbles, words_of_fours::<Q>(w, blocks), x, blocks), sums)
            }
            None if Q::SUB == Sub::Half => {
                let (sum, mins) = sums_of_halves::<Q>(w, x, sums, &octets, blocks);
                min_sum = mins;
                sum
            }
            None => less_offset::<Q>(sums_of_blocks::<Q>(w, x, blocks), sums),
        };
        // Not by a closure: it would be a function without the instruction set, which calls each instruction.
        let (d, m) = match scales {
            Some(scales) => scales,
            None => block_scales::<Q>(w, &octets, blocks),
        };
        Terms {
            sum: Avx512(_mm512_cvtepi32_ps(sum)),
            d: Avx512(d),
            min_sum: Avx512(_mm512_cvtepi32_ps(min_sum)),
            m: Avx512(m),
        }
    })
}

/// Subtracts from the sums what the offset of unsigned quants adds.
#[inline(always)]
fn less_offset<Q: QuantAvx512>(sum: __m512i, x_sums: __m512i) -> __m512i {
    if offset::<Q>() == 0 {
        return sum;
    }
    simd!(_mm512_sub_epi32(sum, times(x_sums, offset::<Q>())))
}

/// A shift if possible: 32-bit multiplication is slow.
#[inline(always)]
fn times(v: __m512i, n: i32) -> __m512i {
    simd!(if n > 0 && n.unsigned_abs().is_power_of_two() {
        _mm512_sllv_epi32(v, _mm512_set1_epi32(n.trailing_zeros() as i32))
    } else {
        _mm512_mullo_epi32(v, _mm512_set1_epi32(n))
    })
}

/// Σ quant · x of each block, with unsigned quants.
///
/// # Safety
/// `blocks` blocks can be read at `w` and `x`.
#[inline(always)]
unsafe fn sums_of_blocks<Q: QuantAvx512>(w: *const u8, x: *const i8, blocks: usize) -> __m512i {
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

/// The indices of the scales that belong to the pair sums of blocks 2i and 2i + 1.
const fn places_of_halves(i: usize) -> [u16; 32] {
    let (mut places, mut pair) = ([0; 32], 0);
    while pair < 32 {
        places[pair] = (4 * i + pair / 8) as u16;
        pair += 1;
    }
    places
}

/// The scales or mins of all halves, as 16-bit words.
#[inline(always)]
fn words_of_halves(low: __m128i, high: __m128i) -> __m512i {
    simd!(_mm512_cvtepi8_epi16(_mm256_set_m128i(high, low)))
}

/// Σ sub · quant · x and Σ min · x of each block, for types whose halves have their own scales. `x_sums` are as
/// [`sum_halves`] leaves them.
///
/// # Safety
/// `blocks` blocks can be read at `w` and `x`.
#[inline(always)]
unsafe fn sums_of_halves<Q: QuantAvx512>(
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
            // At most 2 · 63 · 127, which fits in 16 bits.
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

/// The sums of each block's halves, two 16-bit words per block, for [`sums_of_halves`].
///
/// # Safety
/// `blocks`, an even number of them, can be read, and as many 32-bit words written.
#[inline(always)]
pub(crate) unsafe fn sum_halves(x: *const i8, blocks: usize, to: *mut i32) {
    simd!({
        for b in (0..blocks).step_by(2) {
            let x = load64(x.add(b * 32).cast());
            let fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), x);
            let twos = _mm512_add_epi32(fours, _mm512_shuffle_epi32(fours, 0b10_11_00_01));
            let halves = _mm512_add_epi32(twos, _mm512_shuffle_epi32(twos, 0b01_00_11_10));
            // Indices for quarters 0 and 1, then for 2 and 3.
            let first = _mm512_setr_epi32(0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            let low = _mm512_permutexvar_epi32(first, halves);
            let high = _mm512_permutexvar_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(4)), halves);
            let low = _mm512_and_si512(low, _mm512_set1_epi32(0xffff));
            let both = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
            _mm_storel_epi64(to.add(b).cast(), _mm512_castsi512_si128(both));
        }
    });
}

/// Rearranges activations for [`sums_of_nibbles`]: of each four blocks (every second one of eight for
/// [`Nibbles::Blocks`]) those that are multiplied with low nibbles and those with high ones, or the first halves and
/// the second ones; zeros after the last block.
///
/// # Safety
/// `blocks` blocks can be read, and written rounded up to a multiple of four.
#[inline(always)]
pub(crate) unsafe fn arrange(nibbles: Nibbles, x: *const i8, blocks: usize, to: *mut i8) {
    simd!(match nibbles {
        Nibbles::Halves(_) | Nibbles::Pairs => {
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
                let [a, b] = two;
                let (first, second) = if matches!(nibbles, Nibbles::Pairs) {
                    (
                        join_integers(_mm512_cvtepi16_epi8(a), _mm512_cvtepi16_epi8(b)),
                        join_integers(
                            _mm512_cvtepi16_epi8(_mm512_srli_epi16(a, 8)),
                            _mm512_cvtepi16_epi8(_mm512_srli_epi16(b, 8)),
                        ),
                    )
                } else {
                    (_mm512_shuffle_i32x4(a, b, 0b10_00_10_00), _mm512_shuffle_i32x4(a, b, 0b11_01_11_01))
                };
                _mm512_storeu_si512(to.cast(), first);
                _mm512_storeu_si512(to.add(64).cast(), second);
            }
        }
        Nibbles::Blocks(_) => {
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

/// The first 64 bytes of each four blocks: they include the scales, and whole blocks if these are sixteen bytes.
///
/// # Safety
/// `blocks` blocks can be read at `w`.
#[inline(always)]
unsafe fn words_of_fours<Q: QuantAvx512>(w: *const u8, blocks: usize) -> [__m512i; 4] {
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

/// Sixteen bytes of each of four blocks, from byte `at` of a block on.
#[inline(always)]
unsafe fn bytes_of_fours<Q: QuantAvx512>(
    words: &[__m512i; 4],
    w: *const u8,
    at: usize,
    blocks: usize,
) -> [__m512i; 4] {
    simd!({
        let stride = Q::BLOCK.bytes;
        let mut places = [0_u16; 32];
        for i in 0..32 {
            // Those of the last block are not all among the first 64 bytes.
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
fn scales_of_fours<Q: QuantAvx512>(words: &[__m512i; 4]) -> (__m512, __m512) {
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
        floats_of_halves(v)
    })
}

/// The bytes of an octet's blocks: the first halves of every second block from the first one on, and the second
/// halves. Low nibbles belong to those blocks, high ones to the blocks after them.
///
/// # Safety
/// `blocks` blocks can be read at `w`.
#[inline(always)]
unsafe fn bytes_of_octets<Q: QuantAvx512>(w: *const u8, blocks: usize) -> [__m512i; 4] {
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

/// Σ quant · x of each block, for types whose quants are nibbles. A block has a quarter of a register, whose four sums
/// are added in 16 bits: at most 2 · 4 · 15 · 127 before the first addition, and twice that before the second.
///
/// # Safety
/// `blocks` blocks, as [`arrange`] leaves them, can be read at `x`.
#[inline(always)]
unsafe fn sums_of_nibbles(nibbles: Nibbles, bytes: [__m512i; 4], x: *const i8, blocks: usize) -> __m512i {
    simd!({
        let zero = _mm512_setzero_si512();
        let mut v = [zero; 4];
        for i in 0..4 {
            // The nibbles of the first and of the second halves.
            let (first, second) = match nibbles {
                Nibbles::Halves(_) | Nibbles::Pairs => (low_nibbles(bytes[i]), high_nibbles(bytes[i])),
                Nibbles::Blocks(_) if i % 2 == 0 => (low_nibbles(bytes[i]), low_nibbles(bytes[i + 1])),
                Nibbles::Blocks(_) => (high_nibbles(bytes[i - 1]), high_nibbles(bytes[i])),
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
        // Quarter j contains the sums of quarter j of each register.
        let order = match nibbles {
            Nibbles::Halves(_) | Nibbles::Pairs => {
                _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
            }
            Nibbles::Blocks(_) => _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15),
        };
        _mm512_permutexvar_epi32(order, sum)
    })
}
