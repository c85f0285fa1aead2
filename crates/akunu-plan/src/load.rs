//! Allocates a plan's buffers on a device and prepares its tables.

use std::ops::ControlFlow;

use akunu_arch::WeightProvider;

use crate::plan::{CachePlan, ModelPlan};
use crate::{BufferKind, BufferSpec, Device, DeviceBuffer, DeviceError, Passes, ReplayId, blocks};

/// A plan loaded on a device.
#[derive(Debug)]
pub struct Loaded {
    /// Indexed by `BufferId`.
    pub buffers: Vec<DeviceBuffer>,
    pub replays: Passes<ReplayId>,
}

/// Called while weights are loaded, with the bytes that the device has and those of all weights, and again with both
/// equal while it prepares tables. `Break` ends loading with [`DeviceError::Cancelled`].
pub type OnLoad<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// An [`OnLoad`] that ignores the progress.
pub fn unwatched(_done: u64, _total: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn report(on_load: OnLoad<'_>, done: u64, total: u64) -> Result<(), DeviceError> {
    match on_load(done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(DeviceError::Cancelled),
    }
}

fn weight_bytes(specs: &[BufferSpec]) -> u64 {
    specs.iter().filter(|spec| matches!(spec.kind, BufferKind::Weight { .. })).map(|spec| spec.bytes).sum()
}

/// Allocates buffers on a device and uploads weights. The result is indexed by `BufferId`.
pub fn load_buffers(
    specs: &[BufferSpec],
    weights: &dyn WeightProvider,
    device: &mut dyn Device,
    on_load: OnLoad<'_>,
) -> Result<Vec<DeviceBuffer>, DeviceError> {
    let (mut done, total) = (0, weight_bytes(specs));
    report(on_load, done, total)?;
    let mut buffers = Vec::with_capacity(specs.len());
    for spec in specs {
        device.make_on(spec.home);
        let buffer = match &spec.kind {
            BufferKind::Weight { tensor, plane, cut } => {
                let tensor = &weights.tensors()[*tensor];
                // Cannot be absent: the plan counted the planes of this tensor.
                let place = tensor.places().nth(*plane).unwrap_or(tensor.place());
                let region = &weights.regions()[place.region];
                let buffer = match cut {
                    None => device.import(region, place.offset, place.bytes)?,
                    Some(cut) => device.import_cut(region, place.offset, place.bytes, cut)?,
                };
                done += spec.bytes;
                report(on_load, done, total)?;
                buffer
            }
            BufferKind::Vector { tensor, add, scale, cut } => {
                let tensor = &weights.tensors()[*tensor];
                let values =
                    crate::lower::vector_values(tensor.dtype, weights.tensor_bytes(tensor), *add, *scale);
                let buffer = device.allocate(&spec.name, spec.bytes)?;
                let values = bytemuck::cast_slice(&values);
                match cut {
                    None => device.upload(buffer, 0, values)?,
                    Some(cut) => device.upload_cut(buffer, values, cut)?,
                }
                buffer
            }
            BufferKind::Constant { data } => {
                let buffer = device.allocate(&spec.name, spec.bytes)?;
                device.upload(buffer, 0, data)?;
                buffer
            }
            BufferKind::Kv | BufferKind::Slot | BufferKind::Scratch | BufferKind::Io => {
                device.allocate(&spec.name, spec.bytes)?
            }
        };
        buffers.push(buffer);
    }
    Ok(buffers)
}

/// Allocates the buffers, uploads weights, and prepares the tables. Experts that are paged are not read yet.
pub fn load(
    plan: &ModelPlan,
    weights: &dyn WeightProvider,
    device: &mut dyn Device,
    on_load: OnLoad<'_>,
) -> Result<Loaded, DeviceError> {
    device.begin_load(plan, weights)?;
    device.expect(&plan.tables.iter().map(|(_, table)| table).collect::<Vec<_>>());
    let buffers = load_buffers(&plan.buffers, weights, device, on_load)?;
    let CachePlan { table, count, slot_blocks, windows, .. } = plan.cache;
    let windows = windows.map(|windows| (windows.table, windows.count));
    for (table, count) in table.map(|table| (table, count)).into_iter().chain(windows) {
        let identity = blocks::identity(slot_blocks * plan.options.slots as u32, count);
        device.upload(buffers[table.index()], 0, bytemuck::cast_slice(&identity))?;
    }
    if let Some(paging) = &plan.paging {
        device.page_experts(paging, &buffers)?;
    }
    let total = weight_bytes(&plan.buffers);
    let replays = plan.tables.try_map(|table| {
        let replay = device.prepare(table, &buffers)?;
        report(on_load, total, total).map(|()| replay)
    })?;
    device.end_load()?;
    Ok(Loaded { buffers, replays })
}
