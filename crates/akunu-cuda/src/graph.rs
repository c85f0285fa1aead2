//! A table's launches with their arguments bound, and a graph of one step.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use akunu_gpu::{Commands, Encoder};
use akunu_plan::table::PARAM_BYTES;

use crate::CudaError;
use crate::blas::BoundProduct;
use crate::context::Context;
use crate::memory::Memory;
use crate::module::Kernel;
use crate::nccl::BoundGathering;
use crate::stream::{Bound, Event, Graph, Params, Stream};

/// A buffer that a table binds.
#[derive(Clone, Debug)]
pub enum CudaBuffer {
    /// In device memory: its address is an argument.
    #[allow(private_interfaces, reason = "a handle, which only this crate opens")]
    Card(Rc<Memory>),
    /// In host memory: parameters, which are passed by value.
    Params(Rc<RefCell<Vec<u8>>>),
}

/// The code of a launch.
#[derive(Clone, Debug)]
#[allow(private_interfaces, reason = "a handle, which only this crate opens")]
pub enum Code {
    Kernel(Rc<Kernel>),
    Product(Rc<BoundProduct>),
    Gathering(Rc<BoundGathering>),
}

/// A launch with its arguments.
#[derive(Debug)]
enum Step {
    Launch(Bound),
    Product(Rc<BoundProduct>),
    Gathering(Rc<BoundGathering>),
}

impl Step {
    /// `linked`: as of [`Stream::launch`].
    fn run(&self, stream: &Stream, linked: bool) -> Result<(), CudaError> {
        match self {
            Step::Launch(bound) => stream.launch(bound, linked),
            Step::Product(product) => product.launch(stream),
            Step::Gathering(gathering) => gathering.launch(stream),
        }
    }
}

/// The launches of an encoder, in order. Barriers are ignored, as a stream is in order.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    steps: Vec<Step>,
    /// The code of the next dispatch.
    code: Option<Code>,
    pointers: Vec<u64>,
    params: Params,
    shared_bytes: u32,
}

impl Launches {
    /// Takes the same arguments as [`Encoder`]'s methods.
    fn buffers(&mut self, buffers: &[CudaBuffer], offsets: &[usize]) {
        self.pointers.clear();
        for (buffer, &offset) in buffers.iter().zip(offsets) {
            match buffer {
                CudaBuffer::Card(memory) => self.pointers.push(memory.address + offset as u64),
                CudaBuffer::Params(all) => {
                    let (all, mut params) = (all.borrow(), [0; PARAM_BYTES]);
                    params.copy_from_slice(&all[offset..offset + PARAM_BYTES]);
                    self.params = Params(params);
                }
            }
        }
    }

    fn dispatch(&mut self, groups: [u32; 3], threads: u32) {
        let step = match &self.code {
            None => return,
            Some(Code::Product(product)) => Step::Product(Rc::clone(product)),
            Some(Code::Gathering(gathering)) => Step::Gathering(Rc::clone(gathering)),
            Some(Code::Kernel(kernel)) => Step::Launch(Bound {
                kernel: Rc::clone(kernel),
                groups,
                threads,
                shared_bytes: self.shared_bytes,
                pointers: self.pointers.clone(),
                params: self.params,
            }),
        };
        self.steps.push(step);
    }

    /// Runs some of them, without overlap.
    fn run(&self, stream: &Stream, range: Range<usize>) -> Result<(), CudaError> {
        self.steps[range].iter().try_for_each(|step| step.run(stream, false))
    }

    /// Runs all of them, each linked to the one before it (programmatic dependent launch) if both are our own kernels:
    /// how many kernels a library launches, and how, is not known.
    fn run_linked(&self, stream: &Stream, branches: &Branches, linked: bool) -> Result<(), CudaError> {
        let mut after_ours = false;
        let mut rest = &self.steps[..];
        while let Some(step) = rest.first() {
            let together = products_beside(rest);
            match together[..] {
                [] | [_] => step.run(stream, linked && after_ours)?,
                _ => branches.run(stream, &together)?,
            }
            after_ours = matches!(step, Step::Launch(_));
            rest = &rest[together.len().max(1)..];
        }
        Ok(())
    }
}

/// The products at the beginning of some steps that can run at the same time.
fn products_beside(steps: &[Step]) -> Vec<&BoundProduct> {
    let mut together: Vec<&BoundProduct> = Vec::new();
    for step in steps.iter().take(Branches::MOST) {
        match step {
            Step::Product(product) if together.iter().all(|other| other.runs_beside(product)) => {
                together.push(product);
            }
            _ => break,
        }
    }
    together
}

/// Streams beside that of the tables, for branches of a graph.
#[derive(Debug)]
pub(crate) struct Branches {
    fork: Event,
    beside: [(Stream, Event); Branches::MOST - 1],
}

impl Branches {
    /// The most products at the same time: Q, K and V.
    const MOST: usize = 3;

    pub(crate) fn new(context: &Rc<Context>) -> Result<Branches, CudaError> {
        let branch = || Ok::<_, CudaError>((Stream::new(context)?, Event::new(context)?));
        Ok(Branches { fork: Event::new(context)?, beside: [branch()?, branch()?] })
    }

    /// Captures a branch for each product, which all end before what follows begins.
    fn run(&self, stream: &Stream, products: &[&BoundProduct]) -> Result<(), CudaError> {
        stream.record(&self.fork)?;
        let others = products.iter().skip(1).zip(&self.beside);
        for (product, (branch, done)) in others.clone() {
            branch.wait(&self.fork)?;
            product.launch(branch)?;
            branch.record(done)?;
        }
        products.first().map_or(Ok(()), |product| product.launch(stream))?;
        others.into_iter().try_for_each(|(_, (_, done))| stream.wait(done))
    }
}

/// One step of a table.
#[derive(Debug)]
pub(crate) struct Recorded {
    launches: Launches,
    graph: Graph,
}

/// One step, with an event before each command and one after the last.
#[derive(Debug)]
struct Timing {
    graph: Graph,
    events: Vec<Event>,
}

/// A table for up to a number of rows: its launches until it is sealed, then a graph of them.
#[derive(Debug, Default)]
pub struct CudaTable {
    launches: Launches,
    recorded: Option<Rc<Recorded>>,
    timing: Option<Timing>,
}

impl CudaTable {
    /// Captures what was encoded. `linked`: launches may overlap.
    pub(crate) fn seal(
        &mut self,
        stream: &Stream,
        branches: &Branches,
        linked: bool,
    ) -> Result<(), CudaError> {
        let launches = std::mem::take(&mut self.launches);
        let graph = stream.capture(|stream| launches.run_linked(stream, branches, linked))?;
        self.recorded = Some(Rc::new(Recorded { launches, graph }));
        Ok(())
    }

    /// Executes one step and measures the time of each command. Because of the events between them, commands do not
    /// overlap.
    pub(crate) fn time(
        &mut self,
        context: &Rc<Context>,
        stream: &Stream,
        commands: &[Range<usize>],
        ns: &mut [u64],
    ) -> Result<bool, CudaError> {
        let Some(recorded) = &self.recorded else { return Ok(false) };
        let timing = match self.timing.take() {
            Some(timing) => timing,
            None => Timing::of(&recorded.launches, commands, context, stream)?,
        };
        let timing = self.timing.insert(timing);
        stream.launch_graph(&timing.graph)?;
        stream.synchronise()?;
        for (ns, pair) in ns.iter_mut().zip(timing.events.windows(2)) {
            *ns = pair[1].since(&pair[0])?;
        }
        Ok(true)
    }
}

impl Timing {
    fn of(
        launches: &Launches,
        commands: &[Range<usize>],
        context: &Rc<Context>,
        stream: &Stream,
    ) -> Result<Timing, CudaError> {
        let events = (0..=commands.len()).map(|_| Event::timed(context)).collect::<Result<Vec<_>, _>>()?;
        let graph = stream.capture(|stream| {
            for (command, event) in commands.iter().zip(&events) {
                stream.record_in_graph(event)?;
                launches.run(stream, command.clone())?;
            }
            events.last().map_or(Ok(()), |event| stream.record_in_graph(event))
        })?;
        Ok(Timing { graph, events })
    }
}

/// What a submission executes: launches of its own, or some of a recorded table's, once or several times. Recording
/// the latter does not allocate.
#[derive(Debug, Default)]
pub struct CudaCommands {
    launches: Launches,
    recorded: Option<(Rc<Recorded>, Range<usize>)>,
    times: usize,
}

impl CudaCommands {
    pub(crate) fn run(&self, stream: &Stream) -> Result<(), CudaError> {
        self.launches.run(stream, 0..self.launches.steps.len())?;
        let Some((recorded, range)) = &self.recorded else { return Ok(()) };
        for _ in 0..self.times {
            match range.len() == recorded.launches.steps.len() {
                true => stream.launch_graph(&recorded.graph)?,
                false => recorded.launches.run(stream, range.clone())?,
            }
        }
        Ok(())
    }
}

/// Both record launches.
macro_rules! encoder {
    ($type:ty) => {
        impl Encoder for $type {
            type Pipeline = Code;
            type Buffer = CudaBuffer;

            fn pipeline(&mut self, pipeline: &Code) {
                self.launches.code = Some(pipeline.clone());
            }

            fn buffers(&mut self, buffers: &[CudaBuffer], offsets: &[usize]) {
                self.launches.buffers(buffers, offsets);
            }

            fn threadgroup(&mut self, bytes: u32) {
                self.launches.shared_bytes = bytes;
            }

            fn dispatch(&mut self, groups: [u32; 3], threads: u32) {
                self.launches.dispatch(groups, threads);
            }

            fn barrier(&mut self) {}
        }
    };
}

encoder!(CudaTable);
encoder!(CudaCommands);

impl Commands for CudaCommands {
    type Indirect = CudaTable;

    /// May be called repeatedly, but only for the same dispatches of the same table.
    fn run(&mut self, table: &CudaTable, dispatches: Range<usize>) {
        let Some(recorded) = &table.recorded else { return };
        match &self.recorded {
            Some((before, range)) => assert!(Rc::ptr_eq(before, recorded) && *range == dispatches),
            None => self.recorded = Some((Rc::clone(recorded), dispatches)),
        }
        self.times += 1;
    }
}
