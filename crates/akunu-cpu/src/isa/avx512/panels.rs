//! Unpacking of weights for the products of many rows.

use std::arch::x86_64::*;

use super::lanes::Avx512;
use super::quants::{QuantAvx512, bytes, leading_halves};
use crate::formats::Min;
use crate::isa::Lanes;
use crate::isa::avx2::panels::unpack_scales;
use crate::isa::avx2::simd;
use crate::panel::{F16x, Panel};

/// Unpacks sixteen blocks of sixteen outputs: quants as [`bytes`], `[block][output][32]`, and scales
/// `[block][output]`.
///
/// # Safety
/// `blocks` ≤ 16 blocks can be read at each row.
#[inline(always)]
pub(crate) unsafe fn unpack<Q: QuantAvx512>(
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
