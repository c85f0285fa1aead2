//! A table as dense arrays, so that encoding it is a straight loop.

use std::ops::Range;
use std::sync::Arc;

use akunu_plan::DispatchTable;

use crate::Encoder;

/// One dispatch: its arguments are a range of the program's.
#[derive(Debug)]
struct Launch<P> {
    pipeline: P,
    arguments: Range<usize>,
    /// For those before it.
    waits: bool,
    threadgroup_bytes: u32,
    groups: [u32; 3],
    threads: u32,
}

/// A table for so many rows or fewer, with all that encoding it takes. Nothing of it changes between replays: what rows say, and how far a chain
/// has come, is in the GPU's memory, and moves on there.
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
    /// The next command; whether it waits for those before. Of its launches each waits for the one before.
    pub fn push(&mut self, launches: Vec<BoundLaunch<P, B>>, waits: bool) {
        let first = self.launches.len();
        for BoundLaunch { pipeline, buffers, threadgroup_bytes, groups, threads } in launches {
            let start = self.buffers.len();
            for (buffer, offset) in buffers {
                self.buffers.push(buffer);
                self.offsets.push(offset);
            }
            let arguments = start..self.buffers.len();
            // The first command follows the last one of a step.
            let waits = waits || self.launches.len() > first || first == 0;
            self.launches.push(Launch { pipeline, arguments, waits, threadgroup_bytes, groups, threads });
        }
        self.commands.push(first..self.launches.len());
    }

    /// Encodes so many commands from `first` on.
    pub fn encode<E>(&self, encoder: &mut E, first: usize, count: usize)
    where
        E: Encoder<Pipeline = P, Buffer = B>,
    {
        let Some(commands) = self.commands.get(first..first + count) else { return };
        let (Some(start), Some(end)) = (commands.first(), commands.last()) else { return };
        for launch in &self.launches[start.start..end.end] {
            if launch.waits {
                encoder.barrier();
            }
            encoder.pipeline(&launch.pipeline);
            encoder.buffers(&self.buffers[launch.arguments.clone()], &self.offsets[launch.arguments.clone()]);
            encoder.threadgroup(launch.threadgroup_bytes);
            encoder.dispatch(launch.groups, launch.threads);
        }
    }

    /// Encodes a chain.
    pub fn encode_steps<E>(&self, encoder: &mut E, steps: usize)
    where
        E: Encoder<Pipeline = P, Buffer = B>,
    {
        for _ in 0..steps {
            self.encode(encoder, 0, self.commands.len());
        }
    }
}

/// A table, and where the host writes what changes: 16 bytes a row.
#[derive(Debug)]
pub(crate) struct Prepared<P, B> {
    pub(crate) table: Arc<DispatchTable>,
    /// By the rows that they are for, the fewest first.
    pub(crate) variants: Vec<(usize, Program<P, B>)>,
    /// Whether a step moves the rows on and counts itself.
    pub(crate) advances: bool,
    pub(crate) rows: (B, usize),
    pub(crate) logit_rows: (B, usize),
}

impl<P, B> Prepared<P, B> {
    /// Which variant is for so many live rows.
    pub(crate) fn variant_for(&self, rows: usize) -> usize {
        self.variants.partition_point(|(most, _)| *most < rows).min(self.variants.len() - 1)
    }
}
