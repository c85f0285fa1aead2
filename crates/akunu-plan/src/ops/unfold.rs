//! The inputs of a convolution over three frames: each frame beside the one before and the one after, zeros beyond the
//! ends of the sequence.
//!
//! Rows hold several frames of a sequence, one after the other, and the rows of a sequence are consecutive: its first one
//! has position 0, and there are `kv_len` of them.

use super::extent::{Counts, Extent, f32s};
use super::{F32, Op, RowField, Rows, operands, params};
use crate::Row;
use crate::reference::Bound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unfold;

params! {
    UnfoldParams {
        /// Elements of a frame.
        cols: u32,
        /// Frames of a row.
        frames: u32,
        /// Which of a row's frames is in the middle.
        middle: u32,
    }
}

operands! {
    UnfoldOperands of Unfold as op {
        x: read F32,
        rows: read Rows(&[RowField::Position, RowField::KvLen]),
        /// `[row][element][frame]`
        out: write F32,
    }
}

impl UnfoldParams {
    /// The frame of a pass of `rows` rows that is beside the middle of row `index` (0: before it, 1: itself, 2: after
    /// it), if its sequence has one there.
    #[inline(always)]
    pub fn frame(&self, row: &Row, index: usize, rows: usize, tap: u32) -> Option<usize> {
        let frames = u64::from(self.frames);
        let at = |row: u64| (row * frames + u64::from(self.middle) + u64::from(tap)).checked_sub(1);
        let of_sequence = at(row.position.into()).filter(|&frame| frame < u64::from(row.kv_len) * frames);
        let of_pass = at(index as u64).filter(|&frame| frame < rows as u64 * frames);
        of_sequence.and(of_pass).map(|frame| frame as usize)
    }
}

impl Op for Unfold {
    type Params = UnfoldParams;
    type Operands<T: Copy> = UnfoldOperands<T>;

    fn name(self) -> String {
        "unfold".into()
    }

    fn extents(self, p: &UnfoldParams, counts: &Counts) -> Result<UnfoldOperands<Extent>, String> {
        if p.cols == 0 || p.middle >= p.frames {
            return Err(format!("frame {} of {} frames of {} elements", p.middle, p.frames, p.cols));
        }
        Ok(UnfoldOperands {
            x: f32s(counts.rows, u64::from(p.cols) * u64::from(p.frames)),
            rows: counts.rows(),
            out: f32s(counts.rows, u64::from(p.cols) * 3),
        })
    }

    fn reference(self, mut bound: Bound<'_>) {
        let (p, o) = (bound.params::<UnfoldParams>(), bound.operands(self));
        let cols = p.cols as usize;
        bound.write_f32s(o.out, |bound, out| {
            let x = bound.f32s(o.x);
            for (index, row) in bound.rows(o.rows).iter().enumerate() {
                for tap in 0..3 {
                    let frame = p.frame(row, index, bound.live.rows, tap as u32);
                    for col in 0..cols {
                        out[(index * cols + col) * 3 + tap] = frame.map_or(0.0, |frame| x[frame * cols + col]);
                    }
                }
            }
        });
    }
}
