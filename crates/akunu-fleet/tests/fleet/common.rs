use std::sync::Arc;

use akunu_cpu::{CpuDevice, CpuOptions, Isa};
use akunu_fleet::Fleet;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, Group};

/// Reference devices as ranks.
pub fn references(ranks: usize) -> Box<dyn Device> {
    let open = Arc::new(|member| Ok(Box::new(ReferenceDevice::new().in_group(member)) as Box<dyn Device>));
    Box::new(Fleet::open(Group::members(ranks, 1), open).unwrap())
}

pub fn cpu(threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: Some(threads), isa: Some(Isa::best()), read_pattern: None }).unwrap()
}

/// CPU devices as ranks.
pub fn cpus(ranks: usize, threads: usize) -> Box<dyn Device> {
    let open = Arc::new(move |member| Ok(Box::new(cpu(threads).in_group(member)) as Box<dyn Device>));
    Box::new(Fleet::open(Group::members(ranks, threads), open).unwrap())
}
