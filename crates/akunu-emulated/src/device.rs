//! [`Emulator`]: an implementation of the GPU interface that runs kernels as fibres on the host.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use akunu_cuda::Products;
use akunu_format::Region;
use akunu_gpu::{Gpu, Recording, Repack, TableDevice, Tuning, WORKSPACE_BYTES, Word};
use akunu_kernels::{Chip, Function, Gathering, Launch, LibraryProduct};
use akunu_metal::MetalChip;
use akunu_plan::table::PARAM_BYTES;
use akunu_plan::{Capabilities, DeviceError, FewRows, InPlace, KeyOrder, Member, PackedRows};

use crate::library::{Library, Stacks, library};
use crate::memory::Memory;
use crate::product::{gather, multiply};
use crate::queue::{Queue, Waiting};

const NAME: &str = "emulated";

/// Few units, so that small contexts are split like long ones are on a large chip.
const CHIP: Chip = Chip::plain(4, 48 << 10);

pub(crate) type Shared = Rc<RefCell<Memory>>;

/// The code of a dispatch.
#[derive(Clone, Debug)]
pub struct Code(Work);

#[derive(Clone, Debug)]
enum Work {
    Kernel(Function, Arc<Library>),
    Product(LibraryProduct),
    Gather(Gathering, Member),
}

#[derive(Debug)]
struct Dispatch<'a> {
    code: &'a Code,
    bound: &'a [(Shared, usize)],
    shared_bytes: u32,
    groups: [u32; 3],
    threads: u32,
}

/// An emulated GPU. Its memory is separate from the host's, and an access past a buffer's end faults.
#[derive(Debug)]
pub struct Emulator {
    capabilities: Capabilities,
    tuning: Tuning,
    /// Allocated by the first launch.
    stacks: Option<Stacks>,
    backwards: bool,
    /// Submissions run only when they are waited for, and copies are queued after them.
    late: bool,
    patience: Duration,
    /// Its place among ranks whose numbers the host exchanges, as a library does.
    member: Option<Member>,
    pub(crate) queue: Queue,
}

/// The host side of the GPU devices on the emulator.
pub type EmulatedDevice = TableDevice<Emulator>;

fn failed(message: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: NAME, message: message.into() }
}

impl Default for Emulator {
    fn default() -> Emulator {
        Emulator {
            capabilities: Capabilities {
                name: NAME,
                detail: "fibres on the host".into(),
                folds: true,
                half_products: None,
                packed_products: None,
                eight_products: None,
                keys: KeyOrder::PositionMajor,
                block: akunu_kernels::BLOCK,
                in_place: InPlace::Nothing,
                samples: true,
                chain: 8,
                prefill_rows: 64,
                workspace_bytes: WORKSPACE_BYTES,
                workspace_row_bytes: 0,
                streaming_bytes: 0,
                ranks: 1,
                host: None,
                stages: Vec::new(),
                available_bytes: None,
            },
            tuning: Tuning {
                chip: CHIP,
                row_counts: &[],
                part: 8,
                indirect: false,
                ahead: true,
                checked: false,
                repack: Repack::Elsewhere,
                queued_copies: false,
            },
            stacks: None,
            backwards: false,
            late: false,
            patience: Duration::from_secs(20),
            member: None,
            queue: Queue::default(),
        }
    }
}

impl Emulator {
    /// Configured like the Metal device on a chip: weights stay in the file mapping, and there are programs for fewer
    /// rows.
    pub fn apple(chip: MetalChip) -> Emulator {
        let capabilities = chip.capabilities(format!("{} on fibres of the host", chip.describe()));
        Emulator {
            capabilities: Capabilities { name: NAME, ..capabilities },
            tuning: chip.tuning(),
            ..Emulator::default()
        }
    }

    /// Configured like the CUDA device: separate memory, to which weights are copied and where they are repacked,
    /// tables recorded once with parameters by value, prompts with a library's products, chains submitted in batches,
    /// results fetched. Nothing runs before it is waited for.
    pub fn cuda() -> Emulator {
        let chip =
            Chip { tensor_cores: true, warpgroups: true, copies: true, shared_bytes: 200 << 10, ..CHIP };
        let detail = "CUDA's choices on fibres of the host".into();
        let capabilities = akunu_cuda::capabilities(detail, Some(Products { packed: true, eights: false }));
        Emulator {
            capabilities: Capabilities { name: NAME, ..capabilities },
            tuning: akunu_cuda::tuning(chip),
            late: true,
            ..Emulator::default()
        }
    }

    pub fn device(self) -> Result<EmulatedDevice, DeviceError> {
        TableDevice::on(self)
    }

    /// The device of a rank, which meets the others with one thread.
    pub fn in_group(self, member: &Member) -> Result<EmulatedDevice, DeviceError> {
        TableDevice::in_group(self, member)
    }

    /// The same, as a rank in another process than the others: not kernels exchange numbers, but the host.
    pub fn gathering(mut self, member: &Member) -> Result<EmulatedDevice, DeviceError> {
        self.tuning.chip.gathered_ranks = member.ranks() as u32;
        self.member = Some(member.clone());
        TableDevice::in_group(self, member)
    }

    pub fn chip(&self) -> &Chip {
        &self.tuning.chip
    }

    /// Threadgroups, SIMD groups and lanes run in reverse order, and so do launches without a barrier between them.
    /// Results must not depend on it.
    pub fn backwards(mut self) -> Emulator {
        self.backwards = true;
        self
    }

    /// Tables are executed from indirect command buffers.
    pub fn with_indirect_commands(mut self) -> Emulator {
        self.tuning.indirect = true;
        self
    }

    /// Sets the steps per command buffer of a chain.
    pub fn in_parts_of(mut self, steps: usize) -> Emulator {
        self.tuning.part = steps;
        self
    }

    /// Enables kernels for tensor cores, which the emulator implements as well.
    pub fn with_tensor_cores(mut self) -> Emulator {
        let chip = &mut self.tuning.chip;
        *chip = Chip { tensor_cores: true, shared_bytes: 200 << 10, ..*chip };
        self
    }

    /// Enables kernels for the tensor instructions of warpgroups, as well as those for tensor cores.
    pub fn with_warpgroups(mut self) -> Emulator {
        self.tuning.chip.warpgroups = true;
        self.with_tensor_cores()
    }

    /// Enables kernels with asynchronous copies, with as much threadgroup memory as chips with that feature have.
    pub fn with_copies(mut self) -> Emulator {
        let chip = &mut self.tuning.chip;
        *chip = Chip { copies: true, shared_bytes: 200 << 10, ..*chip };
        self
    }

    /// Enables kernels with simdgroup matrices, with as much threadgroup memory as Apple's chips have.
    pub fn with_tiles(mut self, bf16_tiles: bool) -> Emulator {
        let chip = &mut self.tuning.chip;
        *chip = Chip { tiles: true, bf16_tiles, shared_bytes: 32 << 10, ..*chip };
        self
    }

    /// A chip of one unit, where SIMD groups of matrix-vector products compute two outputs if there are enough of
    /// them.
    pub fn with_two_gemv_outputs(mut self) -> Emulator {
        let chip = &mut self.tuning.chip;
        *chip = Chip { units: 1, gemv_outputs: 2, ..*chip };
        self
    }

    /// A rank that waits so long for the others.
    pub fn with_patience(mut self, patience: Duration) -> Emulator {
        self.patience = patience;
        self
    }

    /// As a card with so many free bytes.
    pub fn with_memory(mut self, bytes: u64) -> Emulator {
        self.capabilities.available_bytes = Some(bytes);
        self
    }

    /// Products of f16 rows with packed weights, where a library multiplies f16.
    pub fn with_packed_products(mut self, packed: Option<PackedRows>) -> Emulator {
        self.capabilities.packed_products = packed;
        self
    }

    /// A library that multiplies FP8, as plain loops.
    pub fn with_eight_products(mut self, few: usize) -> Emulator {
        self.capabilities.eight_products = Some(few);
        self
    }

    /// A library that multiplies f16, as plain loops.
    pub fn with_half_products(mut self, few: usize) -> Emulator {
        self.capabilities.half_products = Some(FewRows::all(few));
        self
    }
}

impl Emulator {
    /// Runs submissions at once, unless they are to run late.
    fn catch_up_if_prompt(&mut self) -> Result<(), DeviceError> {
        if self.late { Ok(()) } else { self.catch_up(Waiting::ForAll) }
    }

    /// Executes what was encoded. Launches without a barrier between them run in either order.
    pub(crate) fn run(&mut self, words: &[Word<Code, Shared>]) -> Result<(), DeviceError> {
        let mut beside = Vec::new();
        self.run_words(words, &mut beside)?;
        self.run_beside(&mut beside)
    }

    /// Executes operation by operation. `beside`: the dispatches since the last barrier.
    fn run_words<'a>(
        &mut self,
        words: &'a [Word<Code, Shared>],
        beside: &mut Vec<Dispatch<'a>>,
    ) -> Result<(), DeviceError> {
        let (mut code, mut bound, mut shared_bytes): (_, &[(Shared, usize)], _) = (None, &[], 0);
        for word in words {
            match word {
                Word::Pipeline(pipeline) => code = Some(pipeline),
                Word::Buffers(buffers) => bound = buffers,
                Word::Threadgroup(bytes) => shared_bytes = *bytes,
                Word::Barrier => self.run_beside(beside)?,
                // Settings made outside do not apply inside.
                Word::Run(words) => self.run_words(words, beside)?,
                Word::Dispatch { groups, threads } => {
                    let code = code.ok_or_else(|| failed("a dispatch without a pipeline"))?;
                    let (groups, threads) = (*groups, *threads);
                    beside.push(Dispatch { code, bound, shared_bytes, groups, threads });
                }
            }
        }
        Ok(())
    }

    fn run_beside(&mut self, dispatches: &mut Vec<Dispatch<'_>>) -> Result<(), DeviceError> {
        if self.backwards {
            dispatches.reverse();
        }
        dispatches.drain(..).try_for_each(|dispatch| self.dispatch(dispatch))
    }

    fn dispatch(&mut self, dispatch: Dispatch<'_>) -> Result<(), DeviceError> {
        let Dispatch { code, bound, shared_bytes, groups, threads } = dispatch;
        let (function, library) = match &code.0 {
            Work::Product(product) => return multiply(product, bound).map_err(failed),
            Work::Gather(gathering, member) => return gather(gathering, member, bound).map_err(failed),
            Work::Kernel(function, library) => (function.clone(), library),
        };
        let place = |(memory, offset): &(Shared, usize)| {
            let memory = memory.borrow();
            let inside = *offset <= memory.bytes().len();
            inside.then(|| memory.start().wrapping_add(*offset))
        };
        let arguments: Option<Vec<*mut u8>> = bound.iter().map(place).collect();
        let arguments = arguments.ok_or_else(|| failed("a binding past its buffer's end"))?;
        let launch = Launch { function, groups, threads, shared_bytes };
        let stacks = match &mut self.stacks {
            Some(stacks) => stacks,
            none => none.insert(Stacks::new().ok_or_else(|| failed("no memory for stacks"))?),
        };
        library.run(&launch, &arguments, stacks, self.backwards).map_err(failed)
    }
}

impl Gpu for Emulator {
    type Buffer = Shared;
    type Pipeline = Code;
    type Commands = Recording<Code, Shared>;
    type Indirect = Recording<Code, Shared>;
    type Pending = Waiting;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Shared, DeviceError> {
        let memory = usize::try_from(bytes).ok().and_then(Memory::zeroed);
        let memory =
            memory.ok_or_else(|| DeviceError::OutOfMemory { device: NAME, what: what.into(), bytes })?;
        Ok(Rc::new(RefCell::new(memory)))
    }

    fn allocate_unset(&mut self, what: &str, bytes: u64) -> Result<Shared, DeviceError> {
        let memory = self.allocate(what, bytes)?;
        memory.borrow_mut().bytes_mut().fill(0xff);
        Ok(memory)
    }

    fn map(
        &mut self,
        region: &Region,
        offset: usize,
        _bytes: usize,
    ) -> Result<Option<(Shared, usize)>, DeviceError> {
        let is_mapped =
            self.capabilities.in_place != InPlace::Nothing && InPlace::is_bindable(region, offset);
        Ok(is_mapped.then(|| (Rc::new(RefCell::new(Memory::of_region(region))), offset)))
    }

    fn write(&mut self, buffer: &Shared, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.queue.write(buffer, offset, bytes);
        self.catch_up_if_prompt()
    }

    fn read(&mut self, buffer: &Shared, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.catch_up(Waiting::ForAll)?;
        bytes.copy_from_slice(&buffer.borrow().bytes()[offset..offset + bytes.len()]);
        Ok(())
    }

    fn peek(&mut self, buffer: &Shared, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(&buffer.borrow().bytes()[..bytes.len()]);
        Ok(())
    }

    fn send(&mut self, writes: [(&Shared, usize, &[u8]); 3]) -> Result<(), DeviceError> {
        self.queue.send(writes);
        self.catch_up_if_prompt()
    }

    fn reserve_sending(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.queue.reserve(bytes);
        Ok(())
    }

    fn fetch(&mut self, buffer: &Shared, bytes: usize) -> Result<(), DeviceError> {
        self.queue.fetch(buffer, bytes);
        self.catch_up_if_prompt()
    }

    fn fetched(&mut self, _buffer: &Shared, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.catch_up(Waiting::ForAll)?;
        bytes.copy_from_slice(&self.queue.fetched);
        Ok(())
    }

    fn address(&self, buffer: &Shared) -> Result<u64, DeviceError> {
        Ok(buffer.borrow().start().expose_provenance() as u64)
    }

    fn copy(&mut self, from: &Shared, to: &Shared, bytes: u64) -> Result<(), DeviceError> {
        self.queue.copy(from, to, bytes);
        self.catch_up_if_prompt()
    }

    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Code>, DeviceError> {
        let code = |function: &&Function| Ok(Code(Work::Kernel((*function).clone(), library(function)?)));
        functions.iter().map(code).collect::<Result<_, String>>().map_err(failed)
    }

    fn product(
        &mut self,
        product: &LibraryProduct,
        _bindings: &[(Shared, usize)],
    ) -> Result<Option<Code>, DeviceError> {
        Ok(Some(Code(Work::Product(*product))))
    }

    fn gathering(
        &mut self,
        gathering: &Gathering,
        _bindings: &[(Shared, usize)],
        _to: &(Shared, usize),
    ) -> Result<Option<Code>, DeviceError> {
        Ok(self.member.clone().map(|member| Code(Work::Gather(*gathering, member))))
    }

    fn indirect(&mut self, _dispatches: usize, _buffers: usize) -> Result<Self::Indirect, DeviceError> {
        Ok(Recording::default())
    }

    /// A graph has its parameters by value: the current ones.
    fn seal(&mut self, indirect: &mut Self::Indirect, _table: &str) -> Result<(), DeviceError> {
        // A library's product has none.
        let mut has_params = false;
        let by_value = self.late;
        for word in indirect.0.iter_mut().filter(|_| by_value) {
            let buffers = match word {
                Word::Pipeline(code) => {
                    has_params = matches!(code.0, Work::Kernel(..));
                    continue;
                }
                Word::Buffers(buffers) if has_params => buffers,
                _ => continue,
            };
            let Some((params, offset)) = buffers.last_mut() else { continue };
            let mut value = [0; PARAM_BYTES];
            self.read(params, *offset, &mut value)?;
            let own = self.allocate("parameters by value", PARAM_BYTES as u64)?;
            own.borrow_mut().bytes_mut().copy_from_slice(&value);
            (*params, *offset) = (own, 0);
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<Recording<Code, Shared>, DeviceError> {
        Ok(Recording::default())
    }

    fn submit(&mut self, commands: Recording<Code, Shared>, followed: bool) -> Result<Waiting, DeviceError> {
        let waiting = self.queue.submit(commands, followed);
        self.catch_up_if_prompt()?;
        Ok(waiting)
    }

    fn finish(&mut self, pending: Waiting) -> Result<u64, DeviceError> {
        self.catch_up(pending)?;
        Ok(0)
    }

    fn settle(&mut self) {
        // The failure is reported to whoever waits for that submission.
        while self.catch_up(Waiting::ForAll).is_err() {}
    }
}
