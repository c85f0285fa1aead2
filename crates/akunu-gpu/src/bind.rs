//! Turns a table into programs: compiles its kernels, binds its buffers and parameters.

use std::sync::Arc;

use akunu_kernels::{
    FEWEST_PACKED_ROWS, Function, Launch, MissingKernel, SCRATCH_BYTES, Work, launches, repack, weights,
};
use akunu_plan::ops::RowSet;
use akunu_plan::table::PARAM_BYTES;
use akunu_plan::{DeviceError, DispatchCommand, DispatchTable, Kernel, extents};

use crate::buffers::{Buffers, Own, Place, during, failed};
use crate::hazards::Hazards;
use crate::program::{BoundLaunch, Prepared, Variant};
use crate::{Gpu, Program, Tuning};

/// A command's bindings, and whether it needs a barrier before it.
#[derive(Debug)]
struct Placed<B> {
    bindings: Vec<Place<B>>,
    waits: bool,
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
    let counts = row_counts(table, gpu.tuning());
    let mut variants = Vec::with_capacity(counts.len());
    for rows in counts {
        let table = DispatchTable { rows, ..(**table).clone() };
        let program = program(gpu, own, &table, &places)?;
        variants.push(Variant::new(gpu, &table, program)?);
    }
    let (entries, logit_rows) = (table.entry_bytes(), table.logit_rows * size_of::<u32>());
    Ok(Prepared {
        table: Arc::clone(table),
        variants,
        advances: table.advances(),
        entries: buffers.place(gpu, table.io.rows, 0, entries as u64)?,
        logit_rows: buffers.place(gpu, table.io.logit_rows, 0, logit_rows as u64)?,
    })
}

/// The functions that preparing a table asks for. Those that are not written are reported then.
pub(crate) fn functions(table: &DispatchTable, tuning: &Tuning) -> Vec<Function> {
    // Layers differ in what they bind. A kernel may depend on the commands beside it.
    let all = &table.commands;
    let kernel = |at: Option<usize>| at.and_then(|at| all.get(at)).map(|command| command.kernel);
    let alike = |a: usize, b: usize| {
        let beside = |at: usize| [at.checked_sub(1), Some(at), Some(at + 1)].map(kernel);
        beside(a) == beside(b) && all[a].params == all[b].params
    };
    let mut commands: Vec<usize> = Vec::new();
    for index in 0..all.len() {
        if !commands.iter().any(|other| alike(*other, index)) {
            commands.push(index);
        }
    }
    let weights = commands.iter().flat_map(|index| weights(&all[*index]));
    let repacks = weights.filter_map(|weight| repack(&weight));
    let mut all: Vec<Function> = repacks.map(|launch| launch.function).collect();
    for rows in row_counts(table, tuning) {
        let table = DispatchTable { rows, ..table.clone() };
        let works = commands.iter().filter_map(|index| launches(&table, *index, &tuning.chip).ok());
        all.extend(works.flatten().filter_map(|work| work.launch().map(|launch| launch.function.clone())));
    }
    all
}

/// The numbers of rows for which variants are prepared. A library's products have a fixed number of rows, so with them
/// there are enough variants, from 128 rows on, that at most half of a variant's live rows are added as padding; below,
/// the time is that of reading the weights. Tables that unpack weights have none for fewer rows, because another table
/// is used for these, and those of packed weights none for fewer than their smallest tile has. Our own kernels only use the
/// live rows, but have smaller tiles for few rows.
fn row_counts(table: &DispatchTable, tuning: &Tuning) -> Vec<usize> {
    let any = |is: fn(&Kernel) -> bool| table.commands.iter().any(|command| is(&command.kernel));
    let (fixed, unpacks) = (
        any(|kernel| match kernel {
            Kernel::HalfMatmul(op) => op.by_library(),
            kernel => matches!(kernel, Kernel::EightMatmul(_)),
        }),
        any(|kernel| matches!(kernel, Kernel::Unpack(_))),
    );
    let packed = any(|kernel| match kernel {
        Kernel::HalfMatmul(op) => op.rows == RowSet::All && !op.by_library(),
        Kernel::HalfQkv(_) => true,
        _ => false,
    });
    let mut counts = if unpacks { vec![] } else { tuning.row_counts.to_vec() };
    counts.retain(|&rows| !packed || rows >= FEWEST_PACKED_ROWS);
    if fixed {
        counts.extend((7..usize::BITS - 1).flat_map(|power| [1 << power, 3 << (power - 1)]));
    }
    let smaller = counts.into_iter().filter(|&rows| rows < table.rows && !(fixed && rows == 192));
    smaller.chain([table.rows]).collect()
}

/// The addresses of a command's bindings, and the extents that it may access with all rows of the table.
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
        (0..table.commands.len()).map(|index| launches(table, index, &chip).map_err(missing)).collect();
    let works = works?;
    let functions: Vec<_> =
        works.iter().flatten().filter_map(Work::launch).map(|launch| &launch.function).collect();
    let mut pipelines = gpu.pipelines(&functions)?.into_iter();
    let params = gpu.allocate_params("parameters", (table.commands.len() * PARAM_BYTES) as u64)?;
    let mut program = Program::default();
    for (index, ((command, works), placed)) in table.commands.iter().zip(&works).zip(places).enumerate() {
        let at = index * PARAM_BYTES;
        gpu.write(&params, at, &command.params)?;
        let mut bound = Vec::with_capacity(works.len());
        for work in works {
            let params = (params.clone(), at);
            let mut buffers = placed.bindings.clone();
            let (launch, pipeline) = match work {
                Work::Launch(launch) => (Some(launch), pipelines.next()),
                Work::Product(product) => {
                    let product = gpu.product(product, &buffers);
                    (None, product.map_err(|error| during(&command.kernel.name(), error))?)
                }
                Work::Gather(gathering) => {
                    let to = (own.scratch.clone(), SCRATCH_BYTES as usize);
                    let gathered = gpu.gathering(gathering, &placed.bindings, &to);
                    buffers.push(to);
                    (None, gathered.map_err(|error| during(&command.kernel.name(), error))?)
                }
            };
            let pipeline =
                pipeline.ok_or_else(|| failed(gpu, "a kernel, or a product of f16, that it has not"))?;
            bound.push(match launch {
                Some(launch) => bind(gpu, launch, pipeline, buffers, own, params)?,
                None => BoundLaunch { pipeline, buffers, threadgroup_bytes: 16, groups: [1; 3], threads: 32 },
            });
        }
        program.push(bound, placed.waits);
    }
    Ok(program)
}

/// A launch with its bindings and the arguments that all kernels have in common.
pub(crate) fn bind<G: Gpu>(
    gpu: &mut G,
    launch: &Launch,
    pipeline: G::Pipeline,
    mut buffers: Vec<Place<G::Buffer>>,
    own: &Own<G::Buffer>,
    params: Place<G::Buffer>,
) -> Result<BoundLaunch<G::Pipeline, G::Buffer>, DeviceError> {
    let Launch { function, groups, threads, .. } = launch;
    if buffers.len() != function.arguments.len() {
        let (given, wanted) = (buffers.len(), function.arguments.len());
        return Err(failed(gpu, format!("{} takes {wanted} bindings, not {given}", function.name)));
    }
    let threadgroup_bytes = gpu.threadgroup_bytes(&pipeline, launch)?;
    buffers.extend([(own.pass.clone(), 0), (own.scratch.clone(), 0), params]);
    Ok(BoundLaunch { pipeline, buffers, threadgroup_bytes, groups: *groups, threads: *threads })
}

#[cfg(test)]
mod tests {
    use akunu_kernels::Chip;
    use akunu_plan::{BufferId, DType, RowBounds, TableIo, ops};

    use super::*;
    use crate::Repack;

    fn counts(kernels: &[(Kernel, u32)], rows: usize) -> Vec<usize> {
        let id = BufferId(0);
        let command = |(kernel, bindings): &(Kernel, u32)| {
            DispatchCommand::new(*kernel, (0..*bindings).map(|_| id), ())
        };
        let table = DispatchTable {
            name: "table",
            commands: kernels.iter().map(command).collect(),
            labels: vec!["command".into(); kernels.len()],
            rows,
            logit_rows: 1,
            steps: 1,
            io: TableIo::new([id; 4]),
            bounds: RowBounds::one_sequence(1, 1).into(),
            streams: akunu_plan::Streams::default(),
        };
        let tuning = Tuning {
            chip: Chip::plain(1, 0),
            row_counts: &[16, 32, 64],
            part: 4,
            indirect: true,
            ahead: false,
            checked: false,
            repack: Repack::Back,
            queued_copies: true,
        };
        row_counts(&table, &tuning)
    }

    #[test]
    fn a_table_has_variants_for_fewer_rows_and_for_all_of_them() {
        let norm = [(Kernel::NormAdd(ops::NormAdd), 4)];
        assert_eq!(counts(&norm, 1), [1]);
        assert_eq!(counts(&norm, 64), [16, 32, 64]);
        assert_eq!(counts(&norm, 200), [16, 32, 64, 200]);
    }

    #[test]
    fn tables_with_products_of_a_fixed_number_of_rows_have_more_of_them() {
        let product = (
            Kernel::HalfMatmul(ops::HalfMatmul {
                weight: DType::F16,
                bias: false,
                residual: false,
                f16: false,
                rows: RowSet::All,
            }),
            4,
        );
        assert_eq!(counts(&[product], 70), [16, 32, 64, 70]);
        assert_eq!(counts(&[product], 600), [16, 32, 64, 128, 256, 384, 512, 600]);
        let unpack = (Kernel::Unpack(ops::Unpack { weight: DType::Q4_0 }), 2);
        assert_eq!(counts(&[unpack, product], 70), [70]);
        assert_eq!(counts(&[unpack, product], 2048), [128, 256, 384, 512, 768, 1024, 1536, 2048]);
        let op = ops::HalfMatmul {
            weight: DType::Q4_0,
            bias: false,
            residual: false,
            f16: false,
            rows: RowSet::All,
        };
        assert_eq!(counts(&[(Kernel::HalfMatmul(op), 4)], 512), [64, 512]);
        let logits = ops::HalfMatmul { weight: DType::F16, rows: RowSet::Logits, ..op };
        assert_eq!(counts(&[(Kernel::HalfMatmul(logits), 4)], 200), [16, 32, 64, 200]);
    }
}
