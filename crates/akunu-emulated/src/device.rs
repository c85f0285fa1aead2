//! [`EmulatedDevice`]: tables as launches, one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use akunu_format::Region;
use akunu_kernels::{Chip, HalfProduct, Launch, Pass, SCRATCH_BYTES, Work, launches, repack, weights};
use akunu_plan::device::{check_range, check_submission, part_of};
use akunu_plan::{
    BufferId, Capabilities, Device, DeviceBuffer, DeviceError, DispatchCommand, DispatchTable, Outcome,
    ReplayId, Submission,
};
use bytemuck::Zeroable;

use crate::library::{Library, Stacks, library};
use crate::memory::Memory;
use crate::product::multiply;

const NAME: &str = "emulated";

/// Few units, so that small contexts are split as long ones are on a large chip.
const CHIP: Chip = Chip { units: 4, shared_bytes: 48 << 10, tensor_cores: false, copies: false };

#[derive(Debug)]
struct Buffer {
    memory: Memory,
    /// A weight that was laid out anew.
    repacked: bool,
}

#[derive(Debug)]
struct Prepared {
    table: Arc<DispatchTable>,
    /// By `BufferId`.
    buffers: Vec<DeviceBuffer>,
    commands: Vec<Vec<Part>>,
}

/// A part of a command, a launch with its function.
#[derive(Clone, Debug)]
enum Part {
    Launch(Launch, Arc<Library>),
    Product(HalfProduct),
}

#[derive(Debug)]
pub struct EmulatedDevice {
    capabilities: Capabilities,
    buffers: Vec<Buffer>,
    allocated: u64,
    prepared: Vec<Prepared>,
    pass: Memory,
    scratch: Memory,
    stacks: Stacks,
    chip: Chip,
    backwards: bool,
    outcome: Outcome,
}

fn failed(message: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: NAME, message: message.into() }
}

fn memory(what: &str, bytes: u64) -> Result<Memory, DeviceError> {
    let out_of_memory = || DeviceError::OutOfMemory { device: NAME, what: what.into(), bytes };
    usize::try_from(bytes).ok().and_then(Memory::zeroed).ok_or_else(out_of_memory)
}

impl EmulatedDevice {
    pub fn new() -> Result<EmulatedDevice, DeviceError> {
        Ok(EmulatedDevice {
            capabilities: Capabilities {
                name: NAME,
                detail: "fibres on the host".into(),
                q8_activations: true,
                folds: true,
                half_products: None,
                unified_memory: false,
                samples: true,
                chain: 8,
                prefill_rows: 64,
                workspace_bytes: 0,
                available_bytes: None,
            },
            buffers: Vec::new(),
            allocated: 0,
            prepared: Vec::new(),
            pass: memory("a pass", Pass::BYTES as u64)?,
            scratch: memory("scratch", SCRATCH_BYTES)?,
            stacks: Stacks::new().ok_or_else(|| failed("no memory for stacks"))?,
            chip: CHIP,
            backwards: false,
            outcome: Outcome { steps: 0 },
        })
    }

    /// Groups, SIMD groups and lanes take their turns from the last to the first. Results must not depend on it.
    pub fn backwards(mut self) -> EmulatedDevice {
        self.backwards = true;
        self
    }

    /// With kernels for tensor cores, which the emulator has too.
    pub fn with_tensor_cores(mut self) -> EmulatedDevice {
        self.chip.tensor_cores = true;
        self.chip.shared_bytes = 200 << 10;
        self
    }

    /// With kernels whose copies go on by themselves, and as much threadgroup memory as chips have that do so.
    pub fn with_copies(mut self) -> EmulatedDevice {
        self.chip.copies = true;
        self.chip.shared_bytes = 200 << 10;
        self
    }

    pub fn chip(&self) -> &Chip {
        &self.chip
    }

    /// Which multiplies f16 itself, with plain loops.
    pub fn with_half_products(mut self, few: usize) -> EmulatedDevice {
        self.capabilities.half_products = Some(few);
        self
    }

    fn push(&mut self, memory: Memory) -> DeviceBuffer {
        self.buffers.push(Buffer { memory, repacked: false });
        DeviceBuffer(self.buffers.len() as u32 - 1)
    }

    fn range(&mut self, buffer: DeviceBuffer, offset: u64, len: usize) -> Result<&mut [u8], DeviceError> {
        let buffer = self.buffers.get_mut(buffer.0 as usize);
        let memory = &mut buffer.ok_or_else(|| failed("that buffer is not this device's"))?.memory;
        let (end, bytes) = (offset.saturating_add(len as u64), memory.bytes().len() as u64);
        let out_of_bounds = DeviceError::OutOfBounds { device: NAME, offset, end, bytes };
        let range = offset as usize..end as usize;
        memory.bytes_mut().get_mut(range).ok_or(out_of_bounds)
    }

    fn prepared(&self, replay: ReplayId) -> Result<&Prepared, DeviceError> {
        self.prepared.get(replay.0 as usize).ok_or_else(|| failed("that table was not prepared here"))
    }

    /// Where a binding is; `None` where the table has no such buffer, or a smaller one.
    fn place(&self, buffers: &[DeviceBuffer], id: BufferId, offset: u64) -> Option<*mut u8> {
        let memory = &self.buffers.get(buffers.get(id.index())?.0 as usize)?.memory;
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= memory.bytes().len())?;
        Some(memory.start().wrapping_add(offset))
    }

    fn run(
        &mut self,
        launch: &Launch,
        library: &Library,
        bound: &[*mut u8],
        mut params: [u8; 64],
    ) -> Result<(), DeviceError> {
        let own = [self.pass.start(), self.scratch.start(), params.as_mut_ptr()];
        let arguments: Vec<*mut u8> = bound.iter().copied().chain(own).collect();
        library.run(launch, &arguments, &mut self.stacks, self.backwards).map_err(failed)
    }

    /// Lays out anew what a command binds and nobody else has laid out before.
    fn repack(&mut self, command: &DispatchCommand, buffers: &[DeviceBuffer]) -> Result<(), DeviceError> {
        for weight in weights(command) {
            let Some(launch) = repack(&weight) else { continue };
            let binding = command.bindings()[weight.binding];
            let index = buffers[binding.buffer.index()].0 as usize;
            if self.buffers[index].repacked {
                continue;
            }
            let bytes = weight.bytes().filter(|_| binding.offset == 0);
            if bytes != Some(self.buffers[index].memory.bytes().len() as u64) {
                return Err(failed(format!("{weight:?} is not its whole buffer")));
            }
            let mut planes = memory("a weight", self.buffers[index].memory.bytes().len() as u64)?;
            planes.bytes_mut().fill(0xff);
            let bound = [self.buffers[index].memory.start(), planes.start()];
            let library = library(&launch.function).map_err(failed)?;
            self.run(&launch, &library, &bound, [0; 64])?;
            self.buffers[index] = Buffer { memory: planes, repacked: true };
        }
        Ok(())
    }

    fn begin(&mut self, replay: ReplayId, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let Prepared { table, buffers, .. } = self.prepared(replay)?;
        check_submission(NAME, table, submission)?;
        let (rows, asked) = (buffers[table.io.rows.index()], buffers[table.io.logit_rows.index()]);
        self.upload(rows, 0, bytemuck::cast_slice(submission.rows))?;
        self.upload(asked, 0, bytemuck::cast_slice(submission.logit_rows))?;
        let pass = Pass::new(submission.rows.len(), submission.logit_rows.len(), submission.stop);
        let pass = pass.ok_or_else(|| failed(format!("more than {} tokens to stop at", Pass::MAX_STOPS)))?;
        self.pass.bytes_mut().copy_from_slice(bytemuck::bytes_of(&pass));
        Ok(())
    }

    fn pass(&self) -> Pass {
        let mut pass = Pass::zeroed();
        bytemuck::bytes_of_mut(&mut pass).copy_from_slice(self.pass.bytes());
        pass
    }

    fn run_commands(&mut self, replay: ReplayId, first: usize, count: usize) -> Result<(), DeviceError> {
        for index in first..first + count {
            let prepared = &self.prepared[replay.0 as usize];
            let command = prepared.table.commands[index];
            let places = command.bindings().iter().map(|b| self.place(&prepared.buffers, b.buffer, b.offset));
            let places: Option<Vec<*mut u8>> = places.collect();
            let places = places.ok_or_else(|| failed(format!("command {index} binds what is not there")))?;
            let launches = prepared.commands[index].clone();
            let buffers =
                command.bindings().iter().map(|b| (prepared.buffers[b.buffer.index()], b.offset as usize));
            let bound: Vec<(DeviceBuffer, usize)> = buffers.collect();
            for part in &launches {
                match part {
                    Part::Launch(launch, library) => self.run(launch, library, &places, command.params)?,
                    Part::Product(product) => {
                        let out = multiply(product, &bound, |b| &self.buffers[b.0 as usize].memory);
                        let (buffer, offset) = bound[product.out];
                        self.range(buffer, offset as u64, out.len())?.copy_from_slice(&out);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Device for EmulatedDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&mut self, what: &str, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        let memory = memory(what, bytes)?;
        self.allocated += bytes;
        Ok(self.push(memory))
    }

    fn import(&mut self, region: &Region, offset: usize, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let from = part_of(NAME, region, offset, bytes)?;
        let buffer = self.allocate("a weight", bytes as u64)?;
        self.upload(buffer, 0, from)?;
        Ok(buffer)
    }

    fn upload(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.range(buffer, offset, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn download(&mut self, buffer: DeviceBuffer, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(self.range(buffer, offset, bytes.len())?);
        Ok(())
    }

    fn prepare(
        &mut self,
        table: &Arc<DispatchTable>,
        buffers: &[DeviceBuffer],
    ) -> Result<ReplayId, DeviceError> {
        let mut commands = Vec::with_capacity(table.commands.len());
        for command in &table.commands {
            let launches =
                launches(command, table, &self.chip).map_err(|missing| failed(missing.to_string()))?;
            let compiled = launches.into_iter().map(|work| match work {
                Work::Launch(launch) => {
                    let library = library(&launch.function).map_err(failed)?;
                    Ok(Part::Launch(launch, library))
                }
                Work::Product(product) => Ok(Part::Product(product)),
            });
            commands.push(compiled.collect::<Result<Vec<_>, DeviceError>>()?);
            self.repack(command, buffers)?;
        }
        self.prepared.push(Prepared { table: Arc::clone(table), buffers: buffers.to_vec(), commands });
        Ok(ReplayId(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, replay: ReplayId, submission: Submission<'_>) -> Result<(), DeviceError> {
        self.begin(replay, &submission)?;
        let count = self.prepared(replay)?.commands.len();
        let mut steps = 0;
        // A chain that stopped is not cut short here: its later steps have to do nothing by themselves.
        for _ in 0..submission.steps {
            if submission.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                break;
            }
            self.run_commands(replay, 0, count)?;
            steps += 1;
        }
        let counted = self.pass().step as usize;
        self.outcome = Outcome { steps: if counted > 0 { counted } else { steps } };
        Ok(())
    }

    fn wait(&mut self) -> Result<Outcome, DeviceError> {
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
        if !submission.rows.is_empty() {
            self.begin(replay, &submission)?;
        }
        self.run_commands(replay, first, count)
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated
    }
}
