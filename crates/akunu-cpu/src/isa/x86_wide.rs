//! Two blocks in a 512-bit register: how AVX-512 multiplies one row, and unpacks a panel for many.

use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::simd;
use super::avx512::{Avx512, first_mask};
use super::x86_quants::{QuantX86, Scales, no_scales, unpack_scales};
use crate::panel::{F16x, Panel};
use crate::quants::{Min, Sub};
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

/// 64 bytes, shifted alike.
#[inline(always)]
pub(crate) fn shifted(p: *const u8, bits: usize) -> __m512i {
    shift_halves(load64(p), bits, bits)
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

/// Magnitudes of quants, and activations with their signs: a magnitude reaches 128, which is unsigned here; activations
/// stop at −127.
#[inline(always)]
fn by_magnitude<Q: QuantX86>(q: __m512i, x: __m512i) -> (__m512i, __m512i) {
    if !Q::SIGNED {
        return (q, x);
    }
    simd!((_mm512_abs_epi8(q), _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(q), _mm512_setzero_si512(), x)))
}

/// Scales of the halves of blocks b and b + 1, for their pair sums.
#[inline(always)]
fn of_two_blocks(halves: __m128i, b: usize) -> __m512i {
    const ONE: i64 = 0x0101_0101_0101_0101;
    simd!({
        let first = ONE * 2 * b as i64;
        let places = _mm256_set_epi64x(first + 3 * ONE, first + 2 * ONE, first + ONE, first);
        _mm512_cvtepi8_epi16(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(halves), places))
    })
}

/// Products of two blocks, each summed to eight lanes; what quants are too large by is still to be taken off.
#[inline(always)]
fn two_blocks<Q: QuantX86>(q: __m512i, x: __m512i, sub: __m128i, b: usize) -> __m512i {
    simd!(if Q::SUB == Sub::Half {
        let (q, x) = by_magnitude::<Q>(q, x);
        _mm512_madd_epi16(_mm512_maddubs_epi16(q, x), of_two_blocks(sub, b))
    } else {
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes::<Q>(q, false), x)
    })
}

/// What the quants of [`two_blocks`] are too large by.
const fn excess<Q: QuantX86>() -> i32 {
    if matches!(Q::SUB, Sub::Half) { Q::OFFSET } else { offset::<Q>() }
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
        if blocks.is_multiple_of(8) {
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
        let (mut sum, min_sum) = match Q::NIBBLES {
            Some(at) => (sums_of_nibbles::<Q>(w.add(at), x, blocks), sums),
            None => sums_of_blocks::<Q>(w, x, sums, &octets, blocks),
        };
        if excess::<Q>() != 0 {
            sum = _mm512_sub_epi32(sum, times(sums, excess::<Q>()));
        }
        let (d, m) = block_scales::<Q>(w, &octets, blocks);
        Terms {
            sum: Avx512(_mm512_cvtepi32_ps(sum)),
            d: Avx512(d),
            min_sum: Avx512(_mm512_cvtepi32_ps(min_sum)),
            m: Avx512(m),
        }
    })
}

/// Σ quant · x of each block, and Σ x, or Σ min · x where halves have mins of their own.
#[inline(always)]
unsafe fn sums_of_blocks<Q: QuantX86>(
    w: *const u8,
    x: *const i8,
    sums: __m512i,
    octets: &[Scales; 2],
    blocks: usize,
) -> (__m512i, __m512i) {
    simd!({
        let zero = _mm512_setzero_si512();
        let (mut v, mut mins) = ([zero; 8], [zero; 8]);
        for i in 0..8 {
            let b = i * 2;
            if b >= blocks {
                continue;
            }
            let (scales, at) = (&octets[b / 8], w.add(b / 8 * Q::OCTET_BYTES));
            let (q, x) = if b + 1 < blocks {
                (Q::load_two(at, b % 8), load64(x.add(b * 32).cast()))
            } else {
                let x = _mm256_loadu_si256(x.add(b * 32).cast());
                (join_integers(Q::load(at, b % 8), _mm256_setzero_si256()), _mm512_zextsi256_si512(x))
            };
            v[i] = two_blocks::<Q>(q, x, scales.half_sub, b % 8);
            if Q::MIN == Min::Half {
                let pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), x);
                mins[i] = _mm512_madd_epi16(pairs, of_two_blocks(scales.half_min, b % 8));
            }
        }
        (reduce16(v), if Q::MIN == Min::Half { reduce16(mins) } else { sums })
    })
}

/// Activations for [`sums_of_nibbles`]: of each four blocks the first halves, then the second ones; zeros after the last block.
///
/// # Safety
/// `blocks` blocks can be read, and whole fours of them written.
#[inline(always)]
pub(crate) unsafe fn arrange(x: *const i8, blocks: usize, to: *mut i8) {
    simd!({
        for b in (0..blocks).step_by(4) {
            let left = blocks - b;
            let two = |skip: usize| match left.saturating_sub(skip) {
                0 => _mm512_setzero_si512(),
                1 => _mm512_zextsi256_si512(_mm256_loadu_si256(x.add((b + skip) * 32).cast())),
                _ => load64(x.add((b + skip) * 32).cast()),
            };
            let (first, second) = (two(0), two(2));
            let to = to.add(b * 32);
            _mm512_storeu_si512(to.cast(), _mm512_shuffle_i32x4(first, second, 0b10_00_10_00));
            _mm512_storeu_si512(to.add(64).cast(), _mm512_shuffle_i32x4(first, second, 0b11_01_11_01));
        }
    });
}

/// Sixteen bytes of each of `n` ≤ 4 blocks, `stride` bytes apart.
#[inline(always)]
unsafe fn sixteen_bytes_of_four(w: *const u8, stride: usize, n: usize) -> __m512i {
    simd!({
        let load = |i: usize| _mm_loadu_si128(w.add(i * stride).cast());
        let mut v = _mm512_zextsi128_si512(load(0));
        if n > 1 {
            v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load(1));
        }
        if n > 2 {
            v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load(2));
        }
        if n > 3 {
            v = _mm512_mask_broadcast_i32x4(v, 0xf000, load(3));
        }
        v
    })
}

/// Σ quant · x of each block, of types whose quants are nibbles as they stand, the first block's at `w`. A block has a quarter of a
/// register, whose four sums are added up in 16 bits: at most 2 · 4 · 15 · 127 before the first addition, and twice that before the
/// second.
#[inline(always)]
unsafe fn sums_of_nibbles<Q: QuantX86>(w: *const u8, x: *const i8, blocks: usize) -> __m512i {
    simd!({
        let (zero, ones) = (_mm512_setzero_si512(), _mm512_set1_epi16(1));
        let mut v = [zero; 4];
        for i in 0..4 {
            if i * 4 >= blocks {
                continue;
            }
            let n = (blocks - i * 4).min(4);
            let bytes = sixteen_bytes_of_four(w.add(i * 4 * Q::BLOCK.bytes), Q::BLOCK.bytes, n);
            let (low, high) = (and_wide(bytes, 15), and_wide(_mm512_srli_epi16(bytes, 4), 15));
            let x = x.add(i * 128).cast::<u8>();
            v[i] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, low, load64(x)), high, load64(x.add(64)));
        }
        let halved = |a, b| _mm512_madd_epi16(_mm512_packs_epi32(a, b), ones);
        let sum = if blocks > 8 {
            halved(halved(v[0], v[1]), halved(v[2], v[3]))
        } else {
            halved(halved(v[0], v[1]), zero)
        };
        // Block 4i + j is the i-th of quarter j.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
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
