//! A card, and this process's context on it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::rc::Rc;

use crate::CudaError;
use crate::driver::{
    DEVICE_L2_BYTES, DEVICE_MAJOR, DEVICE_MINOR, DEVICE_PROCESSORS, DEVICE_SHARED_BYTES, Driver, Handle, call,
};

/// What a card says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    pub name: String,
    /// (9, 0) is Hopper.
    pub compute: (i32, i32),
    pub processors: u32,
    pub memory_bytes: u64,
    pub l2_bytes: u64,
    /// That one group may have.
    pub shared_bytes: u32,
    ordinal: c_int,
}

impl Card {
    pub(crate) fn find(driver: &Driver, number: i32) -> Result<Card, CudaError> {
        let mut ordinal = 0;
        let mut name = [0 as c_char; 128];
        let mut memory = 0;
        // SAFETY: each writes one value; the name is cut to the length given, its zero included.
        let name = unsafe {
            call!(driver, cuDeviceGet(&mut ordinal, number))?;
            call!(driver, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, ordinal))?;
            call!(driver, cuDeviceTotalMem(&mut memory, ordinal))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        let attribute = |attribute| -> Result<c_int, CudaError> {
            let mut value = 0;
            // SAFETY: it writes one number.
            unsafe { call!(driver, cuDeviceGetAttribute(&mut value, attribute, ordinal))? };
            Ok(value)
        };
        Ok(Card {
            name,
            compute: (attribute(DEVICE_MAJOR)?, attribute(DEVICE_MINOR)?),
            processors: attribute(DEVICE_PROCESSORS)?.unsigned_abs(),
            memory_bytes: memory as u64,
            l2_bytes: u64::from(attribute(DEVICE_L2_BYTES)?.unsigned_abs()),
            shared_bytes: attribute(DEVICE_SHARED_BYTES)?.unsigned_abs(),
            ordinal,
        })
    }
}

/// The primary context of a card, current on the thread that made it. Whatever lives in it holds it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    pub(crate) card: Card,
    /// As of [`akunu_plan::DriverMemory`].
    requests: Cell<u64>,
}

impl Context {
    pub(crate) fn new(driver: &'static Driver, card: Card) -> Result<Rc<Context>, CudaError> {
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: the card is there; the context is released when this is dropped.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&mut context, card.ordinal))? };
        let made = Rc::new(Context { driver, card, requests: Cell::new(0) });
        // SAFETY: a context that was just retained.
        unsafe { call!(driver, cuCtxSetCurrent(context))? };
        Ok(made)
    }

    /// Whether launches can be linked, in graphs too: the next kernel starts before the last one has ended.
    pub(crate) fn links_launches(&self) -> Result<bool, CudaError> {
        Ok(self.card.compute >= (9, 0) && self.driver.version()? >= (12, 3))
    }

    /// To be called wherever the driver is asked for memory, or for what takes some.
    pub(crate) fn note_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Bytes of the card's memory that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two numbers.
        unsafe { call!(self.driver, cuMemGetInfo(&mut free, &mut total))? };
        Ok(free as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once; everything in it held it, and is gone.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease)(self.card.ordinal) };
    }
}
