//! Repacks weights to planes on the GPU, once, before the first table that binds them is prepared.

use akunu_kernels::{Held, Launch, repack, unlaid};
use akunu_plan::{DeviceBuffer, DeviceError, DispatchTable};

use crate::bind::bind;
use crate::buffers::{Buffer, Buffers, Own, Place, during, failed};
use crate::{Gpu, Program, Repack};

/// The context of errors.
const WHAT: &str = "laying weights out anew";

/// Repacks the weights that a table binds and that have not been repacked; returns by how many bytes the device's
/// memory grew.
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
    let back = gpu.tuning().repack == Repack::Back;
    let is_back = |index: usize, all: &[Buffer<G::Buffer>]| back && all[index].owned;
    let largest = wanted.keys().filter(|&&index| is_back(index, all)).map(|&index| all[index].bytes).max();
    let copy = largest.map(|bytes| gpu.allocate_unset(WHAT, bytes)).transpose()?;
    let mut work = Repacking { gpu, own, last: None };
    let mut allocated = 0;
    for ((&index, (weight, launch)), pipeline) in wanted.iter().zip(pipelines) {
        match copy.as_ref().filter(|_| is_back(index, all)) {
            Some(copy) => work.back(launch, pipeline, &mut all[index], copy)?,
            None => allocated += work.elsewhere(launch, pipeline, &mut all[index])?,
        }
        all[index].planes = Some(*weight);
    }
    work.end()?;
    if let Some(copy) = copy {
        gpu.release(copy);
    }
    Ok(allocated)
}

/// Puts a weight as stored in its file into a buffer that has the planes of such a matrix already.
pub(crate) fn lay_out_again<G: Gpu>(
    gpu: &mut G,
    own: &Own<G::Buffer>,
    from: &Buffer<G::Buffer>,
    slot: &Buffer<G::Buffer>,
) -> Result<(), DeviceError> {
    let Some(launch) = slot.planes.and_then(|weight| repack(&weight)) else {
        return gpu.copy(&from.handle, &slot.handle, slot.bytes);
    };
    let pipeline = gpu.pipelines(&[&launch.function])?.into_iter().next();
    let pipeline = pipeline.ok_or_else(|| failed(gpu, "a weight without a kernel to lay it out"))?;
    let places = [from, slot].map(|buffer| (buffer.handle.clone(), buffer.offset));
    let is_queue = gpu.tuning().queued_copies;
    let mut work = Repacking { gpu, own, last: None };
    work.submit(&launch, pipeline, places)?;
    if is_queue { Ok(()) } else { work.end() }
}

/// The state of a repacking.
struct Repacking<'a, G: Gpu> {
    gpu: &'a mut G,
    own: &'a Own<G::Buffer>,
    /// The last submission: when it is over, all are.
    last: Option<G::Pending>,
}

impl<G: Gpu> Repacking<'_, G> {
    /// Repacks in place from a temporary copy. The next weight's copy is ordered after this on the queue.
    fn back(
        &mut self,
        launch: &Launch,
        pipeline: G::Pipeline,
        weight: &mut Buffer<G::Buffer>,
        copy: &G::Buffer,
    ) -> Result<(), DeviceError> {
        self.gpu.copy(&weight.handle, copy, weight.bytes)?;
        self.submit(launch, pipeline, [(copy.clone(), 0), (weight.handle.clone(), weight.offset)])
    }

    /// Repacks to new memory; at most one weight at a time exists twice. Returns by how many bytes the device's memory
    /// grew.
    fn elsewhere(
        &mut self,
        launch: &Launch,
        pipeline: G::Pipeline,
        weight: &mut Buffer<G::Buffer>,
    ) -> Result<u64, DeviceError> {
        let planes = self.gpu.allocate_unset("planes of a weight", weight.bytes)?;
        self.submit(launch, pipeline, [(weight.handle.clone(), weight.offset), (planes.clone(), 0)])?;
        self.end()?;
        let allocated = if weight.owned { 0 } else { weight.bytes };
        let planes = Buffer { handle: planes, offset: 0, owned: true, ..*weight };
        self.gpu.release(std::mem::replace(weight, planes).handle);
        Ok(allocated)
    }

    fn submit(
        &mut self,
        launch: &Launch,
        pipeline: G::Pipeline,
        arguments: [Place<G::Buffer>; 2],
    ) -> Result<(), DeviceError> {
        let params = (self.own.no_params.clone(), 0);
        let mut program = Program::default();
        let bound = bind(self.gpu, launch, pipeline, arguments.into(), self.own, params)?;
        program.push(vec![bound], true);
        let mut commands = self.gpu.begin()?;
        program.encode(&mut commands, 0, 1);
        let submitted = self.gpu.submit(commands, false);
        self.last = Some(submitted.map_err(|error| during(&launch.function.name, error))?);
        Ok(())
    }

    fn end(&mut self) -> Result<(), DeviceError> {
        let Some(last) = self.last.take() else { return Ok(()) };
        self.gpu.finish(last).map(drop).map_err(|error| during(WHAT, error))
    }
}
