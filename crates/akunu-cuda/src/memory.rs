//! Memory of the card, and memory of the host that the card reads and writes by itself.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::CudaError;
use crate::context::Context;
use crate::driver::{Address, call};

/// On the card. Nothing is said about what is in it.
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
        // SAFETY: it writes an address; none of no bytes is given.
        unsafe { call!(context.driver, cuMemAlloc(&mut address, bytes.max(1) as usize))? };
        Ok(Memory { context: Rc::clone(context), address, bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated once; the driver waits for work that uses it.
        unsafe { (self.context.driver.cuMemFree)(self.address) };
    }
}

/// On the host, page-locked: copies to and from it run beside everything else.
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
        // SAFETY: it writes an address; none of no bytes is given.
        unsafe { call!(context.driver, cuMemAllocHost(&mut start, bytes.max(1)))? };
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            let (code, name) = (crate::error::OUT_OF_MEMORY, "no memory".to_string());
            return Err(CudaError::Call { call: "cuMemAllocHost", code, name, message: "null".into() });
        };
        // SAFETY: as many bytes were just allocated.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { context: Rc::clone(context), start, bytes })
    }

    /// Nothing that the card was asked to do with it may be on its way.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: written when allocated, and for as long as this lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// As [`Pinned::bytes`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else on the host has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated once; the device waits for its stream before it goes.
        unsafe { (self.context.driver.cuMemFreeHost)(self.start.as_ptr().cast()) };
    }
}
