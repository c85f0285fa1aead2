//! A device that computes nothing and records all calls, for tests of the table builder and of code that uses devices.

use std::sync::Arc;

use akunu_format::Region;

use crate::device::check_submission;
use crate::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, Entries, InPlace, Move, Outcome,
    ReplayId, Row, Submission,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Allocate {
        what: String,
        bytes: u64,
    },
    Import {
        bytes: usize,
    },
    Upload {
        buffer: DeviceBuffer,
        offset: u64,
        bytes: usize,
    },
    Download {
        buffer: DeviceBuffer,
        offset: u64,
        bytes: usize,
    },
    Prepare {
        table: &'static str,
    },
    /// With entries of rows or of moves.
    Replay {
        table: &'static str,
        rows: Vec<Row>,
        moves: Vec<Move>,
        logit_rows: Vec<u32>,
        steps: usize,
    },
    Follow {
        table: &'static str,
    },
    RunRange {
        table: &'static str,
        first: usize,
        count: usize,
    },
    Wait,
}

#[derive(Debug)]
pub struct MockDevice {
    pub calls: Vec<Call>,
    /// `None`: all downloads are zeros, and calls are recorded.
    answer: Option<fn(&mut [u8])>,
    capabilities: Capabilities,
    tables: Vec<Arc<DispatchTable>>,
    buffers: u32,
    allocated: u64,
    outcome: Outcome,
}

impl MockDevice {
    pub fn new(capabilities: Capabilities) -> MockDevice {
        MockDevice {
            calls: Vec::new(),
            answer: None,
            capabilities,
            tables: Vec::new(),
            buffers: 0,
            allocated: 0,
            outcome: Outcome { steps: 0 },
        }
    }

    /// Records nothing, and lets `answer` fill what the host reads: for measurements of the host.
    pub fn unrecorded(self, answer: fn(&mut [u8])) -> MockDevice {
        MockDevice { answer: Some(answer), ..self }
    }

    fn record(&mut self, call: impl FnOnce() -> Call) {
        if self.answer.is_none() {
            self.calls.push(call());
        }
    }

    fn handle(&mut self, call: Call) -> DeviceBuffer {
        self.record(|| call);
        self.buffers += 1;
        DeviceBuffer(self.buffers - 1)
    }

    fn table(&self, replay: ReplayId) -> Arc<DispatchTable> {
        Arc::clone(&self.tables[replay.0 as usize])
    }
}

impl Device for MockDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.allocated += bytes;
        Ok(self.handle(Call::Allocate { what: what.into(), bytes }))
    }

    fn import(
        &mut self,
        _region: &Region,
        _offset: usize,
        bytes: usize,
    ) -> Result<DeviceBuffer, DeviceError> {
        if self.capabilities.in_place == InPlace::Nothing {
            self.allocated += bytes as u64;
        }
        Ok(self.handle(Call::Import { bytes }))
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.record(|| Call::Upload { buffer, offset, bytes: bytes.len() });
        Ok(())
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self.answer {
            Some(answer) => answer(bytes),
            None => bytes.fill(0),
        }
        self.record(|| Call::Download { buffer, offset, bytes: bytes.len() });
        Ok(())
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        _buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        self.record(|| Call::Prepare { table: table.name });
        self.tables.push(Arc::clone(table));
        Ok(ReplayId(self.tables.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        let table = self.table(replay);
        check_submission(self.capabilities.name, &table, &submission)?;
        self.outcome = Outcome { steps: submission.steps };
        self.record(|| {
            let (rows, moves) = match submission.entries {
                Entries::Rows(rows) => (rows.to_vec(), vec![]),
                Entries::Moves(moves) => (vec![], moves.to_vec()),
            };
            let (logit_rows, steps) = (submission.logit_rows.to_vec(), submission.steps);
            Call::Replay { table: table.name, rows, moves, logit_rows, steps }
        });
        Ok(())
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        let table = self.table(replay);
        check_submission(self.capabilities.name, &table, &submission)?;
        self.outcome = Outcome { steps: 1 };
        self.record(|| Call::Follow { table: table.name });
        Ok(())
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.record(|| Call::Wait);
        Ok(self.outcome)
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let table = self.table(replay);
        check_submission(self.capabilities.name, &table, &submission)?;
        self.record(|| Call::RunRange { table: table.name, first, count });
        Ok(())
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated + self.capabilities.workspace_bytes
    }
}
