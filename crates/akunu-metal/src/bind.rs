//! A table becomes programs: its kernels compiled, its buffers and parameters bound.

use std::sync::Arc;

use akunu_kernels::{Launch, MissingKernel, Weight, Work, advances, launches};
use akunu_plan::device::{check_bytes, index_of};
use akunu_plan::table::PARAM_BYTES;
use akunu_plan::{BufferId, DeviceBuffer, DeviceError, DispatchCommand, DispatchTable, Row, extents};

use crate::hazards::Hazards;
use crate::prepared::{BoundLaunch, Prepared, Variant};
use crate::{Gpu, Program};

/// Of a device's.
#[derive(Debug)]
pub(crate) struct Buffer<B> {
    pub(crate) handle: B,
    pub(crate) offset: usize,
    pub(crate) bytes: u64,
    /// A model's own bytes, which nobody else may write.
    pub(crate) imported: bool,
    /// Not a part of a file's mapping.
    pub(crate) owned: bool,
    /// The matrix whose planes it holds now, if it was laid out anew.
    pub(crate) planes: Option<Weight>,
}

/// What every kernel is given after its bindings.
#[derive(Debug)]
pub(crate) struct Own<B> {
    pub(crate) pass: B,
    pub(crate) scratch: B,
    /// Parameters of launches that have none.
    pub(crate) no_params: B,
}

/// A device's buffers, and which of them a table's ids stand for.
#[derive(Debug)]
pub(crate) struct Buffers<'a, B> {
    pub(crate) all: &'a [Buffer<B>],
    pub(crate) ids: &'a [DeviceBuffer],
}

type Place<B> = (B, usize);

/// A command's bindings, and whether it has to wait for those before it.
#[derive(Debug)]
struct Placed<B> {
    bindings: Vec<Place<B>>,
    waits: bool,
}

impl<B: Clone> Buffers<'_, B> {
    pub(crate) fn index<G: Gpu<Buffer = B>>(&self, gpu: &G, id: BufferId) -> Result<usize, DeviceError> {
        index_of(gpu.capabilities().name, self.ids, self.all.len(), id)
    }

    /// Where `bytes` at `offset` of a buffer are.
    fn place<G>(&self, gpu: &G, id: BufferId, offset: u64, bytes: u64) -> Result<Place<B>, DeviceError>
    where
        G: Gpu<Buffer = B>,
    {
        let buffer = &self.all[self.index(gpu, id)?];
        check_bytes(gpu.capabilities().name, offset, bytes, buffer.bytes)?;
        Ok((buffer.handle.clone(), buffer.offset + offset as usize))
    }
}

pub(crate) fn failed<G: Gpu>(gpu: &G, message: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: gpu.capabilities().name, message: message.into() }
}

pub(crate) fn prepare<G: Gpu>(
    gpu: &mut G,
    own: &Own<G::Buffer>,
    table: &Arc<DispatchTable>,
    buffers: Buffers<'_, G::Buffer>,
) -> Result<Prepared<G>, DeviceError> {
    let mut hazards = Hazards::default();
    let mut places = Vec::with_capacity(table.commands.len());
    for command in &table.commands {
        places.push(place(gpu, table, command, &buffers, &mut hazards)?);
    }
    let smaller = gpu.tuning().row_counts.iter().copied().filter(|rows| *rows < table.rows);
    let counts: Vec<usize> = smaller.chain([table.rows]).collect();
    let mut variants = Vec::with_capacity(counts.len());
    for rows in counts {
        let table = DispatchTable { rows, ..(**table).clone() };
        let program = program(gpu, own, &table, &places)?;
        variants.push(Variant::new(gpu, rows, program)?);
    }
    let (rows, logit_rows) = (table.rows * Row::BYTES, table.logit_rows * size_of::<u32>());
    Ok(Prepared {
        table: Arc::clone(table),
        variants,
        advances: advances(table),
        rows: buffers.place(gpu, table.io.rows, 0, rows as u64)?,
        logit_rows: buffers.place(gpu, table.io.logit_rows, 0, logit_rows as u64)?,
    })
}

/// Where a command's bindings are. What it may touch is that of a table with all its rows.
fn place<G: Gpu>(
    gpu: &G,
    table: &DispatchTable,
    command: &DispatchCommand,
    buffers: &Buffers<'_, G::Buffer>,
    hazards: &mut Hazards,
) -> Result<Placed<G::Buffer>, DeviceError> {
    let extents = extents(table, command)
        .map_err(|reason| failed(gpu, format!("{}: {reason}", command.kernel.name())))?;
    let mut bindings = Vec::with_capacity(extents.len());
    let mut touched = Vec::with_capacity(extents.len());
    for (binding, bytes) in command.bindings().iter().zip(extents) {
        bindings.push(buffers.place(gpu, binding.buffer, binding.offset, bytes)?);
        touched.push((buffers.index(gpu, binding.buffer)?, binding.offset, bytes));
    }
    Ok(Placed { bindings, waits: hazards.waits(command, &touched) })
}

fn program<G: Gpu>(
    gpu: &mut G,
    own: &Own<G::Buffer>,
    table: &DispatchTable,
    places: &[Placed<G::Buffer>],
) -> Result<Program<G::Pipeline, G::Buffer>, DeviceError> {
    let device = gpu.capabilities().name;
    let missing = |MissingKernel { kernel, why }: MissingKernel| DeviceError::MissingKernel {
        device,
        kernel: format!("{kernel} ({why})"),
    };
    let chip = gpu.tuning().chip;
    let works: Result<Vec<Vec<Work>>, _> =
        table.commands.iter().map(|command| launches(command, table, &chip).map_err(missing)).collect();
    let works = works?;
    let functions: Vec<_> =
        works.iter().flatten().filter_map(Work::launch).map(|launch| &launch.function).collect();
    let mut pipelines = gpu.pipelines(&functions)?.into_iter();
    let params = gpu.allocate("parameters", (table.commands.len() * PARAM_BYTES) as u64)?;
    let mut program = Program::default();
    for (index, ((command, works), placed)) in table.commands.iter().zip(&works).zip(places).enumerate() {
        let at = index * PARAM_BYTES;
        gpu.write(&params, at, &command.params);
        let mut bound = Vec::with_capacity(works.len());
        for work in works {
            let params = (params.clone(), at);
            let (launch, pipeline) = match work {
                Work::Launch(launch) => (Some(launch), pipelines.next()),
                Work::Product(product) => (None, gpu.product(product)),
            };
            let pipeline =
                pipeline.ok_or_else(|| failed(gpu, "a kernel, or a product of f16, that it has not"))?;
            bound.push(match launch {
                Some(launch) => bind(gpu, launch, pipeline, placed.bindings.clone(), own, params)?,
                None => BoundLaunch {
                    pipeline,
                    buffers: placed.bindings.clone(),
                    threadgroup_bytes: 16,
                    groups: [1; 3],
                    threads: 32,
                },
            });
        }
        program.push(bound, placed.waits);
    }
    Ok(program)
}

/// A launch with its bindings, and what every kernel is given after them.
pub(crate) fn bind<G: Gpu>(
    gpu: &G,
    launch: &Launch,
    pipeline: G::Pipeline,
    mut buffers: Vec<Place<G::Buffer>>,
    own: &Own<G::Buffer>,
    params: Place<G::Buffer>,
) -> Result<BoundLaunch<G::Pipeline, G::Buffer>, DeviceError> {
    let Launch { function, groups, threads, shared_bytes } = launch;
    if buffers.len() != function.arguments.len() {
        let (given, wanted) = (buffers.len(), function.arguments.len());
        return Err(failed(gpu, format!("{} takes {wanted} bindings, not {given}", function.name)));
    }
    let most = gpu.tuning().chip.shared_bytes;
    if *shared_bytes > most {
        let name = &function.name;
        return Err(failed(
            gpu,
            format!("{name} wants {shared_bytes} bytes of threadgroup memory of {most}"),
        ));
    }
    buffers.extend([(own.pass.clone(), 0), (own.scratch.clone(), 0), params]);
    let threadgroup_bytes = (*shared_bytes).max(1).next_multiple_of(16);
    Ok(BoundLaunch { pipeline, buffers, threadgroup_bytes, groups: *groups, threads: *threads })
}
