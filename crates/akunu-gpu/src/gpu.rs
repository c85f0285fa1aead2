//! What the device stands on: a GPU's own interface behind a trait, and the choices that differ between GPUs.

use std::fmt::Debug;
use std::ops::Range;

use akunu_format::Region;
use akunu_kernels::{Chip, Function, HalfProduct, Launch};
use akunu_plan::{Capabilities, DeviceError, DriverMemory};

use crate::{Commands, Encoder};

/// How tables are run on a chip.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    pub chip: Chip,
    /// A table is prepared for each of these numbers of rows below its own as well, ascending: fewer rows have other kernels and smaller grids.
    pub row_counts: &'static [usize],
    /// Steps of a command buffer: between two of them the host looks whether a chain goes on.
    pub part: usize,
    /// Tables are encoded when they are prepared, as indirect command buffers or graphs, and run from there.
    pub indirect: bool,
    /// The first steps of the chain that is likely to follow are encoded while one runs. Where a step is one word, that gains nothing.
    pub ahead: bool,
    /// Commands run one by one, each waited for, so that an error names the one that failed.
    pub checked: bool,
    /// Where weights are laid out in planes.
    pub repack: Repack,
    /// The host's reads and writes take their turn behind what was submitted. Otherwise that is waited for first.
    pub queued_copies: bool,
}

/// Where a weight goes when its blocks are laid out in planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repack {
    /// To new memory, and the old is released: one weight at a time is held twice.
    Elsewhere,
    /// Back to where it is, from a copy: memory for the largest copy is taken once, and given back at the end. Weights in a file's mapping go
    /// elsewhere all the same.
    Back,
}

/// What the device was doing when an error came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During<'a> {
    Table { table: &'a str },
    Command { label: &'a str, table: &'a str },
    Timing { table: &'a str },
}

/// Memory, code for the GPU, and one queue of command buffers, which run in their order. What has a body here may stay as it is where host and
/// GPU share memory.
pub trait Gpu: Debug {
    /// A handle; the memory goes with the last one.
    type Buffer: Clone + Debug;
    /// A handle.
    type Pipeline: Clone + Debug;
    /// A command buffer that is being written. It may be dropped instead of submitted; there is one at a time.
    type Commands: Commands<Pipeline = Self::Pipeline, Buffer = Self::Buffer, Indirect = Self::Indirect>
        + Debug;
    /// An indirect command buffer or a graph. It keeps none of what it is told alive.
    type Indirect: Encoder<Pipeline = Self::Pipeline, Buffer = Self::Buffer> + Debug;
    /// One that was submitted.
    type Pending: Debug;

    fn capabilities(&self) -> &Capabilities;

    fn tuning(&self) -> &Tuning;

    // Memory.

    /// Zeroed memory; `what` is for people.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError>;

    /// Memory that is written before it is read.
    fn allocate_unset(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError> {
        self.allocate(what, bytes)
    }

    /// Zeroed memory for launches' parameters, which is bound last. It is the host's where launches take parameters by value.
    fn allocate_params(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError> {
        self.allocate(what, bytes)
    }

    /// A part of a region where it is, as a buffer and the part's offset there. `None`: it has to be copied.
    fn map(
        &mut self,
        _region: &Region,
        _offset: usize,
        _bytes: usize,
    ) -> Result<Option<(Self::Buffer, usize)>, DeviceError> {
        Ok(None)
    }

    /// The device needs it no more.
    fn release(&mut self, _buffer: Self::Buffer) {}

    /// Unless copies are queued ([`Tuning::queued_copies`]), nothing that was submitted may be using what is written.
    fn write(&mut self, buffer: &Self::Buffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// As [`Gpu::write`].
    fn read(&mut self, buffer: &Self::Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// The first bytes of a buffer while command buffers run: words that the GPU is writing are read as they were or as they will be.
    fn peek(&mut self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.read(buffer, 0, bytes)
    }

    /// What a submission writes before its first command buffer: rows, logit rows and the pass. All before it has ended.
    fn send(&mut self, writes: [(&Self::Buffer, usize, &[u8]); 3]) -> Result<(), DeviceError> {
        let mut writes = writes.into_iter().filter(|(.., bytes)| !bytes.is_empty());
        writes.try_for_each(|(buffer, offset, bytes)| self.write(buffer, offset, bytes))
    }

    /// Submissions will send as many bytes as this.
    fn reserve_sending(&mut self, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The first `bytes` of a buffer will be wanted ([`Gpu::fetched`]), as they are when what was submitted so far has ended.
    fn fetch(&mut self, _buffer: &Self::Buffer, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Waits for what was fetched last. All command buffers before it have been waited for.
    fn fetched(&mut self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.read(buffer, 0, bytes)
    }

    /// From the beginning of one buffer to that of another, behind what was submitted.
    fn copy(&mut self, from: &Self::Buffer, to: &Self::Buffer, bytes: u64) -> Result<(), DeviceError>;

    // Code.

    /// One for each function, in their order. Equal functions are compiled once.
    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Self::Pipeline>, DeviceError>;

    /// A product of f16 as if it were a kernel, for bindings of its command's; `None`: the GPU has no library for that.
    fn product(
        &mut self,
        _product: &HalfProduct,
        _bindings: &[(Self::Buffer, usize)],
    ) -> Result<Option<Self::Pipeline>, DeviceError> {
        Ok(None)
    }

    /// With how many bytes of threadgroup memory a launch is encoded, if it can be. At least as many as it wants.
    fn threadgroup_bytes(&mut self, _pipeline: &Self::Pipeline, launch: &Launch) -> Result<u32, DeviceError> {
        let (wanted, most) = (launch.shared_bytes, self.tuning().chip.shared_bytes);
        if wanted > most {
            let message =
                format!("{} wants {wanted} bytes of threadgroup memory of {most}", launch.function.name);
            return Err(DeviceError::Failed { device: self.capabilities().name, message });
        }
        // What Metal takes.
        Ok(wanted.max(1).next_multiple_of(16))
    }

    // Running.

    /// For so many dispatches, each of so many buffers or fewer.
    fn indirect(&mut self, dispatches: usize, buffers: usize) -> Result<Self::Indirect, DeviceError>;

    /// All of a table is encoded.
    fn seal(&mut self, _indirect: &mut Self::Indirect, _table: &str) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin(&mut self) -> Result<Self::Commands, DeviceError>;

    /// `followed`: it will be waited for while others that are submitted later run. What is not followed ends with all that is submitted.
    fn submit(&mut self, commands: Self::Commands, followed: bool) -> Result<Self::Pending, DeviceError>;

    /// Waits, and tells how many nanoseconds the GPU took, where it counts them.
    fn finish(&mut self, pending: Self::Pending) -> Result<u64, DeviceError>;

    /// Runs what was encoded once, and waits: `commands` are the dispatches of each command, and `ns` becomes how long each took. `false`: the GPU
    /// has no way of its own, and nothing was run.
    fn time(
        &mut self,
        _indirect: &mut Self::Indirect,
        _commands: &[Range<usize>],
        _ns: &mut [u64],
    ) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits until nothing is on its way, copies included, whatever became of it. The device calls it before it lets go of memory.
    fn settle(&mut self) {}

    // For people.

    /// What stands before an error's message.
    fn context(&self, during: During<'_>) -> String {
        match during {
            During::Table { table } => format!("running {table}"),
            During::Command { label, .. } => format!("running {label}"),
            During::Timing { table } => format!("timing {table}"),
        }
    }

    /// What is taken through a driver, where there is one.
    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        Ok(None)
    }
}
