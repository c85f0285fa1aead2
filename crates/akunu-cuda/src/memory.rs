//! Device memory, and page-locked host memory that the card accesses directly.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::CudaError;
use crate::context::Context;
use crate::driver::{Address, call};

/// Device memory with unspecified contents.
#[derive(Debug)]
pub(crate) struct Memory {
    context: Rc<Context>,
    pub(crate) address: Address,
    pub(crate) bytes: u64,
}

impl Memory {
    pub(crate) fn new(context: &Rc<Context>, bytes: u64) -> Result<Memory, CudaError> {
        let mut address = 0;
        context.note_request();
        // SAFETY: the call writes an address; the size is not 0.
        unsafe { call!(context.driver, cuMemAlloc(&mut address, bytes.max(1) as usize))? };
        Ok(Memory { context: Rc::clone(context), address, bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated once and freed once; `cuMemFree` waits for work that uses it.
        unsafe { (self.context.driver.cuMemFree)(self.address) };
    }
}

/// Page-locked host memory: copies to and from it are asynchronous.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Rc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

impl Pinned {
    /// Zeroed.
    pub(crate) fn new(context: &Rc<Context>, bytes: usize) -> Result<Pinned, CudaError> {
        let mut start: *mut c_void = std::ptr::null_mut();
        context.note_request();
        // SAFETY: the call writes an address; the size is not 0.
        unsafe { call!(context.driver, cuMemAllocHost(&mut start, bytes.max(1)))? };
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            let (code, name) = (crate::error::OUT_OF_MEMORY, "no memory".to_string());
            return Err(CudaError::Call { call: "cuMemAllocHost", code, name, message: "null".into() });
        };
        // SAFETY: `bytes` were just allocated at `start`.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { context: Rc::clone(context), start, bytes })
    }

    /// No pending operation of the card may write it.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size and initialised, and valid as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// As [`Pinned::bytes`]; no pending operation of the card may read it either.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference on the host.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once and freed once; the device synchronises its stream before.
        unsafe { (self.context.driver.cuMemFreeHost)(self.start.as_ptr().cast()) };
    }
}
