//! The registry of backends: their names, detection, and how they are opened.

pub(crate) mod hosts;
mod ranks;

use std::str::FromStr;

pub use akunu_cpu::{
    Controller, Isa, IsaError, ceilings, control_groups, features, memory_limit, physical_cores,
    processor_limit,
};
use akunu_cpu::{CpuDevice, CpuOptions};
pub use akunu_fleet::hosts::{HostsError, Join, Secret, Timing};
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Capabilities, Device, DeviceError};

use crate::{BackendOptions, Error};
pub use hosts::{Hosts, Worker};

/// Which device runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best device of this machine: Metal or CUDA if a GPU is usable, else the CPU. [`crate::Engine::notes`] has the choice.
    #[default]
    Auto,
    Cpu,
    /// An NVIDIA card.
    #[cfg(not(target_vendor = "apple"))]
    Cuda,
    /// An Apple GPU.
    #[cfg(target_vendor = "apple")]
    Metal,
    /// Plain loops in f32 and f64: slow and simple, the reference for testing the others.
    Reference,
}

impl DeviceChoice {
    pub const ALL: &[DeviceChoice] = &[
        DeviceChoice::Auto,
        DeviceChoice::Cpu,
        #[cfg(not(target_vendor = "apple"))]
        DeviceChoice::Cuda,
        #[cfg(target_vendor = "apple")]
        DeviceChoice::Metal,
        DeviceChoice::Reference,
    ];

    pub fn name(self) -> &'static str {
        match self {
            DeviceChoice::Auto => "auto",
            DeviceChoice::Cpu => "cpu",
            #[cfg(not(target_vendor = "apple"))]
            DeviceChoice::Cuda => "cuda",
            #[cfg(target_vendor = "apple")]
            DeviceChoice::Metal => "metal",
            DeviceChoice::Reference => "reference",
        }
    }

    /// The device that `Auto` selects on this machine.
    pub fn resolve(self, backends: &BackendOptions) -> DeviceChoice {
        match self {
            DeviceChoice::Auto => gpu(backends).unwrap_or(DeviceChoice::Cpu),
            other => other,
        }
    }
}

/// A usable GPU: its libraries are complete.
fn gpu(backends: &BackendOptions) -> Option<DeviceChoice> {
    #[cfg(not(target_vendor = "apple"))]
    if akunu_cuda::probe(&backends.cuda.folders, 0).is_ok() {
        return Some(DeviceChoice::Cuda);
    }
    #[cfg(target_vendor = "apple")]
    if akunu_metal::probe(&backends.metal).is_ok() {
        return Some(DeviceChoice::Metal);
    }
    None
}

/// Why `Auto` does not select a GPU that exists: one of its libraries is missing.
pub fn unused_gpu(backends: &BackendOptions) -> Option<String> {
    #[cfg(not(target_vendor = "apple"))]
    if let Err(error) = akunu_cuda::probe(&backends.cuda.folders, 0) {
        return (!error.is_absence()).then(|| error.to_string());
    }
    #[cfg(target_vendor = "apple")]
    if let Err(error) = akunu_metal::probe(&backends.metal) {
        return (!error.is_absence()).then(|| error.to_string());
    }
    None
}

/// The state of GPUs, drivers and libraries on this machine, as (name, value).
pub fn gpu_facts(backends: &BackendOptions) -> Vec<(&'static str, String)> {
    #[cfg(not(target_vendor = "apple"))]
    return akunu_cuda::report(&backends.cuda.folders);
    #[cfg(target_vendor = "apple")]
    return akunu_metal::report(&backends.metal);
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<DeviceChoice, Error> {
        let mut all = DeviceChoice::ALL.iter().copied();
        all.find(|device| device.name() == name).ok_or_else(|| Error::UnknownDevice {
            name: name.to_string(),
            known: DeviceChoice::ALL.iter().map(|device| device.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

impl DeviceChoice {
    /// The numbers of its cards in a text as `0,1`.
    pub fn cards(self, text: &str) -> Result<Vec<u32>, String> {
        if self.name() != "cuda" {
            return Err(format!("only devices of cuda have numbers, not {self}"));
        }
        let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
        numbers.map_err(|_| "GPUs are numbers separated by commas, as in cuda:0,1".to_string())
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Why a device cannot be opened, as far as that shows without opening it.
pub fn check_device(choice: DeviceChoice, backends: &BackendOptions) -> Result<(), Error> {
    ranks::count(backends)?;
    match choice {
        #[cfg(not(target_vendor = "apple"))]
        DeviceChoice::Cuda => {
            // Of ranks in several processes, each looks at its own.
            let here = if backends.hosts.is_some() { 1 } else { ranks::count(backends)? };
            for card in ranks::cards(here, backends) {
                akunu_cuda::probe(&backends.cuda.folders, card).map_err(DeviceError::from)?;
            }
        }
        #[cfg(target_vendor = "apple")]
        DeviceChoice::Metal => akunu_metal::probe(&backends.metal).map_err(DeviceError::from)?,
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            backends.cpu_isa().map_err(DeviceError::from)?;
        }
        DeviceChoice::Reference => {}
    }
    Ok(())
}

/// Opens a device. `threads` is for devices that use CPU threads (`None`: one per physical core).
pub fn open_device(
    choice: DeviceChoice,
    threads: Option<usize>,
    backends: &BackendOptions,
) -> Result<Box<dyn Device>, Error> {
    if threads == Some(0) {
        return Err(Error::Setting { name: "threads", value: "0".into(), expected: "at least 1" });
    }
    let choice = choice.resolve(backends);
    let ranks = ranks::count(backends)?;
    if let Some(hosts) = &backends.hosts {
        return hosts::open(choice, hosts, threads, backends);
    }
    if ranks != 1 {
        let open = if backends.stages.is_some() { ranks::open_stages } else { ranks::open };
        return open(choice, ranks, threads, backends);
    }
    match choice {
        DeviceChoice::Reference => Ok(Box::new(ReferenceDevice::new())),
        #[cfg(not(target_vendor = "apple"))]
        DeviceChoice::Cuda => {
            let card = backends.cards.first().copied().unwrap_or(0);
            Ok(Box::new(akunu_cuda::open(backends.cuda.clone(), card)?))
        }
        #[cfg(target_vendor = "apple")]
        DeviceChoice::Metal => Ok(Box::new(akunu_metal::open(backends.metal.clone())?)),
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Box::new(cpu(threads, backends)?)),
    }
}

/// The capabilities of as many devices like one as the options say.
pub fn capabilities_of_all(one: Capabilities, backends: &BackendOptions) -> Result<Capabilities, Error> {
    let count = ranks::count(backends)?;
    match backends.stages {
        Some(_) if count > 1 => Ok(akunu_fleet::Hybrid::staged(vec![one; count])?),
        Some(_) => Ok(one),
        None => Ok(Capabilities { ranks: count, ..one }),
    }
}

/// The reference that a device is compared with, of as many ranks.
pub fn reference_for(capabilities: &Capabilities) -> Result<Box<dyn Device>, Error> {
    ranks::reference_for(capabilities)
}

pub(crate) fn cpu(threads: Option<usize>, backends: &BackendOptions) -> Result<CpuDevice, DeviceError> {
    CpuDevice::new(CpuOptions { threads, isa: Some(backends.cpu_isa()?), ..CpuOptions::default() })
}

/// The Metal device. `backends` says whether dispatch tables are encoded once, as indirect command buffers, or for every pass.
pub fn open_metal(
    choice: DeviceChoice,
    #[cfg_attr(not(target_vendor = "apple"), allow(unused_variables, reason = "nothing here has them"))]
    indirect: bool,
    backends: &BackendOptions,
) -> Result<Box<dyn Device>, Error> {
    match choice.resolve(backends) {
        #[cfg(target_vendor = "apple")]
        DeviceChoice::Metal => {
            let options = backends.metal.clone();
            Ok(Box::new(akunu_metal::open(akunu_metal::MetalOptions { indirect, ..options })?))
        }
        other => Err(Error::NotMetal { device: other.name() }),
    }
}
