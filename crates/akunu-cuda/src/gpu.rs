//! [`CudaGpu`]: a card, its streams and host memory, behind the trait that all GPUs have.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use akunu_gpu::{During, Gpu, Part, Tuning, WORKSPACE_BYTES};
use akunu_kernels::{Chip, Function, Gathering, Launch, LibraryProduct, Pass};
use akunu_plan::{Capabilities, DeviceError, DriverMemory, Member};

use crate::blas::{Blas, Library};
use crate::choices::{Products, capabilities, tuning};
use crate::context::{Card, Context};
use crate::driver::{Address, Driver};
use crate::error::failed;
use crate::graph::{Branches, Code, CudaBuffer, CudaCommands, CudaTable};
use crate::library::CudaFolders;
use crate::memory::{Memory, Pinned};
use crate::module::Kernels;
use crate::nccl::Ranks;
use crate::nvrtc::Nvrtc;
use crate::reader::Reader;
use crate::staging::Staging;
use crate::stream::{Event, Stream};
use crate::{CudaError, NAME};

/// Bytes that are read at once through the second stream: some rows of a model.
const PEEKED: usize = 256 << 10;

/// How tables are executed. The defaults are the fastest; the other settings are for debugging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// A kernel may start before the previous one has ended, if the card supports it.
    pub linked: bool,
    /// Commands run one at a time, with a wait after each, so that an error names the command that failed.
    pub checked: bool,
    /// Also use kernels that need optional features: tensor cores, asynchronous copies.
    pub special: bool,
    /// Kernels for the tensor instructions of warpgroups.
    pub warpgroups: bool,
    /// Products of FP8 rows with FP8 weights, where files ask for them.
    pub eights: bool,
    /// Use cuBLASLt for prompts, if it is available.
    pub blas: bool,
    /// Its algorithms are timed when a model is loaded, rather than chosen by its heuristic. Another start may choose
    /// differently, so results are not bit-identical between starts.
    pub blas_timed: bool,
    /// Where NVIDIA's libraries are searched and compiled kernels are cached.
    pub folders: CudaFolders,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions::from_words("")
    }
}

impl CudaOptions {
    /// Options from a comma-separated list of words: `serial` disables overlapping launches, `checked` runs commands
    /// one by one, `plain` uses only kernels that need no optional feature, `nowarpgroups` none for the tensor
    /// instructions of warpgroups, `noeights` multiplies FP8 weights by rows in f16, `noblas` disables cuBLASLt, `blastimed` times its algorithms.
    pub fn from_words(words: &str) -> CudaOptions {
        let has = |word: &str| words.split(',').any(|part| part.trim() == word);
        CudaOptions {
            linked: !has("serial"),
            checked: has("checked"),
            special: !has("plain"),
            warpgroups: !has("nowarpgroups"),
            eights: !has("noeights"),
            blas: !has("noblas"),
            blas_timed: has("blastimed"),
            folders: CudaFolders::default(),
        }
    }
}

/// A card by its number, if everything that it needs is available.
pub fn probe(folders: &CudaFolders, number: u32) -> Result<Card, CudaError> {
    let driver = Driver::get(folders)?;
    let cards = driver.cards()?.unsigned_abs();
    if cards == 0 {
        return Err(CudaError::NoCard);
    }
    if number >= cards {
        return Err(CudaError::UnknownCard { number, cards });
    }
    let card = Card::find(driver, number as i32)?;
    Nvrtc::get(folders, driver.version()?.0)?.architecture(card.compute)?;
    Ok(card)
}

/// A card. The device manages the contents of its memory.
// Fields are dropped in this order: the stream is synchronised before anything that it uses is released.
pub struct CudaGpu {
    stream: Stream,
    /// A second stream for copies while steps run.
    aside: Stream,
    branches: Branches,
    kernels: Kernels,
    blas: Option<Blas>,
    /// If the other ranks are in other processes.
    ranks: Option<Ranks>,
    folders: CudaFolders,
    staging: Staging,
    /// Started when something is read ahead.
    reader: Option<Reader>,
    /// Recorded after what was read ahead has been used.
    consumed: Event,
    /// Rows, logit rows and pass of a submission, until the card has read them.
    submitted: Pinned,
    /// Recorded after their transfer.
    sent: Event,
    /// The pass, as copied back.
    returned: Pinned,
    /// Recorded after that copy.
    done: Event,
    /// What is read through the second stream.
    peeked: Pinned,
    /// Recorded after what is written through the second stream.
    written: Event,
    /// Recorded after each of the last two batches of steps.
    batches: [Event; 2],
    /// The index of the one that is recorded next.
    batch: usize,
    capabilities: Capabilities,
    tuning: Tuning,
    /// Whether launches of a step are linked.
    linked: bool,
    context: Rc<Context>,
}

impl std::fmt::Debug for CudaGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaGpu").field("card", &self.context.card).finish_non_exhaustive()
    }
}

impl CudaGpu {
    /// Uses the card with this number of those that `CUDA_VISIBLE_DEVICES` exposes, whose kernels access the memory of `peers`.
    pub(crate) fn new(options: CudaOptions, number: u32, peers: &[u32]) -> Result<CudaGpu, DeviceError> {
        let folders = &options.folders;
        let card = probe(folders, number)?;
        let driver = Driver::get(folders)?;
        let (major, minor) = driver.version()?;
        let nvrtc = Nvrtc::get(folders, major)?;
        let context = Context::new(driver, card)?;
        context.see(peers)?;
        let card = &context.card;
        let kernels = Kernels::new(&context, nvrtc, folders)?;
        let stream = Stream::new(&context)?;
        let (blas, prompts) = match options.blas.then(|| Library::get(folders, major)) {
            None => (None, "cuBLASLt left out".to_string()),
            Some(Err(_)) => (None, "no cuBLASLt: prompts are slower (akunu doctor)".to_string()),
            Some(Ok(library)) => {
                let blas = Blas::new(&context, library, options.blas_timed)?;
                (Some(blas), format!("cuBLASLt {}", library.version()))
            }
        };
        let architecture = nvrtc.architecture(card.compute)?;
        let detail = format!("{}, {architecture}, CUDA {major}.{minor}, {prompts}", card.name);
        // The workspace counts as allocated when the caller looks at this; cuBLASLt's part of it already is.
        let available = context.free_bytes()?.saturating_sub(WORKSPACE_BYTES);
        let chip = Chip {
            tensor_cores: options.special && card.compute >= (8, 0),
            warpgroups: options.special && options.warpgroups && card.compute.0 == 9,
            copies: options.special && card.compute >= (8, 0),
            ..Chip::plain(card.processors, card.shared_bytes)
        };
        let products = blas.as_ref().map(|blas| Products {
            packed: chip.warpgroups,
            eights: options.special && options.eights && card.compute.0 == 9 && blas.scales_rows(),
        });
        Ok(CudaGpu {
            staging: Staging::new(&context)?,
            reader: None,
            consumed: Event::new(&context)?,
            submitted: Pinned::new(&context, Pass::BYTES)?,
            sent: Event::new(&context)?,
            returned: Pinned::new(&context, Pass::BYTES)?,
            done: Event::new(&context)?,
            peeked: Pinned::new(&context, PEEKED)?,
            written: Event::new(&context)?,
            batches: [Event::new(&context)?, Event::new(&context)?],
            batch: 0,
            capabilities: Capabilities { available_bytes: Some(available), ..capabilities(detail, products) },
            tuning: Tuning { checked: options.checked, ..tuning(chip) },
            linked: options.linked && context.links_launches()?,
            stream,
            aside: Stream::new(&context)?,
            branches: Branches::new(&context)?,
            kernels,
            blas,
            ranks: None,
            folders: options.folders,
            context,
        })
    }

    /// Connects this rank with those of other processes, each of which calls this.
    pub(crate) fn connected(mut self, member: &Member, token: &[u8]) -> Result<CudaGpu, DeviceError> {
        self.ranks = Some(Ranks::connect(&self.context, &self.folders, member, token)?);
        self.tuning.chip.gathered_ranks = member.ranks() as u32;
        let free = self.context.free_bytes()?.saturating_sub(WORKSPACE_BYTES);
        self.capabilities.available_bytes = Some(free);
        Ok(self)
    }
}

/// The address of a buffer in device memory. Parameters have none.
fn address(buffer: &CudaBuffer) -> Result<Address, DeviceError> {
    match buffer {
        CudaBuffer::Card(memory) => Ok(memory.address),
        CudaBuffer::Params(_) => Err(failed("parameters are not in the card's memory")),
    }
}

impl Gpu for CudaGpu {
    type Buffer = CudaBuffer;
    type Pipeline = Code;
    type Commands = CudaCommands;
    type Indirect = CudaTable;
    /// The event of a batch, if others follow it.
    type Pending = Option<usize>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<CudaBuffer, DeviceError> {
        let buffer = self.allocate_unset(what, bytes)?;
        self.stream.zero(address(&buffer)?, bytes)?;
        Ok(buffer)
    }

    fn allocate_unset(&mut self, what: &str, bytes: u64) -> Result<CudaBuffer, DeviceError> {
        let memory = Memory::new(&self.context, bytes).map_err(|error| match error.is_out_of_memory() {
            true => DeviceError::OutOfMemory { device: NAME, what: what.into(), bytes },
            false => error.during(what),
        })?;
        Ok(CudaBuffer::Card(Rc::new(memory)))
    }

    fn allocate_params(&mut self, _what: &str, bytes: u64) -> Result<CudaBuffer, DeviceError> {
        Ok(CudaBuffer::Params(Rc::new(RefCell::new(vec![0; bytes as usize]))))
    }

    fn write(&mut self, buffer: &CudaBuffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if let CudaBuffer::Params(params) = buffer {
            params.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        Ok(self.staging.upload(&self.stream, address(buffer)? + offset as u64, bytes)?)
    }

    fn write_beside(&mut self, buffer: &CudaBuffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.staging.upload(&self.aside, address(buffer)? + offset as u64, bytes)?;
        self.aside.record(&self.written)?;
        Ok(self.stream.wait(&self.written)?)
    }

    fn read_ahead(&mut self, buffer: &CudaBuffer, part: Part<'_>) -> Result<(), DeviceError> {
        self.consumed.synchronise()?;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                // Buffers are zeroed on this stream, which the reader's streams do not wait for.
                self.stream.synchronise()?;
                none.insert(Reader::start(self.context.driver, &self.context.card)?)
            }
        };
        Ok(reader.begin(address(buffer)?, part)?)
    }

    fn landed(&mut self, buffer: &CudaBuffer) -> Result<(), DeviceError> {
        match &mut self.reader {
            Some(reader) => Ok(reader.finish(address(buffer)?)?),
            None => Ok(()),
        }
    }

    fn consumed(&mut self) -> Result<(), DeviceError> {
        Ok(self.stream.record(&self.consumed)?)
    }

    fn read(&mut self, buffer: &CudaBuffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        Ok(self.staging.download(&self.stream, address(buffer)? + offset as u64, bytes)?)
    }

    /// Uses the second stream, which does not wait for the first.
    fn peek(&mut self, buffer: &CudaBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let from = address(buffer)?;
        for (index, part) in bytes.chunks_mut(self.peeked.bytes().len()).enumerate() {
            let offset = (index * self.peeked.bytes().len()) as u64;
            self.aside.download(&mut self.peeked, 0, from + offset, part.len())?;
            self.aside.synchronise()?;
            part.copy_from_slice(&self.peeked.bytes()[..part.len()]);
        }
        Ok(())
    }

    /// From page-locked memory, which the card reads asynchronously.
    fn send(&mut self, writes: [(&CudaBuffer, usize, &[u8]); 3]) -> Result<(), DeviceError> {
        self.sent.synchronise()?;
        let mut start = 0;
        for (buffer, offset, bytes) in writes.into_iter().filter(|(.., bytes)| !bytes.is_empty()) {
            self.submitted.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
            let to = address(buffer)? + offset as u64;
            self.stream.upload(to, &self.submitted, start, bytes.len())?;
            start += bytes.len();
        }
        Ok(self.stream.record(&self.sent)?)
    }

    fn reserve_sending(&mut self, bytes: usize) -> Result<(), DeviceError> {
        if bytes > self.submitted.bytes().len() {
            self.submitted = Pinned::new(&self.context, bytes)?;
        }
        Ok(())
    }

    fn fetch(&mut self, buffer: &CudaBuffer, bytes: usize) -> Result<(), DeviceError> {
        self.stream.download(&mut self.returned, 0, address(buffer)?, bytes)?;
        Ok(self.stream.record(&self.done)?)
    }

    fn fetched(&mut self, _buffer: &CudaBuffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.done.synchronise()?;
        bytes.copy_from_slice(&self.returned.bytes()[..bytes.len()]);
        Ok(())
    }

    fn address(&self, buffer: &CudaBuffer) -> Result<u64, DeviceError> {
        address(buffer)
    }

    fn copy(&mut self, from: &CudaBuffer, to: &CudaBuffer, bytes: u64) -> Result<(), DeviceError> {
        Ok(self.stream.copy(address(to)?, address(from)?, bytes)?)
    }

    fn expect(&mut self, functions: Vec<Function>) {
        self.kernels.expect(functions);
    }

    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Code>, DeviceError> {
        self.kernels.require(functions.iter().copied())?;
        let code = |function: &&Function| {
            let kernel = self.kernels.get(function);
            let kernel = kernel.ok_or_else(|| failed(format!("{} was not compiled", function.name)))?;
            Ok(Code::Kernel(Rc::clone(kernel)))
        };
        functions.iter().map(code).collect()
    }

    fn product(
        &mut self,
        product: &LibraryProduct,
        bindings: &[(CudaBuffer, usize)],
    ) -> Result<Option<Code>, DeviceError> {
        let blas = self.blas.as_mut().ok_or_else(|| failed("a product of f16 without cuBLASLt"))?;
        let place = |(buffer, offset): &(CudaBuffer, usize)| Ok(address(buffer)? + *offset as u64);
        let places = bindings.iter().map(place).collect::<Result<Vec<_>, DeviceError>>()?;
        let bound = blas.bind(product, &places, &self.stream)?;
        Ok(Some(Code::Product(Rc::new(bound))))
    }

    fn gathering(
        &mut self,
        gathering: &Gathering,
        bindings: &[(CudaBuffer, usize)],
        (to, start): &(CudaBuffer, usize),
    ) -> Result<Option<Code>, DeviceError> {
        let Some(ranks) = &self.ranks else { return Ok(None) };
        let (from, offset) =
            bindings.get(gathering.x).ok_or_else(|| failed("an exchange whose bindings are not bound"))?;
        let from = address(from)? + *offset as u64 + gathering.first * size_of::<f32>() as u64;
        let to = address(to)? + *start as u64;
        let bound = ranks.bind(from, to, gathering.count as usize, &self.stream)?;
        Ok(Some(Code::Gathering(Rc::new(bound))))
    }

    /// As many as it requests. The kernel's limit is raised here, before any capture.
    fn threadgroup_bytes(&mut self, pipeline: &Code, launch: &Launch) -> Result<u32, DeviceError> {
        let (name, threads) = (&launch.function.name, launch.threads);
        if let Code::Kernel(kernel) = pipeline {
            if threads > kernel.max_threads {
                let most = kernel.max_threads;
                return Err(failed(format!(
                    "{name} wants groups of {threads} threads, and {most} have registers enough"
                )));
            }
            kernel.allow_shared(launch.shared_bytes).map_err(|error| error.during(name))?;
        }
        Ok(launch.shared_bytes)
    }

    fn indirect(&mut self, _dispatches: usize, _buffers: usize) -> Result<CudaTable, DeviceError> {
        Ok(CudaTable::default())
    }

    fn seal(&mut self, indirect: &mut CudaTable, table: &str) -> Result<(), DeviceError> {
        let sealed = indirect.seal(&self.stream, &self.branches, self.linked);
        sealed.map_err(|error| error.during(&format!("capturing the {table} table")))
    }

    fn begin(&mut self) -> Result<CudaCommands, DeviceError> {
        Ok(CudaCommands::default())
    }

    fn submit(&mut self, commands: CudaCommands, followed: bool) -> Result<Option<usize>, DeviceError> {
        commands.run(&self.stream)?;
        if !followed {
            return Ok(None);
        }
        let batch = self.batch;
        self.stream.record(&self.batches[batch])?;
        self.batch = 1 - batch;
        Ok(Some(batch))
    }

    /// Not measured with the host's clock: [`Gpu::time`] uses the card's.
    fn finish(&mut self, pending: Option<usize>) -> Result<u64, DeviceError> {
        match pending {
            Some(batch) => self.batches[batch].synchronise()?,
            None => self.stream.synchronise()?,
        }
        Ok(0)
    }

    /// In a graph with events, because the host's time per launch exceeds that of many commands.
    fn time(
        &mut self,
        indirect: &mut CudaTable,
        commands: &[Range<usize>],
        ns: &mut [u64],
    ) -> Result<bool, DeviceError> {
        Ok(indirect.time(&self.context, &self.stream, commands, ns)?)
    }

    fn settle(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.finish_all();
        }
        // An error here has been reported before, or will be when memory is used again.
        let _ = self.stream.synchronise();
    }

    fn context(&self, during: During<'_>) -> String {
        match during {
            During::Table { table } => {
                format!("running the {table} table (AKUNU_CUDA=checked names the command)")
            }
            During::Command { label, table } => format!("{label} of the {table} table"),
            During::Timing { table } => format!("timing the {table} table"),
        }
    }

    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        let (requests, free_bytes) = (self.context.requests(), self.context.free_bytes()?);
        Ok(Some(DriverMemory { requests, free_bytes }))
    }
}
