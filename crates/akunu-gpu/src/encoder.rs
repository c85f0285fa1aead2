//! The interface of a command encoder, and an encoder that records its calls.

use std::ops::Range;

/// Five operations suffice for a launch. Launches may run concurrently unless there is a barrier between them.
pub trait Encoder {
    /// A handle to compiled code.
    type Pipeline;
    /// A handle to memory.
    type Buffer;

    fn pipeline(&mut self, pipeline: &Self::Pipeline);

    /// Sets the arguments from index 0 on: each buffer with the byte offset at the same index of `offsets`.
    fn buffers(&mut self, buffers: &[Self::Buffer], offsets: &[usize]);

    /// Sets the bytes of threadgroup memory: a positive multiple of 16. It stays in effect until it is set again.
    fn threadgroup(&mut self, bytes: u32);

    fn dispatch(&mut self, groups: [u32; 3], threads: u32);

    /// Later dispatches see all earlier writes.
    fn barrier(&mut self);
}

/// The encoder of a command buffer. It can also execute indirect command buffers.
pub trait Commands: Encoder {
    /// The encoder of an indirect command buffer: each dispatch is a command together with the settings before it.
    type Indirect: Encoder<Pipeline = Self::Pipeline, Buffer = Self::Buffer>;

    /// Executes some of its dispatches. There is no implicit barrier before the first one.
    fn run(&mut self, indirect: &Self::Indirect, dispatches: Range<usize>);
}

/// A recorded operation of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub enum Word<P, B> {
    Pipeline(P),
    Buffers(Vec<(B, usize)>),
    Threadgroup(u32),
    Dispatch {
        groups: [u32; 3],
        threads: u32,
    },
    Barrier,
    /// Operations of an indirect command buffer.
    Run(Vec<Word<P, B>>),
}

/// An encoder that records its operations, for tests and for the emulator.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording<P, B>(pub Vec<Word<P, B>>);

impl<P, B> Default for Recording<P, B> {
    fn default() -> Recording<P, B> {
        Recording(Vec::new())
    }
}

impl<P: Clone, B: Clone> Encoder for Recording<P, B> {
    type Pipeline = P;
    type Buffer = B;

    fn pipeline(&mut self, pipeline: &P) {
        self.0.push(Word::Pipeline(pipeline.clone()));
    }

    fn buffers(&mut self, buffers: &[B], offsets: &[usize]) {
        self.0.push(Word::Buffers(buffers.iter().cloned().zip(offsets.iter().copied()).collect()));
    }

    fn threadgroup(&mut self, bytes: u32) {
        self.0.push(Word::Threadgroup(bytes));
    }

    fn dispatch(&mut self, groups: [u32; 3], threads: u32) {
        self.0.push(Word::Dispatch { groups, threads });
    }

    fn barrier(&mut self) {
        self.0.push(Word::Barrier);
    }
}

/// Dispatches of an indirect command buffer must be self-contained: settings made before it do not apply to them.
impl<P: Clone, B: Clone> Commands for Recording<P, B> {
    type Indirect = Recording<P, B>;

    fn run(&mut self, indirect: &Recording<P, B>, dispatches: Range<usize>) {
        let all = indirect.0.split_inclusive(|word| matches!(word, Word::Dispatch { .. }));
        let some = all.skip(dispatches.start).take(dispatches.len());
        self.0.push(Word::Run(some.flatten().cloned().collect()));
    }
}
