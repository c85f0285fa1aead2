//! The one registry of backends: what exists, what it is called, how it is opened.

use std::str::FromStr;

use akunu_cpu::{CpuDevice, CpuOptions};
pub use akunu_cpu::{ceilings, physical_cores};
use akunu_plan::Device;
use akunu_plan::reference::ReferenceDevice;

use crate::Error;

/// Which device runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best that this machine has: the CPU, until there are others. [`crate::Engine::notes`] says which it was.
    #[default]
    Auto,
    Cpu,
    /// Plain loops in f32 and f64: slow, obvious, the oracle for the others.
    Reference,
}

impl DeviceChoice {
    pub const ALL: [DeviceChoice; 3] = [DeviceChoice::Auto, DeviceChoice::Cpu, DeviceChoice::Reference];

    pub fn name(self) -> &'static str {
        match self {
            DeviceChoice::Auto => "auto",
            DeviceChoice::Cpu => "cpu",
            DeviceChoice::Reference => "reference",
        }
    }

    /// What `Auto` stands for on this machine.
    pub fn resolve(self) -> DeviceChoice {
        match self {
            DeviceChoice::Auto => DeviceChoice::Cpu,
            other => other,
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<DeviceChoice, Error> {
        DeviceChoice::ALL.into_iter().find(|d| d.name() == name).ok_or_else(|| Error::UnknownDevice {
            name: name.to_string(),
            known: DeviceChoice::ALL.map(DeviceChoice::name).join(", "),
        })
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Opens a device; `threads` is for those that use host threads (`None`: one for each physical core).
pub fn open_device(choice: DeviceChoice, threads: Option<usize>) -> Result<Box<dyn Device>, Error> {
    if threads == Some(0) {
        return Err(Error::Setting { name: "threads", value: "0".into(), expected: "at least 1" });
    }
    match choice.resolve() {
        DeviceChoice::Reference => Ok(Box::new(ReferenceDevice::new())),
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            Ok(Box::new(CpuDevice::new(CpuOptions { threads, isa: None })?))
        }
    }
}
