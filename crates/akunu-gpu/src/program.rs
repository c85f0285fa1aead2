//! A table as flat arrays, so that encoding it is a simple loop.

use std::ops::Range;
use std::sync::Arc;

use akunu_kernels::Pass;
use akunu_plan::{DeviceError, DispatchTable};

use crate::{Commands, Encoder, Gpu};

/// One dispatch; its arguments are a range of the program's.
#[derive(Debug)]
struct Launch<P> {
    pipeline: P,
    arguments: Range<usize>,
    /// Whether it needs a barrier before it.
    waits: bool,
    threadgroup_bytes: u32,
    groups: [u32; 3],
    threads: u32,
}

/// A table for up to a number of rows, with all data for encoding. It does not change between replays: the rows, and
/// the progress of a chain, are in GPU memory and are advanced there.
#[derive(Debug)]
pub struct Program<P, B> {
    launches: Vec<Launch<P>>,
    buffers: Vec<B>,
    /// Parallel to `buffers`.
    offsets: Vec<usize>,
    /// Launches of each command.
    commands: Vec<Range<usize>>,
}

/// A launch with its arguments bound.
#[derive(Debug)]
pub struct BoundLaunch<P, B> {
    pub pipeline: P,
    pub buffers: Vec<(B, usize)>,
    pub threadgroup_bytes: u32,
    pub groups: [u32; 3],
    pub threads: u32,
}

impl<P, B> Default for Program<P, B> {
    fn default() -> Program<P, B> {
        Program { launches: Vec::new(), buffers: Vec::new(), offsets: Vec::new(), commands: Vec::new() }
    }
}

impl<P, B> Program<P, B> {
    /// Appends a command; `waits`: it needs a barrier before it. Each of its launches waits for the previous one.
    pub fn push(&mut self, launches: Vec<BoundLaunch<P, B>>, waits: bool) {
        let first = self.launches.len();
        for BoundLaunch { pipeline, buffers, threadgroup_bytes, groups, threads } in launches {
            let start = self.buffers.len();
            for (buffer, offset) in buffers {
                self.buffers.push(buffer);
                self.offsets.push(offset);
            }
            let arguments = start..self.buffers.len();
            // The first command follows the last one of the previous step.
            let waits = waits || self.launches.len() > first || first == 0;
            self.launches.push(Launch { pipeline, arguments, waits, threadgroup_bytes, groups, threads });
        }
        self.commands.push(first..self.launches.len());
    }

    /// The launches of `count` commands from `first` on.
    fn launches(&self, first: usize, count: usize) -> Range<usize> {
        match self.commands.get(first..first + count) {
            Some([start, .., end]) => start.start..end.end,
            Some([only]) => only.clone(),
            _ => 0..0,
        }
    }

    /// The most buffers of a launch.
    fn buffers(&self) -> usize {
        self.launches.iter().map(|launch| launch.arguments.len()).max().unwrap_or(0)
    }

    /// Encodes `count` commands from `first` on.
    pub fn encode<E>(&self, encoder: &mut E, first: usize, count: usize)
    where
        E: Encoder<Pipeline = P, Buffer = B>,
    {
        for launch in &self.launches[self.launches(first, count)] {
            if launch.waits {
                encoder.barrier();
            }
            encoder.pipeline(&launch.pipeline);
            encoder.buffers(&self.buffers[launch.arguments.clone()], &self.offsets[launch.arguments.clone()]);
            encoder.threadgroup(launch.threadgroup_bytes);
            encoder.dispatch(launch.groups, launch.threads);
        }
    }
}

/// A program, and its indirect command buffer, if it has one.
#[derive(Debug)]
pub struct Variant<G: Gpu> {
    /// The live rows for which it has room.
    pub rows: usize,
    pub program: Program<G::Pipeline, G::Buffer>,
    pub indirect: Option<G::Indirect>,
}

impl<G: Gpu> Variant<G> {
    /// Encodes it to an indirect command buffer, if the GPU executes tables that way.
    pub(crate) fn new(
        gpu: &mut G,
        table: &DispatchTable,
        program: Program<G::Pipeline, G::Buffer>,
    ) -> Result<Variant<G>, DeviceError> {
        let mut indirect = None;
        if gpu.tuning().indirect {
            let encoder = indirect.insert(gpu.indirect(program.launches.len(), program.buffers())?);
            program.encode(encoder, 0, program.commands.len());
            gpu.seal(encoder, table.name)?;
        }
        Ok(Variant { rows: table.rows, program, indirect })
    }

    /// Encodes `count` commands from `first` on.
    pub(crate) fn encode(&self, commands: &mut G::Commands, first: usize, count: usize) {
        match &self.indirect {
            None => self.program.encode(commands, first, count),
            Some(indirect) => {
                // The first command waits for all before it; barriers inside an indirect command buffer do not cover
                // those.
                commands.barrier();
                commands.run(indirect, self.program.launches(first, count));
            }
        }
    }

    /// Executes the indirect command buffer and measures the time of each command. `false`: there is none, or the GPU
    /// cannot measure it.
    pub(crate) fn time(&mut self, gpu: &mut G, ns: &mut [u64]) -> Result<bool, DeviceError> {
        match &mut self.indirect {
            Some(indirect) => gpu.time(indirect, &self.program.commands, ns),
            None => Ok(false),
        }
    }

    /// Encodes steps of a chain.
    pub(crate) fn encode_steps(&self, commands: &mut G::Commands, steps: usize) {
        for _ in 0..steps {
            self.encode(commands, 0, self.program.commands.len());
        }
    }
}

/// A table, and the buffers that the host writes for each submission.
#[derive(Debug)]
pub(crate) struct Prepared<G: Gpu> {
    pub(crate) table: Arc<DispatchTable>,
    /// By number of rows, ascending.
    pub(crate) variants: Vec<Variant<G>>,
    /// Whether a step advances the rows and the step counter.
    pub(crate) advances: bool,
    pub(crate) entries: (G::Buffer, usize),
    pub(crate) logit_rows: (G::Buffer, usize),
}

impl<G: Gpu> Prepared<G> {
    /// The most bytes that a submission sends: rows, logit rows and the pass.
    pub(crate) fn sent_bytes(&self) -> usize {
        self.table.entry_bytes() + self.table.logit_rows * size_of::<u32>() + Pass::BYTES
    }

    /// The variant for a number of live rows.
    pub(crate) fn variant_for(&self, rows: usize) -> usize {
        self.variants.partition_point(|variant| variant.rows < rows).min(self.variants.len() - 1)
    }
}
