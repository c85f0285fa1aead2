//! [`CpuDevice`]: buffers, prepared tables and the thread pool, behind the trait of all devices.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use akunu_format::Region;
use akunu_plan::device::{broken, buffer_in, check_bytes, check_range, check_submission, index_of, part_of};
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, ExpertReads, InPlace, KeyOrder, Member,
    Outcome, PagedWeight, Paging, ReplayId, Submission,
};
use akunu_pool::{Panicked, Pool, Work, WorkQueue};

use crate::available::available_memory;
use crate::execution::{Execution, State};
use crate::groups;
use crate::host;
use crate::isa::Isa;
use crate::isa::table::Kernels;
use crate::memory::{Buffer, Owned};
use crate::paging::{Pager, Places, Source};
use crate::panel::{BLOCK, Scratch, Shared};
use crate::prepare::{Buffers, Prepared, prepare};
use crate::read_pattern::ReadPattern;

pub(crate) const NAME: &str = "cpu";

/// The most threads that may be requested.
const MAX_THREADS: usize = 1024;

/// Options; `None` selects the default for the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Workers, the calling thread included. By default the physical cores that this process may use.
    pub threads: Option<usize>,
    /// By default [`Isa::best`].
    pub isa: Option<Isa>,
    /// By default what [`ReadPattern::detect`] finds.
    pub read_pattern: Option<ReadPattern>,
}

pub struct CpuDevice {
    capabilities: Capabilities,
    isa: Isa,
    read_pattern: ReadPattern,
    kernels: Kernels,
    pool: Pool,
    /// One per worker.
    scratch: Vec<Owned>,
    /// The packed rows of a command's input, if the instruction set packs rows.
    packed: Owned,
    /// Other memory that workers share.
    shared: Owned,
    queue: WorkQueue,
    buffers: Vec<Buffer>,
    allocated: u64,
    /// What of it is for its own use.
    workspace: u64,
    prepared: Vec<Prepared>,
    /// Rows and logit rows of the last submission.
    last: (usize, usize),
    outcome: Result<Outcome, Failure>,
    /// Of experts that are paged.
    paging: Option<Paged>,
    /// Bytes of the experts that rows were routed to.
    expert_bytes: u64,
    /// Its place, if it is one of several ranks.
    member: Option<Member>,
}

/// What reads experts, and where they are.
struct Paged {
    pager: Mutex<Pager>,
    places: Arc<Places>,
}

/// Why a submission has failed.
#[derive(Clone, Debug)]
enum Failure {
    /// In the command with this index.
    Panicked(usize),
    /// Experts could not be read.
    NotRead(String),
}

impl std::fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuDevice")
            .field("isa", &self.isa)
            .field("pool", &self.pool)
            .field("buffers", &self.buffers.len())
            .field("allocated", &self.allocated)
            .finish_non_exhaustive()
    }
}

fn failed(message: String) -> DeviceError {
    DeviceError::Failed { device: NAME, message }
}

fn zeroed(what: &str, bytes: u64) -> Result<Owned, DeviceError> {
    Owned::zeroed(bytes).ok_or_else(|| DeviceError::OutOfMemory {
        device: NAME,
        what: what.to_string(),
        bytes,
    })
}

/// Bytes of the packed activations of a pass of the usual size.
fn packed_bytes(isa: Isa) -> u64 {
    if isa.packs_activations() { groups::bytes(groups::MOST_ROWS) as u64 } else { 0 }
}

/// The same for a further row.
fn row_bytes(isa: Isa) -> u64 {
    packed_bytes(isa) / groups::MOST_ROWS as u64
}

/// The capabilities for planning on a processor with an instruction set, which need not be this one, and so many
/// threads. The number of available bytes is not known here.
pub fn capabilities(isa: Isa, threads: usize) -> Capabilities {
    Capabilities {
        name: NAME,
        detail: format!("{}, {threads} thread{}", isa.name(), if threads == 1 { "" } else { "s" }),
        folds: false,
        half_products: None,
        packed_products: None,
        eight_products: None,
        keys: KeyOrder::GroupsOf16,
        block: BLOCK,
        in_place: InPlace::All,
        // A step takes long compared with sampling on the host.
        samples: false,
        chain: 32,
        prefill_rows: groups::MOST_ROWS,
        workspace_bytes: (size_of::<Scratch>() * threads + size_of::<Shared>()) as u64 + packed_bytes(isa),
        workspace_row_bytes: row_bytes(isa),
        streaming_bytes: 0,
        available_bytes: None,
        ranks: 1,
        host: None,
        stages: Vec::new(),
    }
}

impl CpuDevice {
    pub fn new(options: CpuOptions) -> Result<CpuDevice, DeviceError> {
        let isa = options.isa.unwrap_or_else(Isa::best).checked()?;
        CpuDevice::with_kernels(options, isa, Kernels::of(isa))
    }

    fn with_kernels(options: CpuOptions, isa: Isa, kernels: Kernels) -> Result<CpuDevice, DeviceError> {
        let threads = options.threads.unwrap_or_else(host::physical_cores);
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(failed(format!("{threads} threads were asked for; use 1 to {MAX_THREADS}")));
        }
        let own = |_| zeroed("a thread's own memory", size_of::<Scratch>() as u64);
        let scratch = (0..threads).map(own).collect::<Result<Vec<_>, _>>()?;
        let packed = zeroed("packed activations", packed_bytes(isa))?;
        let shared = zeroed("memory that threads share", size_of::<Shared>() as u64)?;
        let pool =
            Pool::new(threads).map_err(|error| failed(format!("cannot start {threads} threads: {error}")))?;
        let capabilities = capabilities(isa, threads);
        Ok(CpuDevice {
            allocated: capabilities.workspace_bytes,
            workspace: capabilities.workspace_bytes,
            capabilities: Capabilities { available_bytes: available_memory(), ..capabilities },
            isa,
            read_pattern: options.read_pattern.unwrap_or_else(ReadPattern::detect),
            kernels,
            pool,
            scratch,
            packed,
            shared,
            queue: WorkQueue::new(threads),
            buffers: Vec::new(),
            prepared: Vec::new(),
            last: (0, 0),
            outcome: Ok(Outcome { steps: 0 }),
            paging: None,
            expert_bytes: 0,
            member: None,
        })
    }

    /// The device of a rank, whose group meets with as many threads as each device has. Ranks of one process share the
    /// host's memory.
    pub fn in_group(mut self, member: Member) -> CpuDevice {
        self.capabilities.ranks = member.ranks();
        let sharing = if member.is_remote() { 1 } else { member.ranks() as u64 };
        self.capabilities.available_bytes = self.capabilities.available_bytes.map(|bytes| bytes / sharing);
        self.member = Some(member);
        self
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub fn threads(&self) -> usize {
        self.pool.workers()
    }

    fn push(&mut self, buffer: Buffer) -> DeviceBuffer {
        self.buffers.push(buffer);
        DeviceBuffer(self.buffers.len() as u32 - 1)
    }

    /// A pointer to `len` bytes at `offset` of a buffer.
    fn place(
        &self,
        buffer: DeviceBuffer,
        offset: u64,
        len: usize,
    ) -> Result<(&Buffer, *mut u8), DeviceError> {
        let buffer = buffer_in(NAME, &self.buffers, buffer)?;
        check_bytes(NAME, offset, len as u64, buffer.bytes())?;
        Ok((buffer, buffer.start().wrapping_add(offset as usize)))
    }

    /// Grows the memory for packed rows to that of a table of so many rows.
    fn make_room(&mut self, rows: usize) -> Result<(), DeviceError> {
        let more = self.capabilities.workspace(rows).saturating_sub(self.workspace);
        if more > 0 {
            self.packed = zeroed("packed activations", self.packed.bytes as u64 + more)?;
            self.workspace += more;
            self.allocated += more;
        }
        Ok(())
    }

    fn prepared(&self, replay: ReplayId) -> Result<&Prepared, DeviceError> {
        self.prepared.get(replay.0 as usize).ok_or_else(|| failed("that table was not prepared here".into()))
    }

    /// Checks a submission and copies its rows to the table's row buffers.
    fn begin(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let prepared = self.prepared(replay)?;
        check_submission(NAME, &prepared.table, submission)?;
        let entries = self.buffers[prepared.entries].start();
        let logit_rows = self.buffers[prepared.logit_rows].start();
        let (source, asked): (&[u8], &[u8]) =
            (submission.entries.bytes(), bytemuck::cast_slice(submission.logit_rows));
        // SAFETY: both buffers were sized for the table's maximum numbers of rows, and the submission was checked not
        // to exceed them. No table is being executed, as `&mut self` is held.
        unsafe {
            source.as_ptr().copy_to_nonoverlapping(entries, source.len());
            asked.as_ptr().copy_to_nonoverlapping(logit_rows, asked.len());
        }
        self.last = (submission.entries.len(), submission.logit_rows.len());
        Ok(())
    }

    /// Checks the rows that the buffers already hold: they may have been written for another table, and may have
    /// advanced.
    fn keep_entries(&self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let prepared = self.prepared(replay)?;
        let table = &prepared.table;
        let (count, asked) = (self.last.0.min(table.rows), self.last.1.min(table.logit_rows));
        let at = self.buffers[prepared.entries].start();
        let asked_at = self.buffers[prepared.logit_rows].start();
        // SAFETY: both buffers are aligned, initialised, and sized for the table's maximum numbers of rows, which
        // `count` and `asked` do not exceed.
        let (entries, logit_rows) = unsafe {
            let bytes = std::slice::from_raw_parts(at, count * table.bounds.entry_bytes());
            (table.bounds.entries(bytes), std::slice::from_raw_parts(asked_at.cast::<u32>(), asked))
        };
        check_submission(NAME, table, &Submission { entries, logit_rows, ..*submission })
    }

    fn execute(
        &mut self,
        replay: ReplayId,
        submission: &Submission<'_>,
        first: usize,
        count: usize,
        steps: usize,
    ) {
        let prepared = &self.prepared[replay.0 as usize];
        let commands = &prepared.commands[first..first + count];
        if commands.is_empty() {
            self.outcome = Ok(Outcome { steps: 0 });
            return;
        }
        self.queue.clear();
        let execution = Execution {
            commands,
            scratch: &self.scratch,
            packed: self.packed.start().cast(),
            shared: self.shared.start().cast(),
            queue: &self.queue,
            read_pattern: self.read_pattern,
            member: self.member.as_ref(),
            rows: self.last.0.min(prepared.table.rows),
            logit_rows: self.last.1.min(prepared.table.logit_rows),
            steps,
            stop: submission.stop,
            cancel: submission.cancel,
            tokens: self.buffers[prepared.tokens].start().cast(),
            logit_capacity: prepared.table.logit_rows,
            paging: self.paging.as_ref().map(|paged| (&paged.pager, &*paged.places)),
            state: State::default(),
        };
        let result = if execution.enter(0) { self.pool.run(&execution) } else { Ok(()) };
        let State { index, steps, expert_bytes, error, .. } = execution.state;
        self.expert_bytes += expert_bytes.into_inner();
        self.outcome = match (result, error.into_inner().unwrap_or_else(PoisonError::into_inner)) {
            (Err(Panicked), _) => Err(Failure::Panicked(first + index.into_inner())),
            (Ok(()), Some(error)) => Err(Failure::NotRead(error)),
            (Ok(()), None) => Ok(Outcome { steps: steps.into_inner() }),
        };
        if let (Some(member), Err(_)) = (&self.member, &self.outcome) {
            member.break_up();
        }
    }

    /// The outcome of the last execution of a table.
    fn checked(&self, replay: ReplayId) -> Result<Outcome, DeviceError> {
        if self.outcome.is_ok() && self.member.as_ref().is_some_and(Member::is_broken) {
            return Err(broken(NAME));
        }
        self.outcome.clone().map_err(|failure| match failure {
            Failure::Panicked(index) => {
                let label = self.prepared.get(replay.0 as usize).and_then(|p| p.table.labels.get(index));
                failed(format!("a kernel panicked in {}", label.map_or("a command", String::as_str)))
            }
            Failure::NotRead(reason) => failed(reason),
        })
    }
}

/// Bytes that a thread copies at once, of copies that are larger.
const COPIED: usize = 256 << 10;

/// A copy between memory of the device and of its caller.
struct Copying<'a> {
    parts: Vec<Mutex<(&'a mut [u8], &'a [u8])>>,
    next: AtomicUsize,
}

impl Work for Copying<'_> {
    fn run(&self, _worker: usize, _part: usize) {
        while let Some(part) = self.parts.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let (to, from) = &mut *part.lock().unwrap_or_else(PoisonError::into_inner);
            to.copy_from_slice(from);
        }
    }

    fn next(&self) -> bool {
        false
    }
}

/// Copies on all threads what is large: one of them has a part of the memory's bandwidth.
fn copy(pool: &mut Pool, to: &mut [u8], from: &[u8]) -> Result<(), DeviceError> {
    if from.len() < 4 * COPIED {
        to.copy_from_slice(from);
        return Ok(());
    }
    let parts = to.chunks_mut(COPIED).zip(from.chunks(COPIED)).map(Mutex::new).collect();
    let work = Copying { parts, next: AtomicUsize::new(0) };
    pool.run(&work).map_err(|Panicked| failed("a copy panicked".into()))
}

/// Work of the host, see [`Device::on_threads`].
struct OnThreads<'a> {
    bytes: &'a [u8],
    parts: usize,
    next: AtomicUsize,
    work: &'a (dyn Fn(usize, &[u8]) + Sync),
}

impl Work for OnThreads<'_> {
    fn run(&self, _worker: usize, _part: usize) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.parts {
                return;
            }
            (self.work)(index, self.bytes);
        }
    }

    fn next(&self) -> bool {
        false
    }
}

impl Device for CpuDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn rank(&self) -> usize {
        self.member.as_ref().map_or(0, Member::rank)
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory { device: NAME, what: what.into(), bytes };
        let owned = Owned::zeroed(bytes).ok_or_else(out_of_memory)?;
        self.allocated += bytes;
        Ok(self.push(Buffer::Owned(owned)))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        part_of(NAME, region, offset, bytes)?;
        Ok(self.push(Buffer::Imported { region: region.clone(), offset, bytes }))
    }

    fn import_owned(&mut self, bytes: Vec<u8>) -> Result<DeviceBuffer, DeviceError> {
        let buffer = self.allocate("a part of a weight", bytes.len() as u64)?;
        self.upload(buffer, 0, &bytes)?;
        Ok(buffer)
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (owner, place) = self.place(buffer, offset, bytes.len())?;
        if matches!(owner, Buffer::Imported { .. }) {
            return Err(failed("an imported buffer is read-only".into()));
        }
        // SAFETY: `place` returned a pointer to `bytes.len()` initialised bytes inside a buffer that the device owns, and
        // no table is being executed, because the device is mutably borrowed.
        let to = unsafe { std::slice::from_raw_parts_mut(place, bytes.len()) };
        copy(&mut self.pool, to, bytes)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (_, place) = self.place(buffer, offset, bytes.len())?;
        // SAFETY: `place` returned a pointer to `bytes.len()` initialised bytes inside the buffer, and no table is being
        // executed.
        let from = unsafe { std::slice::from_raw_parts(place.cast_const(), bytes.len()) };
        copy(&mut self.pool, bytes, from)
    }

    fn on_threads(
        &mut self,
        buffer: DeviceBuffer,
        parts: usize,
        work: &(dyn Fn(usize, &[u8]) + Sync),
    ) -> Result<bool, DeviceError> {
        let (owner, start) = self.place(buffer, 0, 0)?;
        // SAFETY: a buffer is initialised memory of this size. No table is being executed, because the device is mutably
        // borrowed, and `work` has no access to the device, so nothing writes the buffer.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast_const(), owner.bytes() as usize) };
        let work = OnThreads { bytes, parts, next: AtomicUsize::new(0), work };
        match self.pool.run(&work) {
            Ok(()) => Ok(true),
            Err(Panicked) => Err(failed("work of the host panicked on its threads".into())),
        }
    }

    fn page_experts(&mut self, paging: &Paging, buffers: &[DeviceBuffer]) -> Result<(), DeviceError> {
        paging.check().map_err(|reason| failed(reason.into()))?;
        let source = |experts: usize, weight: &PagedWeight| {
            let index = index_of(NAME, buffers, self.buffers.len(), weight.buffer)?;
            match &self.buffers[index] {
                Buffer::Imported { region, offset, bytes } if region.is_mapped() => {
                    check_bytes(NAME, weight.offset, experts as u64 * weight.bytes, *bytes as u64)?;
                    let (region, offset) = (region.clone(), offset + weight.offset as usize);
                    Ok(Source { region, offset, weight: (index, weight.offset) })
                }
                _ => Err(failed("experts that are not in a mapped file cannot be paged".into())),
            }
        };
        let layers = paging
            .layers
            .iter()
            .map(|layer| layer.weights.iter().map(|weight| source(layer.experts, weight)).collect());
        let sources = layers.collect::<Result<_, DeviceError>>()?;
        let bytes = paging.memory();
        let pager = Pager::new(paging, sources)
            .map_err(|error| failed(format!("cannot start threads that read experts: {error}")))?
            .ok_or(DeviceError::OutOfMemory { device: NAME, what: "experts".into(), bytes })?;
        self.allocated += bytes;
        self.paging = Some(Paged { places: pager.places(), pager: Mutex::new(pager) });
        Ok(())
    }

    fn expert_reads(&self) -> Option<ExpertReads> {
        let paged = self.paging.as_ref().map(|paged| paged.pager.lock());
        let paged = paged.map(|pager| pager.unwrap_or_else(PoisonError::into_inner).reads());
        Some(ExpertReads { bytes: self.expert_bytes, ..paged.unwrap_or_default() })
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        let pager = self.paging.as_ref().map(|paged| paged.pager.lock());
        let pager = pager.map(|pager| pager.unwrap_or_else(PoisonError::into_inner));
        let buffers = Buffers { all: &self.buffers, ids: buffers, pager: pager.as_deref() };
        let prepared = prepare(table, &buffers, &self.kernels)?;
        drop(pager);
        self.make_room(table.rows.max(table.logit_rows))?;
        self.prepared.push(prepared);
        Ok(ReplayId(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        if submission.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            self.outcome = Ok(Outcome { steps: 0 });
            return Ok(());
        }
        let count = self.prepared(replay)?.commands.len();
        self.execute(replay, &submission, 0, count, submission.steps);
        self.checked(replay).map(|_| ())
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.outcome.clone().map_err(|failure| match failure {
            Failure::Panicked(_) => failed("a kernel panicked".into()),
            Failure::NotRead(reason) => failed(reason),
        })
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        check_range(NAME, &self.prepared(replay)?.table, first, count)?;
        if submission.entries.is_empty() {
            self.keep_entries(replay, &submission)?;
        } else {
            self.begin(replay, &submission)?;
        }
        self.execute(replay, &submission, first, count, 1);
        self.checked(replay).map(|_| ())
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated
    }
}

/// Without the kernels of any instruction set, so that these are not compiled again for the unit tests.
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use akunu_device_testing::Case;
    use akunu_plan::Kernel;

    use super::*;
    use crate::command::{Command, Context};

    static PANICS: AtomicBool = AtomicBool::new(true);
    static RUNS: AtomicUsize = AtomicUsize::new(0);

    unsafe fn panics(_: &Command, _: &Context) {
        if PANICS.load(Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }

    unsafe fn runs(_: &Command, _: &Context) {
        RUNS.fetch_add(1, Ordering::Relaxed);
    }

    fn replay(device: &mut CpuDevice, case: &Case, replay: ReplayId) -> Result<(), DeviceError> {
        let submission = Submission {
            entries: case.work.entries(),
            logit_rows: &case.asked,
            steps: 1,
            stop: &[],
            cancel: None,
        };
        device.replay(replay, submission)
    }

    #[test]
    fn a_kernel_that_panics_fails_its_pass_and_no_other() {
        let is_bad = |kernel| matches!(kernel, Kernel::Embed(_));
        let kernels = Kernels::of_test(|kernel| match kernel {
            Kernel::Embed(_) => Some(panics),
            _ => Some(runs),
        });
        let options = CpuOptions { threads: Some(2), ..CpuOptions::default() };
        let mut device = CpuDevice::with_kernels(options, Isa::Scalar, kernels).unwrap();
        let cases: Vec<Case> = akunu_device_testing::specs().iter().map(|spec| spec.whole()).collect();
        let [(bad, broken), (good, other)] = [true, false].map(|bad| {
            let case = cases.iter().find(|case| is_bad(case.kernel) == bad).unwrap();
            let ids = case.load(&mut device);
            (case, device.prepare(&case.table, &ids).unwrap())
        });
        for turn in 1..=3 {
            let error = replay(&mut device, bad, broken).unwrap_err().to_string();
            assert!(error.contains("a kernel panicked in test"), "{error}");
            assert!(device.wait().is_err());
            replay(&mut device, good, other).unwrap();
            device.wait().unwrap();
            assert_eq!(RUNS.load(Ordering::Relaxed), 2 * turn, "each thread ran the other table");
        }
        PANICS.store(false, Ordering::Relaxed);
        replay(&mut device, bad, broken).unwrap();
        device.wait().unwrap();
    }
}
