//! A device's buffers, and the memory that all kernels share.

use akunu_kernels::{Pass, SCRATCH_BYTES, Weight};
use akunu_plan::device::{check_bytes, index_of};
use akunu_plan::table::PARAM_BYTES;
use akunu_plan::{BufferId, DeviceBuffer, DeviceError};

use crate::Gpu;

/// A buffer of a device.
#[derive(Debug)]
pub(crate) struct Buffer<B> {
    pub(crate) handle: B,
    pub(crate) offset: usize,
    pub(crate) bytes: u64,
    /// A model's mapped file, which must not be written.
    pub(crate) imported: bool,
    /// Whether it is memory of its own and not part of a file mapping.
    pub(crate) owned: bool,
    /// The matrix whose planes it holds, if it was repacked.
    pub(crate) planes: Option<Weight>,
}

/// The arguments that follow the bindings of every kernel.
#[derive(Debug)]
pub(crate) struct Own<B> {
    pub(crate) pass: B,
    pub(crate) scratch: B,
    /// The parameter buffer of launches without parameters.
    pub(crate) no_params: B,
}

impl<B> Own<B> {
    /// `beside`: bytes that follow the scratch memory.
    pub(crate) fn on<G: Gpu<Buffer = B>>(gpu: &mut G, beside: u64) -> Result<Own<B>, DeviceError> {
        Ok(Own {
            pass: gpu.allocate("pass", Pass::BYTES as u64)?,
            scratch: gpu.allocate("scratch", SCRATCH_BYTES + beside)?,
            no_params: gpu.allocate_params("no parameters", PARAM_BYTES as u64)?,
        })
    }
}

/// A device's buffers, and the mapping of a table's ids to them.
#[derive(Debug)]
pub(crate) struct Buffers<'a, B> {
    pub(crate) all: &'a [Buffer<B>],
    pub(crate) ids: &'a [DeviceBuffer],
}

pub(crate) type Place<B> = (B, usize);

impl<B: Clone> Buffers<'_, B> {
    pub(crate) fn index<G: Gpu<Buffer = B>>(&self, gpu: &G, id: BufferId) -> Result<usize, DeviceError> {
        index_of(gpu.capabilities().name, self.ids, self.all.len(), id)
    }

    /// The location of `bytes` at `offset` of a buffer; checks the extent.
    pub(crate) fn place<G>(
        &self,
        gpu: &G,
        id: BufferId,
        offset: u64,
        bytes: u64,
    ) -> Result<Place<B>, DeviceError>
    where
        G: Gpu<Buffer = B>,
    {
        let buffer = &self.all[self.index(gpu, id)?];
        check_bytes(gpu.capabilities().name, offset, bytes, buffer.bytes)?;
        Ok((buffer.handle.clone(), buffer.offset + offset as usize))
    }
}

pub(crate) fn failed<G: Gpu>(gpu: &G, message: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: gpu.capabilities().name, message: message.into() }
}

/// The same error, with what was being done.
pub(crate) fn during(what: &str, error: DeviceError) -> DeviceError {
    match error {
        DeviceError::Failed { device, message } => {
            DeviceError::Failed { device, message: format!("{what}: {message}") }
        }
        other => other,
    }
}
