//! A table becomes launches with their arguments bound, and a graph of one step.

use std::rc::Rc;
use std::sync::Arc;

use akunu_kernels::{Chip, Launch, MissingKernel, Pass, Weight, Work, advances, launches};
use akunu_plan::device::{check_bytes, index_of};
use akunu_plan::{
    Binding, BufferId, DeviceBuffer, DeviceError, DispatchCommand, DispatchTable, Kernel, Row, extents,
};

use crate::blas::{Blas, BoundProduct};
use crate::context::Context;
use crate::driver::Address;
use crate::error::failed;
use crate::memory::Memory;
use crate::module::Kernels;
use crate::stream::{Bound, Event, Graph, Params, Stream};
use crate::{CudaError, NAME};

/// A device's buffers, and which of them a table's ids stand for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers<'a> {
    pub(crate) all: &'a [Buffer],
    pub(crate) ids: &'a [DeviceBuffer],
}

#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) memory: Memory,
    /// A model's own bytes, which nobody else may write.
    pub(crate) imported: bool,
    /// The matrix whose planes it holds now, if it was laid out anew.
    pub(crate) planes: Option<Weight>,
}

impl Buffers<'_> {
    pub(crate) fn index(&self, id: BufferId) -> Result<usize, DeviceError> {
        index_of(NAME, self.ids, self.all.len(), id)
    }

    /// Where `bytes` at `offset` of a buffer are.
    fn place(&self, id: BufferId, offset: u64, bytes: u64) -> Result<Address, DeviceError> {
        let memory = &self.all[self.index(id)?].memory;
        check_bytes(NAME, offset, bytes, memory.bytes)?;
        Ok(memory.address + offset)
    }
}

#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) table: Arc<DispatchTable>,
    /// By the rows that they are for, the fewest first.
    variants: Vec<Variant>,
    /// Whether a step moves the rows on and counts itself.
    pub(crate) advances: bool,
    pub(crate) rows: Address,
    pub(crate) logit_rows: Address,
}

/// A table for so many rows or fewer.
#[derive(Debug)]
pub(crate) struct Variant {
    rows: usize,
    /// By command.
    commands: Vec<Vec<Step>>,
    /// Of one step.
    pub(crate) graph: Graph,
    timing: Option<Timing>,
}

/// A part of a command.
#[derive(Debug)]
enum Step {
    Launch(Bound),
    Product(BoundProduct),
}

impl Step {
    /// `linked`: as of [`Stream::launch`].
    fn run(&self, stream: &Stream, linked: bool) -> Result<(), CudaError> {
        match self {
            Step::Launch(bound) => stream.launch(bound, linked),
            Step::Product(product) => product.launch(stream),
        }
    }
}

/// One step with an event before each command and one after the last.
#[derive(Debug)]
struct Timing {
    graph: Graph,
    events: Vec<Event>,
}

/// What a device lends for preparing a table.
#[derive(Debug)]
pub(crate) struct Lent<'a> {
    pub(crate) context: &'a Rc<Context>,
    pub(crate) stream: &'a Stream,
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) blas: Option<&'a mut Blas>,
    pub(crate) chip: &'a Chip,
    /// The pass and scratch, which every kernel is given after its bindings.
    pub(crate) own: [Address; 2],
    /// Launches may overlap.
    pub(crate) linked: bool,
}

impl Lent<'_> {
    /// A launch of a function that was required, with its arguments.
    pub(crate) fn bind(
        &self,
        launch: Launch,
        mut pointers: Vec<Address>,
        params: Params,
    ) -> Result<Bound, DeviceError> {
        let Launch { function, groups, threads, shared_bytes } = launch;
        let name = &function.name;
        if pointers.len() != function.arguments.len() {
            let (given, wanted) = (pointers.len(), function.arguments.len());
            return Err(failed(format!("{name} takes {wanted} bindings, not {given}")));
        }
        let kernel = self.kernels.get(&function).ok_or_else(|| failed(format!("{name} was not compiled")))?;
        if threads > kernel.max_threads {
            let most = kernel.max_threads;
            return Err(failed(format!(
                "{name} wants groups of {threads} threads, and {most} have registers enough"
            )));
        }
        kernel.allow_shared(shared_bytes).map_err(|error| error.during(name))?;
        pointers.extend(self.own);
        Ok(Bound { kernel: Rc::clone(kernel), groups, threads, shared_bytes, pointers, params })
    }
}

pub(crate) fn prepare(
    lent: &mut Lent<'_>,
    table: &Arc<DispatchTable>,
    buffers: Buffers<'_>,
) -> Result<Prepared, DeviceError> {
    let pointers = pointers(table, buffers)?;
    let variants = row_counts(table).into_iter().map(|rows| variant(lent, table, rows, &pointers));
    let (rows, logit_rows) = (table.rows * Row::BYTES, table.logit_rows * size_of::<u32>());
    Ok(Prepared {
        table: Arc::clone(table),
        variants: variants.collect::<Result<Vec<_>, _>>()?,
        advances: advances(table),
        rows: buffers.place(table.io.rows, 0, rows as u64)?,
        logit_rows: buffers.place(table.io.logit_rows, 0, logit_rows as u64)?,
    })
}

/// Where each command's bindings are.
fn pointers(table: &DispatchTable, buffers: Buffers<'_>) -> Result<Vec<Vec<Address>>, DeviceError> {
    let of = |command: &DispatchCommand| -> Result<Vec<Address>, DeviceError> {
        let extents = extents(table, command)
            .map_err(|reason| failed(format!("{}: {reason}", command.kernel.name())))?;
        let place = |(binding, bytes): (&Binding, u64)| buffers.place(binding.buffer, binding.offset, bytes);
        command.bindings().iter().zip(extents).map(place).collect()
    };
    table.commands.iter().map(of).collect()
}

/// How many rows variants are for. Products of a library's are of a fixed number, so there is one for at most half more rows than there are,
/// from 128 on; kernels of ours go by the live rows themselves, but have smaller tiles for fewer.
fn row_counts(table: &DispatchTable) -> Vec<usize> {
    let fixed = table.commands.iter().any(|command| matches!(command.kernel, Kernel::HalfMatmul(_)));
    let counts: Vec<usize> = match fixed {
        true => (7..usize::BITS - 1).flat_map(|power| [1 << power, 3 << (power - 1)]).collect(),
        false => vec![16, 32, 64],
    };
    let smaller = counts.into_iter().filter(|&rows| rows < table.rows && rows != 192);
    smaller.chain([table.rows]).collect()
}

fn variant(
    lent: &mut Lent<'_>,
    table: &DispatchTable,
    rows: usize,
    pointers: &[Vec<Address>],
) -> Result<Variant, DeviceError> {
    let smaller = DispatchTable { rows, ..table.clone() };
    let all = works_of(&smaller, lent.chip)?;
    lent.kernels.require(all.iter().flatten().filter_map(Work::launch).map(|launch| &launch.function))?;
    let mut commands = Vec::with_capacity(all.len());
    for ((command, works), pointers) in table.commands.iter().zip(all).zip(pointers) {
        let bind = |work| match work {
            Work::Launch(launch) => {
                lent.bind(launch, pointers.clone(), Params(command.params)).map(Step::Launch)
            }
            Work::Product(product) => {
                let blas =
                    lent.blas.as_deref_mut().ok_or_else(|| failed("a product of f16 without cuBLASLt"))?;
                let bound = blas.bind(&product, pointers, lent.stream);
                bound.map(Step::Product).map_err(|error| error.during(&command.kernel.name()))
            }
        };
        commands.push(works.into_iter().map(bind).collect::<Result<Vec<_>, _>>()?);
    }
    let graph = lent
        .stream
        .capture(|stream| launch(stream, &commands, lent.linked))
        .map_err(|error| error.during(&format!("capturing the {} table", table.name)))?;
    Ok(Variant { rows, commands, graph, timing: None })
}

/// What each command of a table is on a chip.
fn works_of(table: &DispatchTable, chip: &Chip) -> Result<Vec<Vec<Work>>, DeviceError> {
    let missing = |MissingKernel { kernel, why }| DeviceError::MissingKernel {
        device: NAME,
        kernel: format!("{kernel} ({why})"),
    };
    table.commands.iter().map(|command| launches(command, table, chip).map_err(missing)).collect()
}

/// All commands, each linked to the one before it if both are kernels of ours: what a library launches, and how many, is its own affair.
fn launch(stream: &Stream, commands: &[Vec<Step>], linked: bool) -> Result<(), CudaError> {
    let mut after_ours = false;
    for step in commands.iter().flatten() {
        step.run(stream, linked && after_ours)?;
        after_ours = matches!(step, Step::Launch(_));
    }
    Ok(())
}

impl Prepared {
    /// Bytes of the host's side of a submission: rows, logit rows and pass.
    pub(crate) fn upload_bytes(&self) -> usize {
        self.table.rows * Row::BYTES + self.table.logit_rows * size_of::<u32>() + Pass::BYTES
    }

    /// Which variant is for so many live rows.
    fn index_for(&self, rows: usize) -> usize {
        self.variants.partition_point(|variant| variant.rows < rows).min(self.variants.len() - 1)
    }

    pub(crate) fn variant(&self, rows: usize) -> &Variant {
        &self.variants[self.index_for(rows)]
    }

    /// Commands one by one, each ended before the next begins.
    pub(crate) fn launch_range(
        &self,
        stream: &Stream,
        rows: usize,
        first: usize,
        count: usize,
    ) -> Result<(), CudaError> {
        launch(stream, &self.variant(rows).commands[first..first + count], false)
    }

    /// As [`Prepared::launch_range`] over all of them, each waited for, so that an error names the one that failed.
    pub(crate) fn launch_checked(&self, stream: &Stream, rows: usize) -> Result<(), DeviceError> {
        for (command, label) in self.variant(rows).commands.iter().zip(&self.table.labels) {
            for step in command {
                let done = step.run(stream, false).and_then(|()| stream.synchronise());
                done.map_err(|error| error.during(&format!("{label} of the {} table", self.table.name)))?;
            }
        }
        Ok(())
    }

    /// Runs one step and tells how long each command took. Events stand between them, so none overlaps the next.
    pub(crate) fn time(
        &mut self,
        context: &Rc<Context>,
        stream: &Stream,
        rows: usize,
        ns: &mut [u64],
    ) -> Result<(), CudaError> {
        let index = self.index_for(rows);
        let variant = &mut self.variants[index];
        let timing = match variant.timing.take() {
            Some(timing) => timing,
            None => variant.timing(context, stream)?,
        };
        let timing = variant.timing.insert(timing);
        stream.launch_graph(&timing.graph)?;
        stream.synchronise()?;
        for (ns, pair) in ns.iter_mut().zip(timing.events.windows(2)) {
            *ns = pair[1].since(&pair[0])?;
        }
        Ok(())
    }
}

impl Variant {
    fn timing(&self, context: &Rc<Context>, stream: &Stream) -> Result<Timing, CudaError> {
        let events =
            (0..=self.commands.len()).map(|_| Event::timed(context)).collect::<Result<Vec<_>, _>>()?;
        let graph = stream.capture(|stream| {
            for (command, event) in self.commands.iter().zip(&events) {
                stream.record_in_graph(event)?;
                command.iter().try_for_each(|step| step.run(stream, false))?;
            }
            events.last().map_or(Ok(()), |event| stream.record_in_graph(event))
        })?;
        Ok(Timing { graph, events })
    }
}
