//! Resource limits of a rendering: templates come with models from untrusted sources.

use std::time::{Duration, Instant};

use super::{JinjaError, JinjaResult};

/// Evaluation steps; takes about a second.
const STEPS: u64 = 20_000_000;

/// Total bytes of strings and lists created while rendering.
const BYTES: usize = 256 << 20;

/// Nesting of evaluation: macro calls, expressions, nested data. Fits into half a megabyte of stack.
const DEPTH: usize = 640;

/// Maximum size of the output in bytes.
pub(super) const OUTPUT: usize = 64 << 20;
pub(super) const TOO_MUCH_TEXT: &str = "writes too much text";

/// Steps are counted, so that a template fails everywhere or nowhere; this is for what they do not count well enough.
pub(super) const TIME: Duration = Duration::from_secs(3);

/// Steps between two looks at the clock.
const CLOCK: u64 = 1 << 14;

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    steps: u64,
    /// The clock is read when this many steps are left.
    next_look: u64,
    end: Instant,
    bytes: usize,
    depth: usize,
}

impl Limits {
    /// `next_look` is at once, so that nothing is rendered when the time is over.
    pub(super) fn until(end: Instant) -> Limits {
        Limits { steps: STEPS, next_look: STEPS, end, bytes: BYTES, depth: DEPTH }
    }

    pub(super) fn spend(&mut self, steps: usize) -> JinjaResult<()> {
        self.steps = self.steps.checked_sub(steps as u64).ok_or(JinjaError::Limit("takes too many steps"))?;
        if self.steps < self.next_look {
            self.next_look = self.steps.saturating_sub(CLOCK);
            if Instant::now() > self.end {
                return Err(JinjaError::Limit("takes too long"));
            }
        }
        Ok(())
    }

    pub(super) fn bytes(&mut self, bytes: usize) -> JinjaResult<()> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(JinjaError::Limit("uses too much memory"))?;
        self.spend(bytes / 256)
    }

    /// Steps and bytes that were spent.
    #[cfg(test)]
    pub(super) fn spent(&self) -> [u64; 2] {
        [STEPS - self.steps, (BYTES - self.bytes) as u64]
    }

    /// Enters a nesting level. An error ends the whole rendering, so the level need not be restored then.
    pub(super) fn enter(&mut self) -> JinjaResult<()> {
        self.depth = self.depth.checked_sub(1).ok_or(JinjaError::Limit("nests too deeply"))?;
        self.spend(1)
    }

    pub(super) fn leave(&mut self) {
        self.depth += 1;
    }
}
