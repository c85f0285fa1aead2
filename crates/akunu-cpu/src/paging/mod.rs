//! Experts that are read from their file when they are needed.
//!
//! A layer's *turn* begins when its router has chosen. Experts that are not kept are read by threads, in chunks of as many
//! as a row has. A command with products runs in stages: first the experts that are kept, and then each chunk, when it
//! has arrived. With more than two chunks, the ones that are not to be kept take turns in the slots that experts pass
//! through: a chunk is read while the one before it is computed, so each expert is read once for a pass, however many
//! there are.

mod kept;
mod rate;
mod readers;

pub use rate::read_rate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use akunu_format::Region;
use akunu_plan::ops::MAX_EXPERTS;
use akunu_plan::{ExpertPart, ExpertReads, ExpertSet, GROUPS, PagedLayer, Paging, SlotPool};

use crate::command::Experts;
use crate::memory::Owned;
use kept::{Kept, Miss};
use readers::{Read, Readers};

/// In the place of a slot: the expert is not computed in this stage.
pub(crate) const ELSEWHERE: u32 = u32::MAX;

/// Where the experts of a stage are: by expert the slot, or [`ELSEWHERE`]. Written between stages.
pub(crate) type Places = [AtomicU32; MAX_EXPERTS];

/// Gate and up, and the products after them.
const PARTS: usize = 2;

pub(crate) struct Pager {
    layers: Vec<Layer>,
    /// Before the pools: its threads have ended when the memory that they fill is freed.
    readers: Readers,
    pools: Vec<Pool>,
    places: Arc<Places>,
    turn: Option<Turn>,
    /// Of the turn.
    misses: Vec<Miss>,
    reads: ExpertReads,
}

struct Layer {
    shape: PagedLayer,
    sources: Vec<Source>,
    kept: Kept,
}

/// Where the experts of a weight are.
pub(crate) struct Source {
    pub(crate) region: Region,
    pub(crate) offset: usize,
    /// The buffer that has imported them, and where the first one is there.
    pub(crate) weight: (usize, u64),
}

/// Slots, for each weight in memory of its own.
struct Pool {
    planes: Vec<Owned>,
    /// The first slot that experts pass through.
    passing: usize,
}

/// The pass of a layer.
struct Turn {
    layer: usize,
    needed: ExpertSet,
    chunks: usize,
    /// Chunks of both parts, in their order, that are read or being read.
    begun: usize,
    part: ExpertPart,
    stage: Stage,
    /// Whether the stages of each part have been run.
    ended: [bool; PARTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The experts that are kept.
    Kept,
    Chunk(usize),
    /// All experts at once.
    All,
}

impl Turn {
    /// Whether chunks take turns in slots.
    fn is_long(&self) -> bool {
        self.chunks > GROUPS
    }

    /// The number of a chunk among those of both parts.
    fn number(&self, part: ExpertPart, chunk: usize) -> usize {
        part as usize * self.chunks + chunk
    }
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pager({} layers, {:?})", self.layers.len(), self.reads)
    }
}

impl Pager {
    /// `sources` are those of each layer's weights. `None`: there is no memory for the slots.
    pub(crate) fn new(paging: &Paging, sources: Vec<Vec<Source>>) -> std::io::Result<Option<Pager>> {
        let pool = |pool: &SlotPool| {
            let planes =
                pool.bytes.iter().map(|bytes| Owned::zeroed(bytes.checked_mul(pool.slots() as u64)?));
            Some(Pool { planes: planes.collect::<Option<_>>()?, passing: pool.kept })
        };
        let Some(pools) = paging.pools.iter().map(pool).collect() else { return Ok(None) };
        let chunks = |layer: &PagedLayer| layer.experts.div_ceil(layer.top);
        let numbers = PARTS * paging.layers.iter().map(chunks).max().unwrap_or(0);
        let waiting = |layer: &PagedLayer| {
            let of_expert: usize = layer.weights.iter().map(|weight| readers::pieces(weight.bytes)).sum();
            GROUPS * layer.top * of_expert
        };
        let waiting = paging.layers.iter().map(waiting).max().unwrap_or(0);
        let readers = Readers::new(numbers, waiting)?;
        let layers = paging.layers.iter().zip(sources).map(|(shape, sources)| Layer {
            kept: Kept::new(shape.experts, shape.kept),
            shape: shape.clone(),
            sources,
        });
        Ok(Some(Pager {
            layers: layers.collect(),
            pools,
            readers,
            places: Arc::new([const { AtomicU32::new(ELSEWHERE) }; MAX_EXPERTS]),
            turn: None,
            misses: Vec::with_capacity(MAX_EXPERTS),
            reads: ExpertReads::default(),
        }))
    }

    /// The layer that has a weight: the device's buffer, and the offset there.
    pub(crate) fn layer_of(&self, weight: (usize, u64)) -> Option<usize> {
        let has = |layer: &Layer| layer.sources.iter().any(|source| source.weight == weight);
        self.layers.iter().position(has)
    }

    pub(crate) fn layer(&self, layer: usize) -> &PagedLayer {
        &self.layers[layer].shape
    }

    /// For each weight of a command, in their order, the bytes of all experts in the file, and the slots.
    pub(crate) fn slots_for(&self, experts: Experts) -> impl Iterator<Item = (u64, &Owned)> {
        let (layer, weights) = match experts {
            Experts::Read { layer, part: ExpertPart::Glu } => (layer, 0..self.layers[layer].shape.glu),
            Experts::Read { layer, part: ExpertPart::Down } => {
                (layer, self.layers[layer].shape.glu..usize::MAX)
            }
            _ => (0, 0..0),
        };
        let shape = &self.layers[layer].shape;
        let planes = shape.weights.iter().zip(&self.pools[shape.pool].planes);
        let planes = planes.skip(weights.start).take(weights.len());
        planes.map(|(weight, slots)| (weight.bytes * shape.experts as u64, slots))
    }

    pub(crate) fn places(&self) -> Arc<Places> {
        Arc::clone(&self.places)
    }

    pub(crate) fn reads(&self) -> ExpertReads {
        self.reads
    }

    /// Begins the turn of a layer, whose rows need some experts, unless it is under way.
    pub(crate) fn begin(&mut self, layer: usize, needed: ExpertSet) {
        if self.turn.as_ref().is_some_and(|turn| turn.layer == layer && turn.needed == needed) {
            return;
        }
        self.abandon();
        let Layer { shape, kept, .. } = &mut self.layers[layer];
        kept.need(&needed, &mut self.misses);
        self.reads.hits += (needed.len() - self.misses.len()) as u64;
        self.reads.misses += self.misses.len() as u64;
        let chunks = self.misses.len().div_ceil(shape.top);
        let (part, stage, ended) = (ExpertPart::Glu, Stage::Kept, [false; PARTS]);
        let turn = self.turn.insert(Turn { layer, needed, chunks, begun: 0, part, stage, ended });
        let first = if turn.is_long() { GROUPS } else { PARTS * chunks };
        self.read_until(first);
    }

    /// Ends a turn that was not run to its end.
    fn abandon(&mut self) {
        self.readers.wait_for_all();
        if let Some(turn) = self.turn.take() {
            self.hide(turn.needed);
            self.layers[turn.layer].kept.settle(&self.misses, false);
        }
    }

    /// Begins to read chunks up to a number, of both parts.
    fn read_until(&mut self, end: usize) {
        let Some(turn) = &mut self.turn else { return };
        let Layer { shape, sources, .. } = &self.layers[turn.layer];
        let planes = &self.pools[shape.pool].planes;
        for number in turn.begun..end.min(PARTS * turn.chunks) {
            let weights = if number < turn.chunks { 0..shape.glu } else { shape.glu..shape.weights.len() };
            let chunk = number % turn.chunks;
            for (place, miss) in chunk_of(&self.misses, shape.top, chunk) {
                let slot = slot_of(shape, self.pools[shape.pool].passing, chunk, place, miss);
                for weight in weights.clone() {
                    let bytes = shape.weights[weight].bytes as usize;
                    let Source { region, offset: first, .. } = &sources[weight];
                    let to = planes[weight].start().wrapping_add(slot * bytes);
                    let offset = first + miss.expert * bytes;
                    // SAFETY: the slot is within the pool. Nothing uses it: experts that are kept there are not part
                    // of this pass, and what passes through it was computed in an earlier stage.
                    unsafe {
                        self.readers.begin(number, &Read { region: region.clone(), offset, to, bytes })
                    };
                    self.reads.file_bytes += bytes as u64;
                }
            }
            turn.begun = number + 1;
        }
    }

    /// Before the first stage of a command that computes a part of a layer's products.
    pub(crate) fn enter(&mut self, layer: usize, part: ExpertPart, needed: ExpertSet) -> Result<(), String> {
        self.begin(layer, needed);
        let Some(turn) = &mut self.turn else { return Ok(()) };
        turn.part = part;
        turn.stage = match (turn.is_long(), part) {
            (false, ExpertPart::Down) => Stage::All,
            _ if turn.needed.len() == self.misses.len() && turn.chunks > 0 => Stage::Chunk(0),
            _ => Stage::Kept,
        };
        let first = turn.number(part, 0);
        if turn.is_long() && !(first..=first + GROUPS).contains(&turn.begun) {
            // A command that is run alone, or again: what passes through slots is read for it anew.
            self.readers.wait_for_all();
            turn.begun = first;
        }
        self.show()
    }

    /// After a stage of that command: whether there is another one.
    pub(crate) fn next(&mut self) -> Result<bool, String> {
        let Some(turn) = &mut self.turn else { return Ok(false) };
        let next = match turn.stage {
            Stage::All => None,
            Stage::Kept => (turn.chunks > 0).then_some(0),
            Stage::Chunk(chunk) => (chunk + 1 < turn.chunks).then_some(chunk + 1),
        };
        if let Some(chunk) = next {
            turn.stage = Stage::Chunk(chunk);
            return self.show().map(|()| true);
        }
        turn.ended[turn.part as usize] = true;
        if turn.part == ExpertPart::Down {
            self.end();
        }
        Ok(false)
    }

    fn end(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        self.hide(turn.needed);
        let are_filled = !turn.is_long() || turn.ended == [true; PARTS];
        self.layers[turn.layer].kept.settle(&self.misses, are_filled);
    }

    /// Waits for the experts of a stage, and tells where they are.
    fn show(&mut self) -> Result<(), String> {
        let result = self.arrive();
        if result.is_err() {
            self.abandon();
        }
        result
    }

    fn arrive(&mut self) -> Result<(), String> {
        let Some(turn) = &self.turn else { return Ok(()) };
        let (needed, stage, part, chunks) = (turn.needed, turn.stage, turn.part, turn.chunks);
        match stage {
            Stage::Kept => {}
            Stage::Chunk(chunk) => {
                let number = turn.number(part, chunk);
                self.read_until(number + GROUPS);
                self.readers.wait(number)?;
            }
            Stage::All => (0..PARTS * chunks).try_for_each(|number| self.readers.wait(number))?,
        }
        self.hide(needed);
        let Some(Turn { layer, .. }) = self.turn else { return Ok(()) };
        let Layer { shape, kept, .. } = &self.layers[layer];
        let place = |expert: usize, slot: usize| self.places[expert].store(slot as u32, Ordering::Relaxed);
        if matches!(stage, Stage::Kept | Stage::All) {
            let kept = needed.iter().filter_map(|expert| Some((expert, kept.slot(expert)?)));
            kept.for_each(|(expert, slot)| place(expert, shape.first + slot));
        }
        let shown = match stage {
            Stage::Kept => 0..0,
            Stage::Chunk(chunk) => chunk..chunk + 1,
            Stage::All => 0..chunks,
        };
        for chunk in shown {
            for (index, miss) in chunk_of(&self.misses, shape.top, chunk) {
                place(miss.expert, slot_of(shape, self.pools[shape.pool].passing, chunk, index, miss));
            }
        }
        Ok(())
    }

    fn hide(&self, experts: ExpertSet) {
        experts.iter().for_each(|expert| self.places[expert].store(ELSEWHERE, Ordering::Relaxed));
    }
}

/// The experts of a chunk, and their places in it.
fn chunk_of(misses: &[Miss], top: usize, chunk: usize) -> impl Iterator<Item = (usize, &Miss)> {
    misses.iter().skip(chunk * top).take(top).enumerate()
}

/// The slot of a pool in which an expert arrives.
fn slot_of(shape: &PagedLayer, passing: usize, chunk: usize, place: usize, miss: &Miss) -> usize {
    match miss.kept_in {
        Some(slot) => shape.first + slot,
        None => passing + chunk % GROUPS * shape.top + place,
    }
}
