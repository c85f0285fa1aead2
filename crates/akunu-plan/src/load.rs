//! Allocates a plan's buffers on a device and prepares its tables.

use akunu_arch::WeightProvider;

use crate::plan::ModelPlan;
use crate::{BufferKind, BufferSpec, Device, DeviceBuffer, DeviceError, Passes, ReplayId};

/// A plan loaded on a device.
#[derive(Debug)]
pub struct Loaded {
    /// Indexed by `BufferId`.
    pub buffers: Vec<DeviceBuffer>,
    pub replays: Passes<ReplayId>,
}

/// Allocates buffers on a device and uploads weights. The result is indexed by `BufferId`.
pub fn load_buffers(
    specs: &[BufferSpec],
    weights: &dyn WeightProvider,
    device: &mut dyn Device,
) -> Result<Vec<DeviceBuffer>, DeviceError> {
    let mut buffers = Vec::with_capacity(specs.len());
    for spec in specs {
        let buffer = match &spec.kind {
            BufferKind::Weight { tensor, plane } => {
                let tensor = &weights.tensors()[*tensor];
                // Cannot be absent: the plan counted the planes of this tensor.
                let place = tensor.places().nth(*plane).unwrap_or(tensor.place());
                device.import(&weights.regions()[place.region], place.offset, place.bytes)?
            }
            BufferKind::Vector { tensor, add, scale } => {
                let tensor = &weights.tensors()[*tensor];
                let values =
                    crate::lower::vector_values(tensor.dtype, weights.tensor_bytes(tensor), *add, *scale);
                let buffer = device.allocate(&spec.name, spec.bytes)?;
                device.upload(buffer, 0, bytemuck::cast_slice(&values))?;
                buffer
            }
            BufferKind::Constant { data } => {
                let buffer = device.allocate(&spec.name, spec.bytes)?;
                device.upload(buffer, 0, data)?;
                buffer
            }
            BufferKind::Kv | BufferKind::Scratch | BufferKind::Io => {
                device.allocate(&spec.name, spec.bytes)?
            }
        };
        buffers.push(buffer);
    }
    Ok(buffers)
}

pub fn load(
    plan: &ModelPlan,
    weights: &dyn WeightProvider,
    device: &mut dyn Device,
) -> Result<Loaded, DeviceError> {
    let buffers = load_buffers(&plan.buffers, weights, device)?;
    let replays = plan.tables.try_map(|table| device.prepare(table, &buffers))?;
    Ok(Loaded { buffers, replays })
}
