//! The interface of a GPU that the device is built on, and the settings that differ between GPUs.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use akunu_format::Region;
use akunu_kernels::{Chip, Function, Gathering, Launch, LibraryProduct};
use akunu_plan::{Capabilities, DeviceError, DriverMemory};

use crate::{Commands, Encoder};

/// How tables are executed on a chip.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    pub chip: Chip,
    /// In addition to its own number of rows, a table is prepared for each of these lower numbers, ascending: with
    /// fewer rows it uses other kernels and smaller grids.
    pub row_counts: &'static [usize],
    /// Steps per command buffer: between command buffers the host checks whether the chain continues.
    pub part: usize,
    /// Tables are encoded when they are prepared, as indirect command buffers or graphs, and executed from there.
    pub indirect: bool,
    /// The first steps of the next chain, as predicted, are encoded while one runs. Of no use if a step is a single
    /// operation.
    pub ahead: bool,
    /// Commands run one at a time, with a wait after each, so that an error names the command that failed.
    pub checked: bool,
    /// Where repacked weights are placed.
    pub repack: Repack,
    /// The host's reads and writes are ordered after all earlier submissions. Otherwise the device waits for these
    /// first.
    pub queued_copies: bool,
}

/// The destination of repacked weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repack {
    /// New memory, and the old is released: one weight at a time exists twice.
    Elsewhere,
    /// In place, from a temporary copy: memory for the largest copy is allocated once and released at the end. Weights
    /// in a file mapping go to new memory nevertheless.
    Back,
}

/// What the device was doing when an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During<'a> {
    Table { table: &'a str },
    Command { label: &'a str, table: &'a str },
    Timing { table: &'a str },
}

/// A part of a file, within its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub region: &'a Region,
    pub offset: usize,
    pub len: usize,
}

impl<'a> Part<'a> {
    pub fn bytes(&self) -> &'a [u8] {
        &self.region.bytes()[self.offset..self.offset + self.len]
    }
}

/// Memory, compiled code, and one in-order queue of command buffers. Methods with a default body need no
/// implementation if host and GPU share memory.
pub trait Gpu: Debug {
    /// A handle; the memory is released with the last one.
    type Buffer: Clone + Debug;
    /// A handle.
    type Pipeline: Clone + Debug;
    /// A command buffer that is being encoded. It may be dropped instead of submitted; there is at most one at a time.
    type Commands: Commands<Pipeline = Self::Pipeline, Buffer = Self::Buffer, Indirect = Self::Indirect>
        + Debug;
    /// An indirect command buffer or a graph. It does not keep its buffers and pipelines alive.
    type Indirect: Encoder<Pipeline = Self::Pipeline, Buffer = Self::Buffer> + Debug;
    /// A submitted command buffer.
    type Pending: Debug;

    fn capabilities(&self) -> &Capabilities;

    fn tuning(&self) -> &Tuning;

    // Memory.

    /// Allocates zeroed memory; `what` is for error messages.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError>;

    /// Allocates memory that is written before it is read.
    fn allocate_unset(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError> {
        self.allocate(what, bytes)
    }

    /// Allocates zeroed memory for launch parameters, the last argument. It is host memory if launches take them by
    /// value.
    fn allocate_params(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError> {
        self.allocate(what, bytes)
    }

    /// Maps a part of a region, as a buffer and the part's offset in it. `None`: it must be copied.
    fn map(
        &mut self,
        _region: &Region,
        _offset: usize,
        _bytes: usize,
    ) -> Result<Option<(Self::Buffer, usize)>, DeviceError> {
        Ok(None)
    }

    /// How long a rank waits for the others in an exchange.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// The device no longer needs the buffer.
    fn release(&mut self, _buffer: Self::Buffer) {}

    /// Unless copies are queued ([`Tuning::queued_copies`]), no pending submission may use what is written.
    fn write(&mut self, buffer: &Self::Buffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// As [`Gpu::write`], but not ordered after earlier submissions: they do not use what is written.
    fn write_beside(
        &mut self,
        buffer: &Self::Buffer,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.write(buffer, offset, bytes)
    }

    /// As [`Gpu::write`].
    fn read(&mut self, buffer: &Self::Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Reads the first bytes of a buffer while command buffers run: words that the GPU is writing may have their old
    /// or new value.
    fn peek(&mut self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.read(buffer, 0, bytes)
    }

    /// Begins to write bytes of a file to the beginning of a buffer, which only what was submitted before the last
    /// [`Gpu::consumed`] uses.
    fn read_ahead(&mut self, buffer: &Self::Buffer, part: Part<'_>) -> Result<(), DeviceError> {
        self.write(buffer, 0, part.bytes())
    }

    /// Waits until what was read ahead to a buffer is there, so that later submissions read it.
    fn landed(&mut self, _buffer: &Self::Buffer) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Buffers that were read ahead to are not used by anything that is submitted from here on.
    fn consumed(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The writes of a submission before its first command buffer: rows, logit rows and the pass. Unless copies are
    /// queued, earlier submissions are over.
    fn send(&mut self, writes: [(&Self::Buffer, usize, &[u8]); 3]) -> Result<(), DeviceError> {
        let mut writes = writes.into_iter().filter(|(.., bytes)| !bytes.is_empty());
        writes.try_for_each(|(buffer, offset, bytes)| self.write(buffer, offset, bytes))
    }

    /// Announces the most bytes that a submission sends.
    fn reserve_sending(&mut self, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Starts to fetch the first `bytes` of a buffer ([`Gpu::fetched`]), as they are after all that was submitted so
    /// far.
    fn fetch(&mut self, _buffer: &Self::Buffer, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Waits for the last fetch. All earlier command buffers have been waited for.
    fn fetched(&mut self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.read(buffer, 0, bytes)
    }

    /// Copies from the beginning of one buffer to that of another, after all that was submitted.
    fn copy(&mut self, from: &Self::Buffer, to: &Self::Buffer, bytes: u64) -> Result<(), DeviceError>;

    /// The address at which the GPUs of other ranks find a buffer.
    fn address(&self, _buffer: &Self::Buffer) -> Result<u64, DeviceError> {
        let message = "it cannot be one of several ranks".into();
        Err(DeviceError::Failed { device: self.capabilities().name, message })
    }

    // Code.

    /// Functions whose pipelines will be asked for, so that they can be compiled beside other work. Compiling them must not
    /// be awaited.
    fn expect(&mut self, _functions: Vec<Function>) {}

    /// One pipeline per function, in order. Equal functions are compiled once.
    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Self::Pipeline>, DeviceError>;

    /// An f16 product as a pipeline, for the given bindings of its command; `None`: the GPU has no library for that.
    fn product(
        &mut self,
        _product: &LibraryProduct,
        _bindings: &[(Self::Buffer, usize)],
    ) -> Result<Option<Self::Pipeline>, DeviceError> {
        Ok(None)
    }

    /// An exchange of numbers with ranks in other processes as a pipeline, for the given bindings of its command, and the
    /// memory to which it gathers. All ranks ask for the same ones in the same order. `None`: the GPU has no library for
    /// that.
    fn gathering(
        &mut self,
        _gathering: &Gathering,
        _bindings: &[(Self::Buffer, usize)],
        _to: &(Self::Buffer, usize),
    ) -> Result<Option<Self::Pipeline>, DeviceError> {
        Ok(None)
    }

    /// The bytes of threadgroup memory with which a launch is encoded, if it is possible; at least as many as it
    /// requests.
    fn threadgroup_bytes(&mut self, _pipeline: &Self::Pipeline, launch: &Launch) -> Result<u32, DeviceError> {
        let (wanted, most) = (launch.shared_bytes, self.tuning().chip.shared_bytes);
        if wanted > most {
            let message =
                format!("{} wants {wanted} bytes of threadgroup memory of {most}", launch.function.name);
            return Err(DeviceError::Failed { device: self.capabilities().name, message });
        }
        // Metal's granularity.
        Ok(wanted.max(1).next_multiple_of(16))
    }

    // Running.

    /// Creates one for at most `dispatches` dispatches of at most `buffers` buffers each.
    fn indirect(&mut self, dispatches: usize, buffers: usize) -> Result<Self::Indirect, DeviceError>;

    /// Called once a table is completely encoded.
    fn seal(&mut self, _indirect: &mut Self::Indirect, _table: &str) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin(&mut self) -> Result<Self::Commands, DeviceError>;

    /// `followed`: it will be waited for while later submissions run. Otherwise it is over when all submissions are.
    fn submit(&mut self, commands: Self::Commands, followed: bool) -> Result<Self::Pending, DeviceError>;

    /// Waits, and returns the nanoseconds that the GPU took, if it measures them.
    fn finish(&mut self, pending: Self::Pending) -> Result<u64, DeviceError>;

    /// Executes an indirect command buffer and waits: `commands` are the dispatches of each command, and `ns` receives
    /// the time of each. `false`: the GPU has no own way to measure, and nothing was executed.
    fn time(
        &mut self,
        _indirect: &mut Self::Indirect,
        _commands: &[Range<usize>],
        _ns: &mut [u64],
    ) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Waits until nothing is pending, copies included, whether or not it failed. Called before the device releases
    /// memory.
    fn settle(&mut self) {}

    // For people.

    /// The prefix of an error's message.
    fn context(&self, during: During<'_>) -> String {
        match during {
            During::Table { table } => format!("running {table}"),
            During::Command { label, .. } => format!("running {label}"),
            During::Timing { table } => format!("timing {table}"),
        }
    }

    /// Memory that is allocated through a driver, if there is one.
    fn driver_memory(&self) -> Result<Option<DriverMemory>, DeviceError> {
        Ok(None)
    }
}
