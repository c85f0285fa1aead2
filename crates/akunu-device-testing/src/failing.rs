//! A device that fails or panics on demand, leaves sampling to the host, or counts what the host reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use akunu_format::Region;
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, ExpertReads, Home, InPlace, Outcome,
    Paging, ReplayId, Submission,
};

/// Wraps a device. The next submission or slot fails if `failing` is set, and a submission panics if `panicking` is set.
#[derive(Debug)]
pub struct FailingDevice {
    inner: Box<dyn Device>,
    capabilities: Capabilities,
    failing: Arc<AtomicBool>,
    panicking: Arc<AtomicBool>,
    downloaded: Arc<AtomicUsize>,
}

impl FailingDevice {
    pub fn new(inner: Box<dyn Device>) -> FailingDevice {
        let capabilities = inner.capabilities().clone();
        let (failing, panicking, downloaded) = Default::default();
        FailingDevice { inner, capabilities, failing, panicking, downloaded }
    }

    /// The host samples.
    pub fn without_sampling(mut self) -> FailingDevice {
        self.capabilities.samples = false;
        self
    }

    /// As a device with memory of its own, of which so much is free.
    pub fn with_memory(mut self, bytes: u64) -> FailingDevice {
        self.capabilities.in_place = InPlace::Nothing;
        self.capabilities.available_bytes = Some(bytes);
        self
    }

    fn fail_on_purpose(&self) -> Result<(), DeviceError> {
        match self.failing.swap(false, Ordering::Relaxed) {
            true => Err(DeviceError::Failed { device: "reference", message: "it failed on purpose".into() }),
            false => Ok(()),
        }
    }

    pub fn failing(&self) -> Arc<AtomicBool> {
        self.failing.clone()
    }

    pub fn panicking(&self) -> Arc<AtomicBool> {
        self.panicking.clone()
    }

    /// Bytes that the host has read.
    pub fn downloaded(&self) -> Arc<AtomicUsize> {
        self.downloaded.clone()
    }
}

impl Device for FailingDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn make_on(&mut self, home: Home) {
        self.inner.make_on(home);
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.inner.allocate(what, bytes)
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.inner.import(region, offset, bytes)
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.upload(buffer, offset, bytes)
    }

    fn upload_beside(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.upload_beside(buffer, offset, bytes)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.downloaded.fetch_add(bytes.len(), Ordering::Relaxed);
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
        self.fail_on_purpose()?;
        self.inner.refill(slot, from, bytes)
    }

    fn page_experts(&mut self, paging: &Paging, buffers: &[DeviceBuffer]) -> Result<(), DeviceError> {
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
        self.inner.prepare(table, buffers)
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.fail_on_purpose()?;
        assert!(!self.panicking.swap(false, Ordering::Relaxed), "on purpose");
        self.inner.replay(replay, submission)
    }

    fn follow(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.inner.follow(replay, submission)
    }

    fn peek(&mut self, buffer: DeviceBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.downloaded.fetch_add(bytes.len(), Ordering::Relaxed);
        self.inner.peek(buffer, bytes)
    }

    fn on_threads(
        &mut self,
        buffer: DeviceBuffer,
        parts: usize,
        work: &(dyn Fn(usize, &[u8]) + Sync),
    ) -> Result<bool, DeviceError> {
        self.inner.on_threads(buffer, parts, work)
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.inner.wait()
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        self.inner.run_range(replay, submission, first, count)
    }

    fn allocated_bytes(&self) -> u64 {
        self.inner.allocated_bytes()
    }
}
