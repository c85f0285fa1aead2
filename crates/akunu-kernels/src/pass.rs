//! What a pass's kernels share, in device memory.

use bytemuck::{Pod, Zeroable};

/// Written by the host before a submission; `argmax` moves it on in a chain. Kernels know it by the same name.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Pass {
    /// Live rows: at most the table's.
    pub rows: u32,
    /// Live rows that ask for logits.
    pub logit_rows: u32,
    /// Steps of the chain that are done.
    pub step: u32,
    /// 1 once a row found one of `stop`, or a NaN: later steps do nothing.
    pub stopped: u32,
    pub stop_count: u32,
    pub stop: [u32; Pass::MAX_STOPS],
}

impl Pass {
    pub const BYTES: usize = size_of::<Pass>();
    pub const MAX_STOPS: usize = 27;

    /// `None`: more than [`Pass::MAX_STOPS`] tokens to stop at.
    pub fn new(rows: usize, logit_rows: usize, stop: &[u32]) -> Option<Pass> {
        let mut pass = Pass {
            rows: rows as u32,
            logit_rows: logit_rows as u32,
            stop_count: stop.len() as u32,
            ..Pass::zeroed()
        };
        pass.stop.get_mut(..stop.len())?.copy_from_slice(stop);
        Some(pass)
    }
}

const _: () = assert!(Pass::BYTES == 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_stops_than_there_is_room_for_are_refused() {
        let pass = Pass::new(3, 1, &[7; Pass::MAX_STOPS]).unwrap();
        assert_eq!((pass.rows, pass.logit_rows, pass.step, pass.stop_count), (3, 1, 0, 27));
        assert!(Pass::new(3, 1, &[7; Pass::MAX_STOPS + 1]).is_none());
    }
}
