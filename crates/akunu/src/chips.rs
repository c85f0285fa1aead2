//! Chips that a model can be planned for without having them.
//!
//! A plan depends on a device's [`Capabilities`] only. Each backend derives them in one function from the properties of a
//! chip, which come from the driver or from a table of known chips. So a plan made here equals that made on the chip itself.

use std::fmt;
use std::str::FromStr;

use akunu_cpu::Isa;
use akunu_cuda::CudaChip;
use akunu_metal::MetalChip;
use akunu_plan::Device;
use akunu_plan::reference::ReferenceDevice;

use crate::{Capabilities, Error};

/// Default threads of a CPU: a common number of cores.
const CPU_THREADS: usize = 8;

/// A chip to plan for. Written as the name of a backend, for its default chip, or as backend and chip with a colon:
/// `cuda`, `metal:m3-max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChipChoice {
    /// A CPU with an instruction set: AVX2 by default.
    Cpu(Isa),
    /// An NVIDIA GPU: an H200 with cuBLASLt by default.
    Cuda(&'static CudaChip),
    /// An Apple GPU and the name of its chip: that of an M1 by default.
    Metal(&'static str, MetalChip),
    /// The reference device, which is the same on every machine.
    Reference,
}

/// Names of a backend's chips, its default first.
fn backends() -> [(&'static str, Vec<ChipChoice>); 4] {
    let mut sets = vec![Isa::Avx2];
    sets.extend(Isa::ALL.into_iter().filter(|&isa| isa != Isa::Avx2));
    [
        ("cpu", sets.into_iter().map(ChipChoice::Cpu).collect()),
        ("cuda", akunu_cuda::CHIPS.iter().map(ChipChoice::Cuda).collect()),
        ("metal", akunu_metal::CHIPS.iter().map(|&(name, chip)| ChipChoice::Metal(name, chip)).collect()),
        ("reference", vec![ChipChoice::Reference]),
    ]
}

impl ChipChoice {
    /// All known chips, grouped by backend, with the backend's default first.
    pub fn all() -> Vec<ChipChoice> {
        backends().into_iter().flat_map(|(_, chips)| chips).collect()
    }

    /// All names, for messages: `cpu[:avx2|scalar|…], cuda[:h200|…], …`. The default chip of a backend comes first.
    pub fn names() -> String {
        let of = |(backend, chips): (&str, Vec<ChipChoice>)| {
            let names: Vec<&str> = chips.iter().filter_map(|chip| chip.chip_name()).collect();
            if names.is_empty() { backend.to_string() } else { format!("{backend}[:{}]", names.join("|")) }
        };
        backends().map(of).join(", ")
    }

    /// The part of its name after the colon.
    fn chip_name(self) -> Option<&'static str> {
        match self {
            ChipChoice::Cpu(isa) => Some(isa.name()),
            ChipChoice::Cuda(chip) => Some(chip.name),
            ChipChoice::Metal(name, _) => Some(name),
            ChipChoice::Reference => None,
        }
    }

    /// The capabilities of a device with this chip. `threads` is for a CPU, by default 8. The available memory is unknown.
    pub fn capabilities(self, threads: Option<usize>) -> Capabilities {
        match self {
            ChipChoice::Cpu(isa) => akunu_cpu::capabilities(isa, threads.unwrap_or(CPU_THREADS)),
            ChipChoice::Cuda(chip) => chip.capabilities(),
            ChipChoice::Metal(name, chip) => chip.capabilities(format!("{name}, {}", chip.describe())),
            ChipChoice::Reference => ReferenceDevice::new().capabilities().clone(),
        }
    }
}

impl FromStr for ChipChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<ChipChoice, Error> {
        let (backend, chip) = match text.split_once(':') {
            Some((backend, chip)) => (backend, Some(chip)),
            None => (text, None),
        };
        let chips = backends().into_iter().find(|(name, _)| *name == backend);
        let mut chips = chips.map(|(_, chips)| chips).unwrap_or_default().into_iter();
        let found = match chip {
            None => chips.next(),
            Some(name) => chips.find(|chip| chip.chip_name() == Some(name)),
        };
        found.ok_or_else(|| Error::UnknownChip { name: text.to_string(), known: ChipChoice::names() })
    }
}

impl fmt::Display for ChipChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend = match self {
            ChipChoice::Cpu(_) => "cpu",
            ChipChoice::Cuda(_) => "cuda",
            ChipChoice::Metal(..) => "metal",
            ChipChoice::Reference => return f.pad("reference"),
        };
        f.pad(&format!("{backend}:{}", self.chip_name().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_found_by_name_and_backends_have_a_default_chip() {
        for chip in ChipChoice::all() {
            assert_eq!(chip.to_string().parse::<ChipChoice>().unwrap(), chip);
        }
        for (name, chip) in
            [("cpu", "cpu:avx2"), ("cuda", "cuda:h200"), ("metal", "metal:m1"), ("reference", "reference")]
        {
            assert_eq!(name.parse::<ChipChoice>().unwrap().to_string(), chip);
        }
    }

    #[test]
    fn unknown_chips_are_refused_with_all_names() {
        for name in ["", "rocm", "metal:m9", "cuda:", "reference:x", ":h200", "cpu:avx2 "] {
            let refused = name.parse::<ChipChoice>().unwrap_err().to_string();
            assert!(refused.contains(&format!("\"{name}\"")), "{refused}");
            for known in ["avx512", "cuda[:h200", "m3-max", "reference"] {
                assert!(refused.contains(known), "{refused}");
            }
        }
    }

    #[test]
    fn this_machines_cpu_has_the_capabilities_of_its_chip() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let options = akunu_cpu::CpuOptions { threads: Some(2), isa: Some(isa), ..Default::default() };
            let device = akunu_cpu::CpuDevice::new(options).unwrap();
            let here = Capabilities { available_bytes: None, ..device.capabilities().clone() };
            assert_eq!(here, ChipChoice::Cpu(isa).capabilities(Some(2)));
            assert_eq!(device.allocated_bytes(), here.workspace_bytes);
        }
    }
}
