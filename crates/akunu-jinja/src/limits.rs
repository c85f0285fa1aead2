//! What a template may use up: it came with a model from a stranger.

use super::{JinjaError, JinjaResult};

/// Steps of evaluation. About a second.
const STEPS: u64 = 20_000_000;

/// Bytes of strings and lists made while rendering, all together.
const BYTES: usize = 512 << 20;

/// How deep evaluation nests: macros that call each other, expressions, data in data. Fits half a megabyte of stack.
const DEPTH: usize = 640;

/// The longest text that may come out.
pub(super) const OUTPUT: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Limits {
    steps: u64,
    bytes: usize,
    depth: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { steps: STEPS, bytes: BYTES, depth: DEPTH }
    }
}

impl Limits {
    pub(super) fn spend(&mut self, steps: usize) -> JinjaResult<()> {
        self.steps = self.steps.checked_sub(steps as u64).ok_or(JinjaError::Limit("takes too many steps"))?;
        Ok(())
    }

    pub(super) fn bytes(&mut self, bytes: usize) -> JinjaResult<()> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(JinjaError::Limit("uses too much memory"))?;
        self.spend(bytes / 256)
    }

    /// One level deeper. After an error nobody comes back up.
    pub(super) fn enter(&mut self) -> JinjaResult<()> {
        self.depth = self.depth.checked_sub(1).ok_or(JinjaError::Limit("nests too deeply"))?;
        self.spend(1)
    }

    pub(super) fn leave(&mut self) {
        self.depth += 1;
    }
}
