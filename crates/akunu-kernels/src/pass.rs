//! The state that the kernels of a pass share in device memory.

use akunu_plan::Submission;
use bytemuck::{Pod, Zeroable};

/// Written by the host before a submission; `argmax` and `sample` advance it in a chain of steps. `shared.h` has the
/// same struct.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Pass {
    /// Live rows: at most the table's.
    pub rows: u32,
    /// Live rows that request logits.
    pub logit_rows: u32,
    /// Completed steps of the chain.
    pub step: u32,
    /// 1 once a row has produced a token of `stop`, or NaN logits: later steps do nothing. [`Pass::BROKEN`]: nor do they
    /// because another rank has not come in time.
    pub stopped: u32,
    pub stop_count: u32,
    /// The rank of the device.
    pub rank: u32,
    pub stop: [u32; Pass::MAX_STOPS],
}

impl Pass {
    pub const BYTES: usize = size_of::<Pass>();
    pub const MAX_STOPS: usize = 26;
    pub const BROKEN: u32 = 2;

    /// The state before the first step. Stop tokens that do not fit in `stop` are not seen by the kernels: the chain
    /// then ends late, and the caller finds the stop when it looks at the tokens.
    pub fn new(submission: &Submission<'_>) -> Pass {
        let stop = &submission.stop[..submission.stop.len().min(Pass::MAX_STOPS)];
        let mut pass = Pass {
            rows: submission.entries.len() as u32,
            logit_rows: submission.logit_rows.len() as u32,
            stop_count: stop.len() as u32,
            ..Pass::zeroed()
        };
        pass.stop[..stop.len()].copy_from_slice(stop);
        pass
    }

    /// How many of `steps` steps of a table wrote their tokens. `advances`: whether the table advances its rows.
    pub fn steps_done(&self, steps: usize, advances: bool) -> usize {
        if advances { steps.min(self.step as usize) } else { steps }
    }
}

const _: () = assert!(Pass::BYTES == 128);

#[cfg(test)]
mod tests {
    use akunu_plan::{Entries, Row};

    use super::*;

    #[test]
    fn as_many_stops_are_taken_as_there_is_room_for() {
        let rows = [Row::causal(5, 0, 0); 3];
        let submission = Submission {
            entries: Entries::Rows(&rows),
            logit_rows: &[2],
            steps: 1,
            stop: &[7, 8],
            cancel: None,
        };
        let pass = Pass::new(&submission);
        assert_eq!((pass.rows, pass.logit_rows, pass.step, pass.stop_count), (3, 1, 0, 2));
        assert_eq!(pass.stop[..3], [7, 8, 0]);
        let stop: Vec<u32> = (1..=Pass::MAX_STOPS as u32 + 1).collect();
        let pass = Pass::new(&Submission { stop: &stop, ..submission });
        assert_eq!((pass.stop_count, pass.stop[25]), (26, 26));
    }

    #[test]
    fn steps_that_count_themselves_are_done_as_far_as_they_say() {
        let pass = Pass { step: 3, ..Pass::zeroed() };
        assert_eq!(
            [pass.steps_done(8, true), pass.steps_done(2, true), pass.steps_done(1, false)],
            [3, 2, 1]
        );
    }
}
