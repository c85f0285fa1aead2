//! Sampling.

use akunu_plan::ops::SampleParams;
use akunu_plan::sample::{BIASES, WINDOW};

use crate::Source;
use crate::function::source;

use super::{COUNTER_BYTES, Launch, MissingKernel, SCRATCH_BYTES, Shape};

static CHAIN: Source = source!("chain.h");
static RANDOM: Source = source!("random.h");
static SAMPLE: Source = source!("sample.h");

const THREADS: u32 = 256;
/// Tokens per thread; a part of the vocabulary is one threadgroup's.
const EACH: u32 = 8;
/// Stairs that are kept per part, and per row after merging.
const STAIRS: u32 = 16;
const MERGED: u32 = 32;
/// Sizes of Stair, Part, Merged and Rank in sample.h.
const STAIR: u32 = 12;
const PART: u32 = 8 + STAIRS * STAIR;
const WHOLE: u32 = 8 + MERGED * STAIR;
const RANKS: u32 = (MERGED + 1) * 16;

impl Shape<'_> {
    /// sample_stairs finds the candidates, sample_pick selects one.
    pub(super) fn sample(&self) -> Result<Vec<Launch>, MissingKernel> {
        let p: SampleParams = self.command.params();
        let parts = p.vocab.div_ceil(EACH * THREADS);
        let scratch =
            u64::from(self.logit_rows) * (u64::from(WHOLE) + u64::from(parts) * u64::from(PART + RANKS));
        if scratch > SCRATCH_BYTES - COUNTER_BYTES {
            let rows = self.logit_rows;
            return Err(self.missing(format!("{rows} rows of {} logits take too much memory", p.vocab)));
        }
        let shared = 16 + 64 * STAIR + (THREADS / 32 + 1) * RANKS + 2 * EACH * THREADS * 4;
        let launch = |entry: &'static str, suffix: &str| {
            let name = format!("{suffix}_{}_{}", p.vocab, self.logit_rows);
            self.launch(entry, vec![&CHAIN, &RANDOM, &SAMPLE], &name)
                .variant([("EACH", EACH), ("STAIRS", STAIRS), ("MERGED", MERGED)])
                .variant([("HELD", (parts * STAIRS).div_ceil(THREADS))])
                .constants([("VOCAB", p.vocab), ("PARTS", parts), ("LOGIT_CAPACITY", self.logit_rows)])
                .constants([("WINDOW", WINDOW as u32), ("BIASES", BIASES as u32)])
                .shared(shared)
                .over([parts, self.logit_rows, 1], THREADS)
        };
        Ok(vec![launch("sample_stairs", "_stairs"), launch("sample_pick", "_pick")])
    }
}
