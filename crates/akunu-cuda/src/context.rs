//! A card, and the process's context on it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::rc::Rc;

use crate::CudaError;
use crate::driver::{
    DEVICE_L2_BYTES, DEVICE_MAJOR, DEVICE_MINOR, DEVICE_PROCESSORS, DEVICE_SHARED_BYTES, Driver, Handle, call,
};
use crate::error::PEER_ACCESS_ALREADY_ENABLED;

/// The properties of a card.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    pub name: String,
    /// (9, 0) is Hopper.
    pub compute: (i32, i32),
    pub processors: u32,
    pub memory_bytes: u64,
    pub l2_bytes: u64,
    /// The most shared memory of a thread block.
    pub shared_bytes: u32,
    ordinal: c_int,
}

impl Card {
    pub(crate) fn find(driver: &Driver, number: i32) -> Result<Card, CudaError> {
        let mut ordinal = 0;
        let mut name = [0 as c_char; 128];
        let mut memory = 0;
        // SAFETY: each call writes one value to the given place; the name is truncated to the given length, NUL
        // included.
        let name = unsafe {
            call!(driver, cuDeviceGet(&mut ordinal, number))?;
            call!(driver, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, ordinal))?;
            call!(driver, cuDeviceTotalMem(&mut memory, ordinal))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        let attribute = |attribute| -> Result<c_int, CudaError> {
            let mut value = 0;
            // SAFETY: the call writes one number to `value`.
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

/// The primary context of a card, current on the thread that created it. All objects in it hold a reference to it.
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
        // SAFETY: the ordinal is that of an existing card; the context is released when this value is dropped.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&mut context, card.ordinal))? };
        let made = Rc::new(Context { driver, card, requests: Cell::new(0) });
        // SAFETY: the context was just retained.
        unsafe { call!(driver, cuCtxSetCurrent(context))? };
        Ok(made)
    }

    /// Makes the memory of other cards readable and writable for kernels of this one. Their contexts stay retained while the
    /// process runs.
    pub(crate) fn see(&self, peers: &[u32]) -> Result<(), CudaError> {
        let cards = self.driver.cards()?.unsigned_abs();
        for &number in peers {
            if number >= cards {
                return Err(CudaError::UnknownCard { number, cards });
            }
            let (mut ordinal, mut can) = (0, 0);
            // SAFETY: each call writes one number to the given place.
            unsafe {
                call!(self.driver, cuDeviceGet(&mut ordinal, number as c_int))?;
                if ordinal == self.card.ordinal {
                    continue;
                }
                call!(self.driver, cuDeviceCanAccessPeer(&mut can, self.card.ordinal, ordinal))?;
            }
            if can == 0 {
                return Err(CudaError::NoPeerAccess { card: self.card.ordinal, peer: number });
            }
            let mut peer: Handle = std::ptr::null_mut();
            // SAFETY: the ordinal is that of an existing card, whose context is never released.
            let enabled = unsafe {
                call!(self.driver, cuDevicePrimaryCtxRetain(&mut peer, ordinal))?;
                call!(self.driver, cuCtxEnablePeerAccess(peer, 0))
            };
            match enabled {
                Err(CudaError::Call { code: PEER_ACCESS_ALREADY_ENABLED, .. }) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Whether programmatic dependent launch is supported, also in graphs: the next kernel starts before the previous
    /// one ends.
    pub(crate) fn links_launches(&self) -> Result<bool, CudaError> {
        Ok(self.card.compute >= (9, 0) && self.driver.version()? >= (12, 3))
    }

    /// Must be called wherever the driver is asked for memory, or for something that allocates some.
    pub(crate) fn note_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Bytes of the card's memory that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes one number to each of the two places.
        unsafe { call!(self.driver, cuMemGetInfo(&mut free, &mut total))? };
        Ok(free as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained once; all objects in it held a reference to this value, so they are gone.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease)(self.card.ordinal) };
    }
}
