//! What ranks exchange.

use std::time::Duration;

use akunu_plan::ops::{AllGatherParams, AllReduce, MatmulParams, NormParams};
use akunu_plan::{Binding, DispatchCommand, Kernel, MatmulForm, OutputForms, RowSet};
use bytemuck::{Pod, Zeroable};

use super::{Launch, LaunchBuilder, Shape, Work};
use crate::Source;
use crate::function::source;

pub(super) static EXCHANGE: Source = source!("exchange.h");
static RANKS: Source = source!("ranks.h");

/// The constants of exchange.h.
const MOST_RANKS: usize = 16;
const GROUPS: u32 = 256;
const PACKETS: u32 = 256;
const FLOATS: u32 = 8192;
const HEAD_BYTES: u64 = 32768;

/// Floats of a chunk for each thread.
const FLOATS_PER_THREAD: u32 = 16;
/// Numbers that a threadgroup combines at once: two for each thread, and whole blocks of a norm.
const GATHERED_PART: u64 = PACKETS as u64 * 2;
/// The most numbers that are sent in packets, which are twice as many bytes and need no signal.
const MOST_IN_PACKETS: u64 = 16 << 10;

/// Bytes of the memory in which a rank receives what `ranks` send; `None`: there are too many.
pub fn exchange_bytes(ranks: usize) -> Option<u64> {
    let places = u64::from(GROUPS) * ranks as u64;
    let bytes = HEAD_BYTES + places * (2 * u64::from(PACKETS) * 16 + 4 * u64::from(FLOATS) * 4);
    (ranks <= MOST_RANKS).then_some(bytes)
}

/// Bytes of the memory after the scratch memory to which a library gathers the numbers of ranks in other processes.
pub const GATHERED_BYTES: u64 = 32 << 20;

/// Numbers of all ranks from the same binding of the same command, gathered into the memory after the scratch memory, one
/// rank after the other. Done by the device's library (NCCL), always for the table's maximum number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gathering {
    /// The index of the command's binding.
    pub x: usize,
    /// The first of its numbers, and how many.
    pub first: u64,
    pub count: u64,
}

/// The beginning of that memory, which the host writes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Exchange {
    peers: [u64; MOST_RANKS],
    ranks: u32,
    broken: u32,
    patience_ms: u32,
    /// Up to a multiple of 8 bytes.
    padding: u32,
}

impl Exchange {
    /// `peers`: the addresses of this memory on all ranks, of which there are not too many ([`exchange_bytes`]).
    /// `patience`: how long this rank waits for the others.
    pub fn new(peers: &[u64], patience: Duration) -> Exchange {
        let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let mut exchange = Exchange { ranks: peers.len() as u32, patience_ms, ..Exchange::zeroed() };
        exchange.peers[..peers.len()].copy_from_slice(peers);
        exchange
    }
}

/// Floats of a chunk: as few as make a chunk for each threadgroup, because one alone waits longest for a round trip.
fn chunk_of(total: u64) -> u32 {
    let most = |chunk: &u32| total <= u64::from(*chunk) * u64::from(GROUPS);
    [2048, 4096].into_iter().find(most).unwrap_or(FLOATS)
}

/// Whether a product of one row sends its outputs in packets to the other ranks, and the sum that follows only waits for
/// theirs.
fn sends([product, sum]: [&DispatchCommand; 2]) -> bool {
    let (Kernel::Matmul(op), Kernel::AllReduce(_)) = (product.kernel, sum.kernel) else { return false };
    let (p, cols) = (product.params::<MatmulParams>(), sum.params::<NormParams>().cols);
    let plain = op.form == MatmulForm::Gemv && op.rows == RowSet::All && op.norm.is_none();
    // Packets have two numbers.
    let whole = p.outputs == cols && p.out_stride == cols && cols.is_multiple_of(2);
    let fits = u64::from(cols) <= MOST_IN_PACKETS;
    plain && whole && fits && bound(product, "out").is_some_and(|out| bound(sum, "x") == Some(out))
}

fn bound(command: &DispatchCommand, name: &str) -> Option<Binding> {
    let slots = command.kernel.bindings();
    let at = slots.iter().position(|slot| slot.name == name)?;
    command.bindings().get(at).copied()
}

impl Shape<'_> {
    fn exchanges(&self) -> bool {
        self.rows == 1 && self.chip.gathered_ranks == 0
    }

    pub(super) fn is_sender(&self) -> bool {
        self.exchanges() && self.after.is_some_and(|sum| sends([self.command, sum]))
    }

    fn is_sent(&self) -> bool {
        self.exchanges() && self.before.is_some_and(|product| sends([product, self.command]))
    }

    /// What a library gathers and a kernel combines, in as many parts as there is memory for.
    fn gathered(&self, total: u64, ranks: u32, combine: impl Fn(u64, u64) -> Launch) -> Vec<Work> {
        // Whole threadgroups' numbers.
        let most = GATHERED_BYTES / 4 / u64::from(ranks) / GATHERED_PART * GATHERED_PART;
        let firsts = (0..total).step_by(most as usize);
        let parts = firsts.flat_map(|first| {
            let count = most.min(total - first);
            [Work::Gather(Gathering { x: 0, first, count }), Work::Launch(combine(first, count))]
        });
        parts.collect()
    }

    pub(super) fn reduce_gathered(&self, op: AllReduce, ranks: u32) -> Vec<Work> {
        let AllReduce { residual, norm } = op;
        let cols = self.command.params::<NormParams>().cols;
        let has = |form: fn(OutputForms) -> bool| u32::from(norm.is_some_and(form));
        self.gathered(u64::from(self.rows) * u64::from(cols), ranks, |first, count| {
            let groups = count.div_ceil(GATHERED_PART).clamp(1, GROUPS.into()) as u32;
            self.launch("reduce_gathered", vec![&EXCHANGE, &RANKS], &format!("_{cols}"))
                .variant([
                    ("RESIDUAL", residual.into()),
                    ("CHUNK", FLOATS),
                    ("DEFERS", norm.is_some().into()),
                ])
                .constants([
                    ("COLS", cols),
                    ("GROUPS", groups),
                    ("NORM_F32", has(OutputForms::f32)),
                    ("NORM_Q8", has(OutputForms::q8)),
                    ("RANKS", ranks),
                    ("FIRST", first as u32),
                    ("COUNT", count as u32),
                ])
                .shared(if norm.is_some() { PACKETS * 8 } else { 0 })
                .over([groups, 1, 1], PACKETS)
        })
    }

    pub(super) fn place_gathered(&self, ranks: u32) -> Vec<Work> {
        let AllGatherParams { cols, total } = self.command.params();
        self.gathered(u64::from(self.logit_rows) * u64::from(cols), ranks, |first, count| {
            let groups = count.div_ceil(PACKETS.into()).clamp(1, GROUPS.into()) as u32;
            self.launch("place_gathered", vec![&EXCHANGE, &RANKS], &format!("_{cols}"))
                .variant([("CHUNK", FLOATS)])
                .constants([("COLS", cols), ("TOTAL", total), ("GROUPS", groups), ("RANKS", ranks)])
                .constants([("FIRST", first as u32), ("COUNT", count as u32)])
                .over([groups, 1, 1], PACKETS)
        })
    }

    pub(super) fn all_reduce(&self, AllReduce { residual, norm }: AllReduce) -> Launch {
        let cols = self.command.params::<NormParams>().cols;
        let total = u64::from(self.rows) * u64::from(cols);
        if total > MOST_IN_PACKETS && norm.is_none() {
            let finish = |launch: LaunchBuilder| {
                launch.variant([("RESIDUAL", residual.into())]).constants([("COLS", cols)])
            };
            return self.in_chunks("all_reduce_many", cols, total, finish);
        }
        let groups = total.div_ceil(u64::from(PACKETS) * 2).clamp(1, GROUPS.into()) as u32;
        let has = |form: fn(OutputForms) -> bool| u32::from(norm.is_some_and(form));
        self.launch("all_reduce_few", vec![&EXCHANGE, &RANKS], &format!("_{cols}"))
            .variant([("RESIDUAL", residual.into()), ("CHUNK", FLOATS), ("DEFERS", norm.is_some().into())])
            .variant([("SENT", self.is_sent().into())])
            .constants([
                ("COLS", cols),
                ("GROUPS", groups),
                ("NORM_F32", has(OutputForms::f32)),
                ("NORM_Q8", has(OutputForms::q8)),
            ])
            .shared(if norm.is_some() { PACKETS * 8 } else { 0 })
            .over([groups, 1, 1], PACKETS)
    }

    pub(super) fn all_gather(&self) -> Launch {
        let AllGatherParams { cols, total } = self.command.params();
        let numbers = u64::from(self.logit_rows) * u64::from(cols);
        let finish = |launch: LaunchBuilder| launch.constants([("COLS", cols), ("TOTAL", total)]);
        self.in_chunks("all_gather", cols, numbers, finish)
    }

    /// A launch that exchanges `total` floats in chunks.
    fn in_chunks(
        &self,
        entry: &'static str,
        cols: u32,
        total: u64,
        finish: impl Fn(LaunchBuilder) -> LaunchBuilder,
    ) -> Launch {
        let chunk = chunk_of(total);
        let groups = total.div_ceil(chunk.into()).clamp(1, GROUPS.into()) as u32;
        let builder = self
            .launch(entry, vec![&EXCHANGE, &RANKS], &format!("_{cols}"))
            .variant([("CHUNK", chunk)])
            .constants([("GROUPS", groups)]);
        finish(builder).over([groups, 1, 1], chunk / FLOATS_PER_THREAD)
    }
}
