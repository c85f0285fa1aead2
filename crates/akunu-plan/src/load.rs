//! Puts a plan's buffers on a device and prepares its tables.

use akunu_arch::WeightProvider;

use crate::plan::{ModelPlan, Tables};
use crate::{BufferKind, BufferSpec, Device, DeviceBuffer, DeviceError, ReplayId};

/// A plan that stands on a device.
#[derive(Debug)]
pub struct Loaded {
    /// Indexed by `BufferId`.
    pub buffers: Vec<DeviceBuffer>,
    pub decode: ReplayId,
    pub prefill: ReplayId,
    pub few: Option<ReplayId>,
    pub sampled: Option<LoadedSampled>,
    pub kv_shift: ReplayId,
    pub kv_copy: ReplayId,
}

impl Loaded {
    /// As [`Tables::feeding`].
    pub fn feeding(&self, tables: &Tables, rows: usize) -> ReplayId {
        self.few.filter(|_| tables.few_for(rows).is_some()).unwrap_or(self.prefill)
    }
}

/// [`crate::SampledTables`] on a device.
#[derive(Clone, Copy, Debug)]
pub struct LoadedSampled {
    pub decode: ReplayId,
    pub decode_records: DeviceBuffer,
    pub pick: ReplayId,
    pub pick_records: DeviceBuffer,
}

/// Puts buffers on a device, those of weights with their contents. The result is indexed by `BufferId`.
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
                // The plan counted the planes of this very tensor.
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
    let tables = &plan.tables;
    let sampled = match &tables.sampled {
        None => None,
        Some(sampled) => Some(LoadedSampled {
            decode: device.prepare(&sampled.decode, &buffers)?,
            decode_records: buffers[sampled.decode_records.index()],
            pick: device.prepare(&sampled.pick, &buffers)?,
            pick_records: buffers[sampled.pick_records.index()],
        }),
    };
    Ok(Loaded {
        sampled,
        decode: device.prepare(&tables.decode, &buffers)?,
        prefill: device.prepare(&tables.prefill, &buffers)?,
        few: tables.few.as_ref().map(|few| device.prepare(few, &buffers)).transpose()?,
        kv_shift: device.prepare(&tables.kv_shift, &buffers)?,
        kv_copy: device.prepare(&tables.kv_copy, &buffers)?,
        buffers,
    })
}
