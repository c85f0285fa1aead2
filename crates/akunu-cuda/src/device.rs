//! [`CudaDevice`]: buffers, prepared tables and a stream, behind the trait that all devices have.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu_format::Region;
use akunu_kernels::{Chip, Pass, SCRATCH_BYTES};
use akunu_plan::device::{buffer_in, check_bytes, check_range, check_submission, part_of};
use akunu_plan::{
    Capabilities, Device, DeviceBuffer, DeviceError, DispatchTable, DriverMemory, InPlace, KeyOrder, Outcome,
    ReplayId, Row, Submission,
};

use crate::blas::{self, Blas, Library};
use crate::context::{Card, Context};
use crate::driver::{Address, Driver};
use crate::error::failed;
use crate::library::CudaFolders;
use crate::memory::{Memory, Pinned};
use crate::module::Kernels;
use crate::nvrtc::Nvrtc;
use crate::prepare::{Buffer, Buffers, Lent, Prepared, prepare};
use crate::repack::lay_out;
use crate::staging::Staging;
use crate::stream::{Event, Stream};
use crate::{CudaError, NAME};

/// Steps between two looks at whether to stop, and half of those that the card may be behind: so no more than 7 follow the one that
/// found a token to stop at.
const BATCH: usize = 4;

/// Rows from which on unpacking weights is worth it: more than these multiply in halves, by the speed of both ways at 64 rows and 65.
const FEW_ROWS: usize = 64;

/// How tables are run. For looking for faults: the plain way is the fast one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// A kernel may start before the last one has ended, where the card can do that.
    pub linked: bool,
    /// Commands run one by one, each waited for, so that an error names the one that failed.
    pub checked: bool,
    /// Kernels that only some chips have, too: with tensor cores, with copies that go on by themselves.
    pub special: bool,
    /// Prompts through cuBLASLt, where it is there.
    pub blas: bool,
    /// Its ways to multiply are timed when a model is loaded, rather than taken as it suggests. Another start may take others, so sums are
    /// not the same to the last bit.
    pub blas_timed: bool,
    /// Where NVIDIA's libraries are looked for, and where compiled kernels are kept.
    pub folders: CudaFolders,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions::from_words("")
    }
}

impl CudaOptions {
    /// Options from a list of words with commas between them: `serial` links no launches, `checked` runs commands one by one,
    /// `plain` takes only kernels that every chip has, `noblas` does without cuBLASLt, `blastimed` times its ways to multiply.
    pub fn from_words(words: &str) -> CudaOptions {
        let has = |word: &str| words.split(',').any(|part| part.trim() == word);
        CudaOptions {
            linked: !has("serial"),
            checked: has("checked"),
            special: !has("plain"),
            blas: !has("noblas"),
            blas_timed: has("blastimed"),
            folders: CudaFolders::default(),
        }
    }
}

/// The card that would be used, if there is all that is needed.
pub fn probe(folders: &CudaFolders) -> Result<Card, CudaError> {
    let driver = Driver::get(folders)?;
    if driver.cards()? == 0 {
        return Err(CudaError::NoCard);
    }
    let card = Card::find(driver, 0)?;
    Nvrtc::get(folders, driver.version()?.0)?.architecture(card.compute)?;
    Ok(card)
}

/// What was submitted and not waited for.
#[derive(Clone, Copy, Debug)]
struct Pending {
    replay: ReplayId,
    steps: usize,
}

// Fields are dropped in this order: the stream waits for what it was asked before anything goes.
pub struct CudaDevice {
    stream: Stream,
    /// For looking at the pass while steps run.
    aside: Stream,
    prepared: Vec<Prepared>,
    buffers: Vec<Buffer>,
    kernels: Kernels,
    blas: Option<Blas>,
    /// The pass, then scratch.
    own: Memory,
    staging: Staging,
    /// Rows, logit rows and pass of a submission on their way to the card.
    submitted: Pinned,
    /// The pass on its way back.
    returned: Pinned,
    /// The last submission is done.
    done: Event,
    /// The two batches of steps before the next are done.
    batches: [Event; 2],
    pending: Option<Pending>,
    outcome: Outcome,
    /// Rows and logit rows of the last submission.
    last: (usize, usize),
    allocated: u64,
    capabilities: Capabilities,
    chip: Chip,
    /// Whether launches of a step are linked.
    linked: bool,
    checked: bool,
    context: Rc<Context>,
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDevice")
            .field("card", &self.context.card)
            .field("buffers", &self.buffers.len())
            .field("allocated", &self.allocated)
            .finish_non_exhaustive()
    }
}

const WORKSPACE_BYTES: u64 = Pass::BYTES as u64 + SCRATCH_BYTES;

impl CudaDevice {
    /// Takes the first card that `CUDA_VISIBLE_DEVICES` shows.
    pub fn new(options: CudaOptions) -> Result<CudaDevice, DeviceError> {
        let folders = &options.folders;
        let card = probe(folders)?;
        let driver = Driver::get(folders)?;
        let (major, minor) = driver.version()?;
        let nvrtc = Nvrtc::get(folders, major)?;
        let context = Context::new(driver, card)?;
        let card = &context.card;
        let kernels = Kernels::new(&context, nvrtc, folders)?;
        let stream = Stream::new(&context)?;
        let own = Memory::new(&context, WORKSPACE_BYTES)?;
        stream.zero(own.address, own.bytes)?;
        let (blas, prompts) = match options.blas.then(|| Library::get(folders, major)) {
            None => (None, "cuBLASLt left out".to_string()),
            Some(Err(_)) => (None, "no cuBLASLt: prompts are slower (akunu doctor)".to_string()),
            Some(Ok(library)) => {
                let blas = Blas::new(&context, library, options.blas_timed)?;
                (Some(blas), format!("cuBLASLt {}", library.version()))
            }
        };
        let workspace_bytes = WORKSPACE_BYTES + if blas.is_some() { blas::WORKSPACE_BYTES } else { 0 };
        let architecture = nvrtc.architecture(card.compute)?;
        let detail = format!("{}, {architecture}, CUDA {major}.{minor}, {prompts}", card.name);
        let capabilities = Capabilities {
            name: NAME,
            detail,
            q8_activations: true,
            folds: true,
            half_products: blas.is_some().then_some(FEW_ROWS),
            keys: KeyOrder::Positions,
            in_place: InPlace::Nothing,
            samples: true,
            chain: 64,
            prefill_rows: if blas.is_some() { 2048 } else { 512 },
            workspace_bytes,
            available_bytes: Some(context.free_bytes()?),
        };
        Ok(CudaDevice {
            staging: Staging::new(&context)?,
            submitted: Pinned::new(&context, Pass::BYTES)?,
            returned: Pinned::new(&context, Pass::BYTES)?,
            done: Event::new(&context)?,
            batches: [Event::new(&context)?, Event::new(&context)?],
            chip: Chip {
                tensor_cores: options.special && card.compute >= (8, 0),
                copies: options.special && card.compute >= (8, 0),
                ..Chip::plain(card.processors, card.shared_bytes)
            },
            linked: options.linked && context.links_launches()?,
            checked: options.checked,
            stream,
            aside: Stream::new(&context)?,
            prepared: Vec::new(),
            buffers: Vec::new(),
            kernels,
            blas,
            own,
            pending: None,
            outcome: Outcome { steps: 0 },
            last: (0, 0),
            allocated: workspace_bytes,
            capabilities,
            context,
        })
    }

    fn place(
        &self,
        buffer: DeviceBuffer,
        offset: u64,
        len: usize,
    ) -> Result<(&Buffer, Address), DeviceError> {
        let buffer = buffer_in(NAME, &self.buffers, buffer)?;
        check_bytes(NAME, offset, len as u64, buffer.memory.bytes)?;
        Ok((buffer, buffer.memory.address + offset))
    }

    fn prepared(&self, replay: ReplayId) -> Result<&Prepared, DeviceError> {
        self.prepared.get(replay.0 as usize).ok_or_else(|| failed("that table was not prepared here"))
    }

    fn reserve(&mut self, what: &str, bytes: u64) -> Result<Memory, DeviceError> {
        let memory = Memory::new(&self.context, bytes).map_err(|error| match error.is_out_of_memory() {
            true => DeviceError::OutOfMemory { device: NAME, what: what.into(), bytes },
            false => error.during(what),
        })?;
        self.allocated += bytes;
        Ok(memory)
    }

    fn push(&mut self, memory: Memory, imported: bool) -> DeviceBuffer {
        self.buffers.push(Buffer { memory, imported, planes: None });
        DeviceBuffer(self.buffers.len() as u32 - 1)
    }

    /// Checks a submission and sends its rows and pass to where the table reads them.
    fn begin(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        check_submission(NAME, &self.prepared(replay)?.table, submission)?;
        let Submission { rows, logit_rows, .. } = submission;
        let pass = Pass::new(submission);
        // What was submitted before may not have left yet.
        self.finish()?;
        let prepared = &self.prepared[replay.0 as usize];
        let (rows, asked): (&[u8], &[u8]) = (bytemuck::cast_slice(rows), bytemuck::cast_slice(logit_rows));
        let mut start = 0;
        for (bytes, to) in [
            (rows, prepared.rows),
            (asked, prepared.logit_rows),
            (bytemuck::bytes_of(&pass), self.own.address),
        ] {
            if !bytes.is_empty() {
                self.submitted.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
                self.stream.upload(to, &self.submitted, start, bytes.len())?;
                start += bytes.len();
            }
        }
        self.last = (submission.rows.len(), submission.logit_rows.len());
        Ok(())
    }

    /// Begins with the rows that are already there: they may come from another table, and may have moved on.
    fn begin_again(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.finish()?;
        let prepared = self.prepared(replay)?;
        let (from, asked_from) = (prepared.rows, prepared.logit_rows);
        let mut rows = vec![Row::default(); self.last.0.min(prepared.table.rows)];
        let mut asked = vec![0u32; self.last.1.min(prepared.table.logit_rows)];
        self.staging.download(&self.stream, from, bytemuck::cast_slice_mut(&mut rows))?;
        self.staging.download(&self.stream, asked_from, bytemuck::cast_slice_mut(&mut asked))?;
        self.begin(replay, &Submission { rows: &rows, logit_rows: &asked, ..*submission })
    }

    /// Submits a table's steps, until the card has stopped or `cancel` is set: both are looked at between batches of steps. Gives
    /// how many were submitted.
    fn submit(
        &mut self,
        replay: ReplayId,
        steps: usize,
        cancel: Option<&AtomicBool>,
    ) -> Result<usize, DeviceError> {
        for step in 0..steps {
            let batch = step / BATCH % 2;
            if step % BATCH == 0 {
                if step >= 2 * BATCH {
                    // While the batch after it runs.
                    self.batches[batch].synchronise()?;
                    if self.has_stopped()? {
                        return Ok(step);
                    }
                }
                if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                    return Ok(step);
                }
            }
            let prepared = &self.prepared[replay.0 as usize];
            if self.checked {
                prepared.launch_checked(&self.stream, self.last.0)?;
            } else {
                self.stream.launch_graph(&prepared.variant(self.last.0).graph)?;
            }
            // Where it will be waited for.
            if step % BATCH == BATCH - 1 && step + 1 + BATCH < steps {
                self.stream.record(&self.batches[batch])?;
            }
        }
        Ok(steps)
    }

    /// Whether a step that is done found a token to stop at. Later ones may be running, so nothing else of the pass is settled.
    fn has_stopped(&mut self) -> Result<bool, DeviceError> {
        self.aside.download(&mut self.returned, 0, self.own.address, Pass::BYTES)?;
        self.aside.synchronise()?;
        Ok(self.returned_pass().stopped != 0)
    }

    fn returned_pass(&self) -> Pass {
        bytemuck::pod_read_unaligned(&self.returned.bytes()[..Pass::BYTES])
    }

    /// Waits for what was submitted, and reads how far it came.
    fn finish(&mut self) -> Result<(), DeviceError> {
        let Some(Pending { replay, steps }) = self.pending.take() else { return Ok(()) };
        let prepared = &self.prepared[replay.0 as usize];
        self.done.synchronise().map_err(|error| {
            error.during(&format!(
                "running the {} table (AKUNU_CUDA=checked names the command)",
                prepared.table.name
            ))
        })?;
        self.outcome = Outcome { steps: self.returned_pass().steps_done(steps, prepared.advances) };
        Ok(())
    }
}

impl Device for CudaDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        let memory = self.reserve(what, bytes)?;
        self.stream.zero(memory.address, bytes)?;
        Ok(self.push(memory, false))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let part = part_of(NAME, region, offset, bytes)?;
        let memory = self.reserve("a weight", bytes as u64)?;
        self.staging.upload(&self.stream, memory.address, part)?;
        Ok(self.push(memory, true))
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (owner, place) = self.place(buffer, offset, bytes.len())?;
        if owner.imported {
            return Err(failed("an imported buffer is read-only"));
        }
        Ok(self.staging.upload(&self.stream, place, bytes)?)
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (_, place) = self.place(buffer, offset, bytes.len())?;
        Ok(self.staging.download(&self.stream, place, bytes)?)
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        self.finish()?;
        let mut lent = Lent {
            context: &self.context,
            stream: &self.stream,
            kernels: &mut self.kernels,
            blas: self.blas.as_mut(),
            chip: &self.chip,
            own: [self.own.address, self.own.address + Pass::BYTES as u64],
            linked: self.linked,
        };
        lay_out(&mut lent, table, &mut self.buffers, buffers)?;
        let prepared = prepare(&mut lent, table, Buffers { all: &self.buffers, ids: buffers })?;
        if prepared.upload_bytes() > self.submitted.bytes().len() {
            self.submitted = Pinned::new(&self.context, prepared.upload_bytes())?;
        }
        self.prepared.push(prepared);
        Ok(ReplayId(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        let steps = self.submit(replay, submission.steps, submission.cancel)?;
        self.stream.download(&mut self.returned, 0, self.own.address, Pass::BYTES)?;
        self.stream.record(&self.done)?;
        self.pending = Some(Pending { replay, steps });
        Ok(())
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
        self.finish()?;
        Ok(self.outcome)
    }

    fn run_range(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        first: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        check_range(NAME, &self.prepared(replay)?.table, first, count)?;
        match submission.rows.is_empty() {
            true => self.begin_again(replay, &submission)?,
            false => self.begin(replay, &submission)?,
        }
        let prepared = &self.prepared[replay.0 as usize];
        let ran = prepared
            .launch_range(&self.stream, self.last.0, first, count)
            .and_then(|()| self.stream.synchronise());
        let label = prepared.table.labels.get(first).map_or("no command", String::as_str);
        ran.map_err(|error| error.during(&format!("{label} of the {} table", prepared.table.name)))?;
        self.outcome = Outcome { steps: 1 };
        Ok(())
    }

    /// By the card's own clock, in a graph: launches cost the host more than many commands take.
    fn time_commands(
        &mut self,
        replay: ReplayId,
        submission: Submission<'_>,
        ns: &mut [u64],
    ) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        let prepared = &mut self.prepared[replay.0 as usize];
        let timed = prepared.time(&self.context, &self.stream, self.last.0, ns);
        timed.map_err(|error| error.during(&format!("timing the {} table", prepared.table.name)))
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated
    }

    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        let (requests, free_bytes) = (self.context.requests(), self.context.free_bytes()?);
        Ok(Some(DriverMemory { requests, free_bytes }))
    }
}
