//! Layers with a state.

use akunu_plan::ops::{StateConv, StateConvParams, StateScan, StateScanParams};

use crate::function::source;
use crate::{Launch, MissingKernel, Source};

use super::Shape;

static STATE: Source = source!("state.h");

/// Threads of a threadgroup of the convolution.
const CHANNELS: u32 = 128;
/// Numbers of a state that a thread has in registers, unless there are more than so many SIMD groups of them.
const EACH: u32 = 32;
const MOST_SIMDS: u32 = 32;
/// Rows that are in threadgroup memory at a time, and bytes that they take at most.
const MOST_STEPS: u32 = 16;
/// The same in tables of so few rows, which may each be one of a sequence.
const FEW_ROWS: u32 = 64;
const FEW_STEPS: u32 = 4;
const SHARED: u32 = 32 << 10;

impl Shape<'_> {
    pub(super) fn state_conv(&self, StateConv { bias, kept }: StateConv) -> Launch {
        let p: StateConvParams = self.command.params();
        self.launch("state_conv", vec![&STATE], &format!("_{}", p.taps))
            .variant([("TAPS", p.taps), ("BIAS", u32::from(bias)), ("KEPT", u32::from(kept))])
            .over([p.channels.div_ceil(CHANNELS), self.rows, 1], CHANNELS)
    }

    pub(super) fn state_scan(&self, StateScan { kept }: StateScan) -> Result<Launch, MissingKernel> {
        let p: StateScanParams = self.command.params();
        let simds = p.state_size.div_ceil(EACH).min(MOST_SIMDS);
        // Four at a time.
        let (each, threads) = (p.state_size.div_ceil(simds).next_multiple_of(4), 32 * simds);
        // For each row B and C, what the elements take up, the decay, and the parts of the sums.
        let of_row = 4 * (2 * simds * each + 32 + 1 + threads);
        let steps = (SHARED.min(self.chip.shared_bytes) / of_row)
            .min(if self.rows > FEW_ROWS { MOST_STEPS } else { FEW_STEPS })
            .min(self.rows);
        if steps == 0 {
            let why =
                format!("a row with states of {} takes {of_row} bytes of threadgroup memory", p.state_size);
            return Err(self.missing(why));
        }
        Ok(self
            .launch("state_scan", vec![&STATE], &format!("_{}", p.state_size))
            .variant([
                ("STATE_EACH", each),
                ("STEPS", steps),
                ("OWN_STEPS", steps.div_ceil(simds)),
                ("KEPT", u32::from(kept)),
            ])
            .shared(steps * of_row)
            .over([p.head_dim.div_ceil(32), p.heads, self.rows], threads))
    }
}
