//! Finds the commands that need a barrier before them; the others may run concurrently.

use std::ops::Range;

use akunu_plan::ops;
use akunu_plan::{Access, DispatchCommand, Kernel};

/// Represents memory that no command binds (the pass and the scratch memory).
const PASS: usize = usize::MAX;
const SCRATCH: usize = usize::MAX - 1;

/// An access of a command to some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    buffer: usize,
    bytes: Range<u64>,
    writes: bool,
}

impl Use {
    fn conflicts(&self, other: &Use) -> bool {
        self.buffer == other.buffer
            && (self.writes || other.writes)
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// The accesses since the last barrier.
#[derive(Debug, Default)]
pub(crate) struct Hazards(Vec<Use>);

impl Hazards {
    /// Whether a command of a table needs a barrier. `places`: for each binding its buffer, the first byte and the
    /// extent that it may access.
    pub(crate) fn waits(&mut self, command: &DispatchCommand, places: &[(usize, u64, u64)]) -> bool {
        let slots = command.kernel.bindings();
        let bound = slots.iter().zip(places).map(|(slot, &(buffer, start, bytes))| Use {
            buffer,
            bytes: start..start.saturating_add(bytes),
            writes: slot.access != Access::Read,
        });
        let ends_a_step = matches!(command.kernel, Kernel::Argmax(ops::Argmax) | Kernel::Sample(ops::Sample));
        // Commands whose threadgroups exchange data through scratch memory.
        let meets = ends_a_step
            || matches!(command.kernel, Kernel::Attention(_) | Kernel::HalfMatmul(_) | Kernel::HalfQkv(_));
        let own = [(PASS, ends_a_step, true), (SCRATCH, true, meets)];
        let own = own.into_iter().filter(|(.., uses)| *uses);
        let own = own.map(|(buffer, writes, _)| Use { buffer, bytes: 0..1, writes });
        let uses: Vec<Use> = bound.chain(own).collect();
        let waits = uses.iter().any(|new| self.0.iter().any(|old| new.conflicts(old)));
        if waits {
            self.0.clear();
        }
        self.0.extend(uses);
        waits
    }
}

#[cfg(test)]
mod tests {
    use akunu_plan::{BufferId, NormKind, OutputForms, RowSet};

    use super::*;

    /// A command that reads two buffers and writes the third, of 16 bytes each.
    fn norm(hazards: &mut Hazards, buffers: [(usize, u64); 3]) -> bool {
        let op = ops::Norm {
            kind: NormKind::Rms,
            bias: false,
            out: OutputForms::F32,
            rows: RowSet::All,
            pick: false,
        };
        let kernel = Kernel::Norm(op);
        let command = DispatchCommand::new(kernel, (0..3).map(BufferId), ());
        hazards.waits(&command, &buffers.map(|(buffer, start)| (buffer, start, 16)))
    }

    #[test]
    fn what_reads_or_overwrites_waits_and_nothing_else_does() {
        let mut hazards = Hazards::default();
        assert!(!norm(&mut hazards, [(0, 0), (1, 0), (2, 0)]));
        // The same inputs, and adjacent output bytes.
        assert!(!norm(&mut hazards, [(0, 0), (1, 0), (2, 16)]));
        // Reads the last byte that was written.
        assert!(norm(&mut hazards, [(2, 15), (1, 0), (3, 0)]));
        // The barrier has resolved the earlier accesses.
        assert!(!norm(&mut hazards, [(2, 0), (1, 0), (4, 0)]));
        // Overwrites what is being read, and what was written.
        assert!(norm(&mut hazards, [(0, 0), (1, 0), (2, 8)]));
        assert!(norm(&mut hazards, [(0, 0), (1, 0), (2, 8)]));
    }

    #[test]
    fn the_end_of_a_step_waits_and_is_waited_for() {
        let mut hazards = Hazards::default();
        assert!(!norm(&mut hazards, [(0, 0), (1, 0), (2, 0)]));
        let end = DispatchCommand::new(Kernel::Argmax(ops::Argmax), (0..4).map(BufferId), ());
        let elsewhere = [5, 6, 7, 8].map(|buffer| (buffer, 0, 4));
        assert!(hazards.waits(&end, &elsewhere));
        assert!(norm(&mut hazards, [(0, 0), (1, 0), (2, 0)]));
    }
}
