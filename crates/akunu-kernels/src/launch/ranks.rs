//! What ranks exchange.

use akunu_plan::ops::{AllGatherParams, AllReduce, ElementParams};
use bytemuck::{Pod, Zeroable};

use super::{Launch, Shape};
use crate::Source;
use crate::function::source;

static RANKS: Source = source!("ranks.h");

/// The constants of ranks.h.
const MOST_RANKS: usize = 16;
const GROUPS: u32 = 128;
const PACKETS: u32 = 256;
const FLOATS: u32 = 4096;
const HEAD_BYTES: u64 = 16384;

const THREADS: u32 = 256;
/// The most numbers that are sent in packets, which are twice as many bytes and need no signal.
const MOST_IN_PACKETS: u64 = 16 << 10;

/// Bytes of the memory in which a rank receives what `ranks` send; `None`: there are too many.
pub fn exchange_bytes(ranks: usize) -> Option<u64> {
    let places = u64::from(GROUPS) * ranks as u64;
    let bytes = HEAD_BYTES + places * (2 * u64::from(PACKETS) * 16 + 4 * u64::from(FLOATS) * 4);
    (ranks <= MOST_RANKS).then_some(bytes)
}

/// The beginning of that memory, which the host writes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Exchange {
    peers: [u64; MOST_RANKS],
    ranks: u32,
    broken: u32,
}

impl Exchange {
    /// `peers`: the addresses of this memory on all ranks, of which there are not too many ([`exchange_bytes`]).
    pub fn new(peers: &[u64]) -> Exchange {
        let mut exchange = Exchange { ranks: peers.len() as u32, ..Exchange::zeroed() };
        exchange.peers[..peers.len()].copy_from_slice(peers);
        exchange
    }
}

impl Shape<'_> {
    pub(super) fn all_reduce(&self, AllReduce { residual }: AllReduce) -> Launch {
        let cols = self.command.params::<ElementParams>().cols;
        let total = u64::from(self.rows) * u64::from(cols);
        let (entry, chunk) = match total <= MOST_IN_PACKETS {
            true => ("all_reduce_few", PACKETS * 2),
            false => ("all_reduce_many", FLOATS),
        };
        let groups = total.div_ceil(chunk.into()).clamp(1, GROUPS.into()) as u32;
        self.launch(entry, vec![&RANKS], &format!("_{cols}"))
            .variant([("RESIDUAL", u32::from(residual))])
            .constants([("COLS", cols), ("GROUPS", groups)])
            .over([groups, 1, 1], THREADS)
    }

    pub(super) fn all_gather(&self) -> Launch {
        let AllGatherParams { cols, total } = self.command.params();
        let numbers = u64::from(self.logit_rows) * u64::from(cols);
        let groups = numbers.div_ceil(FLOATS.into()).clamp(1, GROUPS.into()) as u32;
        self.launch("all_gather", vec![&RANKS], &format!("_{cols}"))
            .constants([("COLS", cols), ("TOTAL", total), ("GROUPS", groups)])
            .over([groups, 1, 1], THREADS)
    }
}
