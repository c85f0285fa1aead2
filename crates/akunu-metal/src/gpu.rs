//! What the device stands on: Metal itself, the emulator, or paper.

use std::fmt::Debug;

use akunu_format::Region;
use akunu_kernels::{Chip, Function, HalfProduct};
use akunu_plan::{Capabilities, DeviceError};

use crate::{Commands, Encoder};

/// How tables are run on a chip.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    pub chip: Chip,
    /// A table is prepared for each of these numbers of rows below its own as well, ascending: fewer rows have other kernels and smaller grids.
    pub row_counts: &'static [usize],
    /// Steps of a command buffer: between two of them the host looks whether a chain goes on.
    pub part: usize,
    /// Tables are encoded when they are prepared, as indirect command buffers, and run from there.
    pub indirect: bool,
    /// Commands run one by one, each waited for, so that an error names the one that failed.
    pub checked: bool,
}

/// Memory that host and GPU share, code for the GPU, and one queue of command buffers, which run in their order.
pub trait Gpu: Debug {
    /// A handle; the memory goes with the last one.
    type Buffer: Clone + Debug;
    /// A handle.
    type Pipeline: Clone + Debug;
    /// A command buffer that is being written. It may be dropped instead of submitted; there is one at a time.
    type Commands: Commands<Pipeline = Self::Pipeline, Buffer = Self::Buffer, Indirect = Self::Indirect>
        + Debug;
    /// An indirect command buffer. It keeps none of what it is told alive.
    type Indirect: Encoder<Pipeline = Self::Pipeline, Buffer = Self::Buffer> + Debug;
    /// One that was submitted.
    type Pending: Debug;

    fn capabilities(&self) -> &Capabilities;

    fn tuning(&self) -> &Tuning;

    /// Zeroed memory; `what` is for people.
    fn allocate(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError>;

    /// Memory that is written before it is read.
    fn allocate_unset(&mut self, what: &str, bytes: u64) -> Result<Self::Buffer, DeviceError> {
        self.allocate(what, bytes)
    }

    /// A part of a region where it is, as a buffer and the part's offset there. `None`: it has to be copied.
    fn map(
        &mut self,
        region: &Region,
        offset: usize,
        bytes: usize,
    ) -> Result<Option<(Self::Buffer, usize)>, DeviceError>;

    /// The device needs it no more.
    fn release(&mut self, _buffer: Self::Buffer) {}

    /// Nothing that was submitted may be using what is read or written.
    fn write(&mut self, buffer: &Self::Buffer, offset: usize, bytes: &[u8]);

    /// As [`Gpu::write`]; but a word that the GPU is writing may be read, as it was or as it will be.
    fn read(&self, buffer: &Self::Buffer, offset: usize, bytes: &mut [u8]);

    /// One for each function, in their order. Equal functions are compiled once.
    fn pipelines(&mut self, functions: &[&Function]) -> Result<Vec<Self::Pipeline>, DeviceError>;

    /// A product of f16 as if it were a kernel, whose arguments are its command's bindings; `None`: the GPU has no library for that.
    fn product(&mut self, product: &HalfProduct) -> Option<Self::Pipeline>;

    /// For so many dispatches, each of so many buffers or fewer.
    fn indirect(&mut self, dispatches: usize, buffers: usize) -> Result<Self::Indirect, DeviceError>;

    fn begin(&mut self) -> Result<Self::Commands, DeviceError>;

    fn submit(&mut self, commands: Self::Commands) -> Result<Self::Pending, DeviceError>;

    /// Waits, and tells how many nanoseconds the GPU took.
    fn finish(&mut self, pending: Self::Pending) -> Result<u64, DeviceError>;
}
