//! Weights laid out in planes on the GPU, once, before the first table that binds them is prepared.

use akunu_kernels::{Held, unlaid};
use akunu_plan::{DeviceBuffer, DeviceError, DispatchTable};

use crate::bind::{Buffer, Buffers, Own, bind};
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
    let wanted = {
        let buffers = Buffers { all, ids };
        unlaid(gpu.capabilities().name, table, |id| {
            let index = buffers.index(gpu, id)?;
            Ok(Held { index, bytes: buffers.all[index].bytes, planes: buffers.all[index].planes })
        })?
    };
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
