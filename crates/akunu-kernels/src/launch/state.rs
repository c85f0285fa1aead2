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
        let (each, threads) = (p.state_size.div_ceil(simds), 32 * simds);
        let padded = simds * each;
        let shared = 4 * (4 * padded + 2 * threads);
        if shared > self.chip.shared_bytes {
            let why = format!("states of {} take {shared} bytes of threadgroup memory", p.state_size);
            return Err(self.missing(why));
        }
        let shares = (2 * padded).div_ceil(threads);
        Ok(self
            .launch("state_scan", vec![&STATE], &format!("_{}", p.state_size))
            .variant([("STATE_EACH", each), ("STATE_SHARES", shares), ("KEPT", u32::from(kept))])
            .shared(shared)
            .over([p.head_dim.div_ceil(32), p.heads, self.rows], threads))
    }
}
