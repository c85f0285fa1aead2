//! A device that runs the last submission as late as its definition allows.

use std::sync::Arc;

use akunu_format::Region;
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, Entries, ExpertReads, Outcome, Paging,
    ReplayId, Row, Submission,
};

/// Wraps a device. What [`Device::follow`] submits runs when something waits for it, which [`Device::peek`] does not.
#[derive(Debug)]
pub struct LateDevice {
    inner: Box<dyn Device>,
    last: Option<Followed>,
}

#[derive(Debug)]
struct Followed {
    replay: ReplayId,
    rows: Vec<Row>,
    logit_rows: Vec<u32>,
    stop: Vec<u32>,
}

impl LateDevice {
    pub fn new(inner: Box<dyn Device>) -> LateDevice {
        LateDevice { inner, last: None }
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        let Some(Followed { replay, rows, logit_rows, stop }) = self.last.take() else { return Ok(()) };
        let entries = Entries::Rows(&rows);
        self.inner.follow(
            replay,
            Submission { entries, logit_rows: &logit_rows, steps: 1, stop: &stop, cancel: None },
        )
    }
}

impl Device for LateDevice {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.finish()?;
        self.inner.allocate(what, bytes)
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.finish()?;
        self.inner.import(region, offset, bytes)
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.upload(buffer, offset, bytes)
    }

    fn upload_beside(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.upload_beside(buffer, offset, bytes)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.download(buffer, offset, bytes)
    }

    fn read_ahead(
        &mut self,
        buffer: DeviceBuffer,
        region: &Region,
        offset: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.inner.read_ahead(buffer, region, offset, bytes)
    }

    fn refill(&mut self, slot: DeviceBuffer, from: DeviceBuffer, bytes: usize) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.refill(slot, from, bytes)
    }

    fn page_experts(&mut self, paging: &Paging, buffers: &[DeviceBuffer]) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.page_experts(paging, buffers)
    }

    fn expert_reads(&self) -> Option<ExpertReads> {
        self.inner.expert_reads()
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        self.finish()?;
        self.inner.prepare(table, buffers)
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.replay(replay, submission)
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.finish()?;
        let Entries::Rows(rows) = submission.entries else { return self.inner.follow(replay, submission) };
        self.last = Some(Followed {
            replay,
            rows: rows.to_vec(),
            logit_rows: submission.logit_rows.to_vec(),
            stop: submission.stop.to_vec(),
        });
        Ok(())
    }

    fn peek(&mut self, buffer: DeviceBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self.last {
            // What has been submitted is all before what is held back.
            Some(_) => self.inner.download(buffer, 0, bytes),
            None => self.inner.peek(buffer, bytes),
        }
    }

    fn on_threads(
        &mut self,
        buffer: DeviceBuffer,
        parts: usize,
        work: &(dyn Fn(usize, &[u8]) + Sync),
    ) -> Result<bool, DeviceError> {
        self.finish()?;
        self.inner.on_threads(buffer, parts, work)
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.finish()?;
        self.inner.wait()
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        self.finish()?;
        self.inner.run_range(replay, submission, first, count)
    }

    fn allocated_bytes(&self) -> u64 {
        self.inner.allocated_bytes()
    }
}
