//! Sampling.

use akunu_plan::ops::SampleParams;
use akunu_plan::sample::{BIASES, WINDOW};

use crate::Source;
use crate::function::source;

use super::{COUNTER_BYTES, Launch, MissingKernel, SCRATCH_BYTES, Shape};

static CHAIN: Source = source!("chain.h");
static RANDOM: Source = source!("random.h");
static SAMPLE: Source = source!("sample.h");
static SAMPLE_SHAPE: Source = source!("sample_shape.h");

const THREADS: u32 = 256;
/// Tokens per thread; a part of the vocabulary is one threadgroup's.
const EACH: u32 = 8;
/// The same where one threadgroup goes through the whole vocabulary.
const SHAPE_THREADS: u32 = 512;
const SHAPE_EACH: u32 = 4;
/// Stairs that are kept per part, and per row after merging.
const STAIRS: u32 = 16;
const MERGED: u32 = 32;
/// Sizes of Shape, Stair, Part, Shape with Merged, and Rank in sample.h.
const SHAPE: u32 = 16;
const STAIR: u32 = 12;
const PART: u32 = 8 + STAIRS * STAIR;
const WHOLE: u32 = SHAPE + 8 + MERGED * STAIR;
const RANKS: u32 = (MERGED + 1) * 16;

impl Shape<'_> {
    /// sample_shape finds bounds that need all logits, sample_stairs the candidates, and sample_pick selects one.
    pub(super) fn sample(&self) -> Result<Vec<Launch>, MissingKernel> {
        let p: SampleParams = self.command.params();
        let parts = p.vocab.div_ceil(EACH * THREADS);
        let scratch =
            u64::from(self.logit_rows) * (u64::from(WHOLE) + u64::from(parts) * u64::from(PART + RANKS));
        if scratch > SCRATCH_BYTES - COUNTER_BYTES {
            let rows = self.logit_rows;
            return Err(self.missing(format!("{rows} rows of {} logits take too much memory", p.vocab)));
        }
        let launch = |entry: &'static str, suffix: &str, sources, each: u32, groups: u32, threads: u32| {
            let parts = p.vocab.div_ceil(each * threads);
            let name = format!("{suffix}_{}_{}", p.vocab, self.logit_rows);
            let shared = 16 + 64 * STAIR + (threads / 32 + 1) * RANKS + 2 * each * threads * 4;
            self.launch(entry, sources, &name)
                .variant([("EACH", each), ("STAIRS", STAIRS), ("MERGED", MERGED)])
                .variant([("HELD", (parts * STAIRS).div_ceil(threads))])
                .constants([("VOCAB", p.vocab), ("PARTS", parts), ("LOGIT_CAPACITY", self.logit_rows)])
                .constants([("WINDOW", WINDOW as u32), ("BIASES", BIASES as u32)])
                .shared(shared)
                .over([groups, self.logit_rows, 1], threads)
        };
        let sources = || vec![&CHAIN, &RANDOM, &SAMPLE];
        let with_shape = vec![&CHAIN, &RANDOM, &SAMPLE, &SAMPLE_SHAPE];
        Ok(vec![
            launch("sample_shape", "_shape", with_shape, SHAPE_EACH, 1, SHAPE_THREADS),
            launch("sample_stairs", "_stairs", sources(), EACH, parts, THREADS),
            launch("sample_pick", "_pick", sources(), EACH, parts, THREADS),
        ])
    }
}
