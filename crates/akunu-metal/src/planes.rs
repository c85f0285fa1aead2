//! Weights laid out in planes on the GPU, once, before the first table that binds them is prepared.

use std::collections::BTreeMap;

use akunu_kernels::{Launch, Weight, repack, weights};
use akunu_plan::{DeviceBuffer, DeviceError, DispatchTable};

use crate::bind::{Buffer, Buffers, Own, bind, failed};
use crate::{Gpu, Program};

/// Lays out what a table binds and no table before it bound: each tensor from where it is to memory of its own, one after the other, so that
/// nothing is held twice but one of them.
pub(crate) fn lay_out<G: Gpu>(
    gpu: &mut G,
    own: &Own<G::Buffer>,
    table: &DispatchTable,
    all: &mut [Buffer<G::Buffer>],
    ids: &[DeviceBuffer],
) -> Result<u64, DeviceError> {
    let wanted = wanted(gpu, table, Buffers { all, ids })?;
    let functions: Vec<_> = wanted.values().map(|(_, launch)| &launch.function).collect();
    let pipelines = gpu.pipelines(&functions)?;
    let mut allocated = 0;
    for ((index, (weight, launch)), pipeline) in wanted.iter().zip(pipelines) {
        let file = &all[*index];
        let planes = gpu.allocate_unset("planes of a weight", file.bytes)?;
        let mut program = Program::default();
        let arguments = vec![(file.handle.clone(), file.offset), (planes.clone(), 0)];
        let params = (own.no_params.clone(), 0);
        program.push(vec![bind(gpu, launch, pipeline, arguments, own, params)?], true);
        let mut commands = gpu.begin()?;
        program.encode(&mut commands, 0, 1);
        let pending = gpu.submit(commands)?;
        gpu.finish(pending)?;
        let file = &mut all[*index];
        if !file.owned {
            allocated += file.bytes;
        }
        let planes = Buffer { handle: planes, offset: 0, owned: true, planes: Some(*weight), ..*file };
        gpu.release(std::mem::replace(file, planes).handle);
    }
    Ok(allocated)
}

/// By buffer: the matrices of a table that do not lie in planes yet, and how they come to.
fn wanted<G: Gpu>(
    gpu: &G,
    table: &DispatchTable,
    buffers: Buffers<'_, G::Buffer>,
) -> Result<BTreeMap<usize, (Weight, Launch)>, DeviceError> {
    let fail = |message: String| failed(gpu, message);
    let mut wanted: BTreeMap<usize, (Weight, Launch)> = BTreeMap::new();
    for command in &table.commands {
        for weight in weights(command) {
            let Some(launch) = repack(&weight) else { continue };
            let binding = command.bindings()[weight.binding];
            let index = buffers.index(gpu, binding.buffer)?;
            let buffer = &buffers.all[index];
            if binding.offset != 0 || weight.bytes() != Some(buffer.bytes) {
                return Err(fail(format!("{}: a weight is not all of its buffer", command.kernel.name())));
            }
            match buffer.planes.or(wanted.get(&index).map(|(weight, _)| *weight)) {
                // Planes of 4096 columns are not those of 2048.
                Some(before) if !is_same_matrix(&before, &weight) => {
                    return Err(fail(format!("{}: a weight has two shapes", command.kernel.name())));
                }
                Some(_) => {}
                None => drop(wanted.insert(index, (weight, launch))),
            }
        }
    }
    Ok(wanted)
}

/// Wherever it is bound.
fn is_same_matrix(a: &Weight, b: &Weight) -> bool {
    (a.dtype, a.rows, a.cols) == (b.dtype, b.rows, b.cols)
}
