//! Two blocks in a 512-bit register: how AVX-512 decodes them, and unpacks a panel of them for many rows.

use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::simd;
use super::avx512::Avx512;
use super::x86_quants::{QuantX86, Scales, no_scales, unpack_scales};
use crate::panel::{F16x, Panel};
use crate::quants::{Min, k4_scales, u32_at};

#[inline(always)]
pub(crate) fn join_integers(low: __m256i, high: __m256i) -> __m512i {
    simd!(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1))
}

#[inline(always)]
pub(crate) fn join(low: __m256, high: __m256) -> __m512 {
    simd!(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1))
}

#[inline(always)]
pub(crate) fn load64(p: *const u8) -> __m512i {
    simd!(_mm512_loadu_si512(p.cast()))
}

#[inline(always)]
pub(crate) fn and_wide(v: __m512i, mask: i8) -> __m512i {
    simd!(_mm512_and_si512(v, _mm512_set1_epi8(mask)))
}

/// Shifts the bytes of each half right by its own count; the bits shifted in from the byte above must be masked off.
#[inline(always)]
fn shift_halves(v: __m512i, low: usize, high: usize) -> __m512i {
    simd!({
        let counts = join_integers(_mm256_set1_epi16(low as i16), _mm256_set1_epi16(high as i16));
        _mm512_srlv_epi16(v, counts)
    })
}

/// The same 32 bytes in both halves, from which the quants of two blocks are extracted.
#[inline(always)]
pub(crate) fn both_shifted(p: *const u8, low: usize, high: usize) -> __m512i {
    simd!(shift_halves(_mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())), low, high))
}

/// Q6_K's quants of two blocks, 32 too large.
///
/// # Safety
/// Blocks `b` and `b + 1` of the octet can be read at `w`; the processor has AVX-512.
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
        // Combines the low four bits of one with the upper bits of the other.
        _mm512_ternarylogic_epi32(low, and_wide(high, 0x30), _mm512_set1_epi8(15), 0xe4)
    })
}

/// Q3_K's quants of two blocks, 4 too large.
///
/// # Safety
/// Blocks `b` and `b + 1` of the octet can be read at `w`; the processor has AVX-512.
#[inline(always)]
pub(crate) unsafe fn q3k_raised(w: *const u8, b: usize) -> __m512i {
    let shift = b % 4 * 2;
    simd!({
        let low = and_wide(both_shifted(w.add(32 + b / 4 * 32), shift, shift + 2), 3);
        _mm512_or_si512(low, where_bits(w, b, 4))
    })
}

/// d and m of two octets, `bytes` apart, of Q4_K or Q5_K.
///
/// # Safety
/// Both octets can be read; the processor has AVX-512.
#[inline(always)]
pub(crate) unsafe fn k4_of_two(w: *const u8, bytes: usize) -> (__m512, __m512) {
    simd!({
        let other = w.add(bytes);
        let (sub, min) = k4_scales(w);
        let (other_sub, other_min) = k4_scales(other);
        let halves = _mm_set_epi32(0, 0, u32_at(other, 0) as i32, u32_at(w, 0) as i32);
        // d and −m of the first octet, then of the other.
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

/// `value` in each byte of the first half whose bit `bit` is set, and of the second half whose bit `bit + 1` is set.
#[inline(always)]
pub(crate) fn where_bits(p: *const u8, bit: usize, value: i8) -> __m512i {
    simd!({
        let v = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let mask = |bit: usize| (1_u8 << bit) as i8;
        let bits = join_integers(_mm256_set1_epi8(mask(bit)), _mm256_set1_epi8(mask(bit + 1)));
        _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(v, bits), value)
    })
}

/// The low nibbles of sixteen bytes, then the high ones, of two blocks.
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

/// Looks up nibbles in a table.
#[inline(always)]
pub(crate) fn looked_up_wide(table: &[i8; 16], nibbles: __m512i) -> __m512i {
    simd!({
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(table, nibbles)
    })
}

/// The offset of quants that are loaded as unsigned.
pub(crate) const fn offset<Q: QuantX86>() -> i32 {
    if Q::SIGNED { Q::OFFSET + 128 } else { Q::OFFSET }
}

/// The indices of the 16-bit words that are the first and the second halves (f16) of blocks of `stride` bytes, in
/// windows of 32 words, and the start of each window.
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

/// Two times sixteen f16.
#[inline(always)]
pub(crate) fn floats_of_halves(v: __m512i) -> (__m512, __m512) {
    simd!((_mm512_cvtph_ps(_mm512_castsi512_si256(v)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1))))
}

/// The two f16 at the start of each of `blocks` ≤ 16 blocks; the other lanes are 0.
///
/// # Safety
/// `blocks` blocks can be read at `w`.
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
        floats_of_halves(v)
    })
}

/// The scales of each octet; only whole octets are read.
///
/// # Safety
/// `blocks` blocks can be read at `w`.
#[inline(always)]
pub(crate) unsafe fn octets<Q: QuantX86>(w: *const u8, blocks: usize) -> [Scales; 2] {
    simd!([
        if blocks >= 8 { Q::scales(w) } else { no_scales() },
        if blocks == 16 { Q::scales(w.add(Q::OCTET_BYTES)) } else { no_scales() },
    ])
}

/// The scales of the first and of the second halves of sixteen blocks, or their mins.
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
///
/// # Safety
/// `blocks` blocks can be read at `w`.
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
            return Q::scales_of_two(w, octets);
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

/// Transposes two blocks of sixteen rows to the panel's layout: `[4 elements][output · 4 + element]`, eight per block.
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

/// Whether quants minus their offset fit in a signed byte.
pub(crate) const fn is_signed<Q: QuantX86>() -> bool {
    !Q::SIGNED || Q::OFFSET == 0
}

/// Quants as bytes: minus their offset if `signed` is requested and they fit, else unsigned.
#[inline(always)]
pub(crate) fn bytes<Q: QuantX86>(v: __m512i, signed: bool) -> __m512i {
    simd!(match (signed && is_signed::<Q>(), Q::SIGNED) {
        (true, true) | (false, false) => v,
        (true, false) => _mm512_sub_epi8(v, _mm512_set1_epi8(Q::OFFSET as i8)),
        (false, true) => _mm512_xor_si512(v, _mm512_set1_epi8(-128)),
    })
}

/// Unpacks sixteen blocks of sixteen outputs: quants as [`bytes`], `[block][output][32]`, and scales
/// `[block][output]`.
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
                // Prefetch the same blocks of the next panel.
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
            // Whole panels need no test per piece.
            let (d, m) = if blocks == 16 {
                leading_halves::<Q>(rows[o], 16)
            } else {
                leading_halves::<Q>(rows[o], blocks)
            };
            Avx512(d).store(scales[0][o].0.as_mut_ptr());
            Avx512(m).store(scales[1][o].0.as_mut_ptr());
        }
        Avx512::transpose(&scales[0], &mut panel.d);
        if Q::MIN != Min::None {
            Avx512::transpose(&scales[1], &mut panel.m);
        }
    })
}
