//! Norms, activations, rounding, angles.

use akunu_plan::ops::{AnglesParams, ElementParams, NormParams};
use akunu_plan::{Activation, NormOut, RowSet};

use crate::Source;
use crate::function::source;

use super::{Launch, LaunchBuilder, MissingKernel, Shape};

static ROWS: Source = source!("rows.h");
static ACTIVATION: Source = source!("activation.h");
static TURNS: Source = source!("turns.h");
static ANGLES: Source = source!("angles.h");

/// Threads of an elementwise kernel's group.
const WIDE: u32 = 256;
/// Elements of a row that one thread of a norm may hold in registers.
const MOST_PER_THREAD: u32 = 32;

/// As `activate` in activation.h numbers them.
pub(super) fn activation_number(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
    }
}

impl LaunchBuilder {
    pub(super) fn out(self, out: NormOut) -> LaunchBuilder {
        let [f32, q8, f16] = [out.f32(), out.q8(), out.f16()].map(u32::from);
        self.constants([("OUT_F32", f32), ("OUT_Q8", q8), ("OUT_F16", f16)])
    }
}

impl Shape<'_> {
    pub(super) fn count(&self, set: RowSet) -> u32 {
        if set == RowSet::All { self.rows } else { self.logit_rows }
    }

    pub(super) fn rope_angles(&self) -> Launch {
        let p: AnglesParams = self.command.params();
        let threads = p.pairs.next_multiple_of(32).clamp(32, 128);
        self.launch("rope_angles", vec![&TURNS, &ANGLES], &format!("_{}", p.pairs))
            .constants([("PAIRS", p.pairs)])
            .over([p.pairs.div_ceil(threads).max(1), self.rows, 1], threads)
    }

    pub(super) fn rms_norm(&self, out: NormOut, set: RowSet) -> Result<Launch, MissingKernel> {
        self.norm("rms_norm", out, set)
    }

    pub(super) fn norm_add(&self) -> Result<Launch, MissingKernel> {
        self.norm("norm_add", NormOut::F32, RowSet::All)
    }

    /// A group a row; a thread holds its elements in registers.
    fn norm(&self, entry: &'static str, out: NormOut, set: RowSet) -> Result<Launch, MissingKernel> {
        let cols = self.command.params::<NormParams>().cols;
        let threads = cols.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
        let per_thread = cols.div_ceil(threads).next_power_of_two();
        if per_thread > MOST_PER_THREAD {
            return Err(self.missing(format!("a row of {cols} is too long for one group")));
        }
        Ok(self
            .launch(entry, vec![&ROWS], &format!("_{cols}"))
            .variant([("PER_THREAD", per_thread)])
            .constants([("COLS", cols), ("LOGITS", u32::from(set == RowSet::Logits))])
            .out(out)
            .shared(32 * 4)
            .over([1, self.count(set), 1], threads))
    }

    pub(super) fn glu(&self, activation: Activation, out: NormOut) -> Launch {
        let cols = self.command.params::<ElementParams>().cols;
        self.launch("glu", vec![&ACTIVATION, &ROWS], &format!("_{cols}"))
            .constants([("ACTIVATION", activation_number(activation)), ("COLS", cols)])
            .out(out)
            .over([cols.div_ceil(WIDE), self.rows, 1], WIDE)
    }

    pub(super) fn quantise(&self) -> Launch {
        let cols = self.command.params::<ElementParams>().cols;
        self.launch("quantise", vec![&ROWS], &format!("_{cols}"))
            .constants([("COLS", cols)])
            .out(NormOut::Q8)
            .over([cols.div_ceil(WIDE), self.rows, 1], WIDE)
    }
}
