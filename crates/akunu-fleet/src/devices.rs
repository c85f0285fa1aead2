//! Devices that take turns: on the thread that uses them, or each on one of its own, as drivers of GPUs want it.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;

use akunu_plan::{Device, DeviceError};

use crate::crew::{Crew, Open};

#[derive(Debug)]
pub(crate) struct Devices {
    here: Vec<Box<dyn Device>>,
    /// The others, with their own threads.
    crew: RefCell<Crew>,
}

impl Devices {
    /// Devices that this thread has opened.
    pub(crate) fn here(here: Vec<Box<dyn Device>>) -> Devices {
        Devices { here, crew: RefCell::new(Crew::none()) }
    }

    /// Opens so many devices, the first one here.
    pub(crate) fn open(count: usize, open: &Arc<Open>) -> Result<Devices, DeviceError> {
        let (crew, first) = Crew::start(count, open)?;
        Ok(Devices { here: vec![first], crew: RefCell::new(crew) })
    }

    /// Calls `work` with one of the devices. A panic there continues here.
    pub(crate) fn on<T: Send>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut dyn Device) -> Result<T, DeviceError> + Send,
    ) -> Result<T, DeviceError> {
        match self.here.get_mut(index) {
            Some(device) => work(&mut **device),
            None => self.away(index, work),
        }
    }

    /// The same, without changing it.
    pub(crate) fn look<T: Send>(
        &self,
        index: usize,
        look: impl FnOnce(&dyn Device) -> Result<T, DeviceError> + Send,
    ) -> Result<T, DeviceError> {
        match self.here.get(index) {
            Some(device) => look(&**device),
            None => self.away(index, |device| look(device)),
        }
    }

    fn away<T: Send>(
        &self,
        index: usize,
        work: impl FnOnce(&mut dyn Device) -> Result<T, DeviceError> + Send,
    ) -> Result<T, DeviceError> {
        let rank = index - self.here.len() + 1;
        let done = self.crew.borrow_mut().run_on(rank, work);
        done.unwrap_or_else(|| resume_unwind(Box::new("a device panicked")))
    }
}
