//! Sampling.

use akunu_plan::RowSet;
use akunu_plan::ops::SampleParams;
use akunu_plan::sample::{BIASES, WINDOW};

use crate::Source;
use crate::function::source;

use super::{COUNTER_BYTES, Launch, MissingKernel, SCRATCH_BYTES, Shape};

static CHAIN: Source = source!("chain.h");
static RANDOM: Source = source!("random.h");
static SAMPLE: Source = source!("sample.h");
static SAMPLE_SHAPE: Source = source!("sample_shape.h");

/// Rows of a launch at most: these fill a GPU, and the candidates of more would not stay in its cache.
const ROWS_AT_ONCE: u64 = 256;
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
    /// sample_shape finds bounds that need all logits, sample_stairs the candidates, and sample_pick selects one. Rows
    /// whose candidates do not fit into the scratch memory together are sampled in groups, one after the other.
    pub(super) fn sample(&self) -> Result<Vec<Launch>, MissingKernel> {
        let p: SampleParams = self.command.params();
        let parts = p.vocab.div_ceil(EACH * THREADS);
        let row_bytes = u64::from(WHOLE) + u64::from(parts) * u64::from(PART + RANKS);
        // A variant of a table for fewer rows has as many of them with logits at most.
        let rows = self.count(RowSet::Logits);
        let at_once = ((SCRATCH_BYTES - COUNTER_BYTES) / row_bytes).min(ROWS_AT_ONCE) as u32;
        if at_once == 0 {
            return Err(self.missing(format!("{} logits take too much memory", p.vocab)));
        }
        let launch =
            |first: u32, entry: &'static str, suffix: &str, sources, [each, groups, threads]: [u32; 3]| {
                let parts = p.vocab.div_ceil(each * threads);
                let group = if first > 0 { format!("_from_{first}") } else { String::new() };
                let name = format!("{suffix}_{}_{}{group}", p.vocab, self.logit_rows);
                let shared = 16 + 64 * STAIR + (threads / 32 + 1) * RANKS + 2 * each * threads * 4;
                self.launch(entry, sources, &name)
                    .variant([("EACH", each), ("STAIRS", STAIRS), ("MERGED", MERGED)])
                    .variant([("HELD", (parts * STAIRS).div_ceil(threads))])
                    .constants([("VOCAB", p.vocab), ("PARTS", parts), ("LOGIT_CAPACITY", self.logit_rows)])
                    .constants([("FIRST_ROW", first)])
                    .constants([("WINDOW", WINDOW as u32), ("BIASES", BIASES as u32)])
                    .shared(shared)
                    .over([groups, (rows - first).min(at_once), 1], threads)
            };
        let sources = || vec![&CHAIN, &RANDOM, &SAMPLE];
        let with_shape = || vec![&CHAIN, &RANDOM, &SAMPLE, &SAMPLE_SHAPE];
        let groups = (0..rows).step_by(at_once as usize).flat_map(|first| {
            [
                launch(first, "sample_shape", "_shape", with_shape(), [SHAPE_EACH, 1, SHAPE_THREADS]),
                launch(first, "sample_stairs", "_stairs", sources(), [EACH, parts, THREADS]),
                launch(first, "sample_pick", "_pick", sources(), [EACH, parts, THREADS]),
            ]
        });
        Ok(groups.collect())
    }
}
