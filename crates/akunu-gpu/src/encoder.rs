//! What a replay asks of a command encoder, and one that writes it down.

use std::ops::Range;

/// Five words are all that a launch needs. Launches may run at the same time but where a barrier stands between them.
pub trait Encoder {
    /// A handle to compiled code.
    type Pipeline;
    /// A handle to memory.
    type Buffer;

    fn pipeline(&mut self, pipeline: &Self::Pipeline);

    /// Arguments from number 0 on: each buffer from the offset, in bytes, that has its place in `offsets`.
    fn buffers(&mut self, buffers: &[Self::Buffer], offsets: &[usize]);

    /// Bytes of threadgroup memory: a multiple of 16, and not none. It stays until it is set again.
    fn threadgroup(&mut self, bytes: u32);

    fn dispatch(&mut self, groups: [u32; 3], threads: u32);

    /// What comes next sees what was written before.
    fn barrier(&mut self);
}

/// An encoder of a command buffer's. It also runs what was encoded before, once and for all.
pub trait Commands: Encoder {
    /// An indirect command buffer: each dispatch that it is told is a command, which begins with the words before it.
    type Indirect: Encoder<Pipeline = Self::Pipeline, Buffer = Self::Buffer>;

    /// Runs some of its dispatches. Nothing keeps the first of them apart from what came before: that takes a barrier here.
    fn run(&mut self, indirect: &Self::Indirect, dispatches: Range<usize>);
}

/// A word of an encoder's.
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
    /// Words of an indirect command buffer.
    Run(Vec<Word<P, B>>),
}

/// An encoder that writes down what it is told: to be looked at, or run by an emulator.
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

/// What its dispatches are told in an indirect command buffer has to be all that they need: no word before the first of them holds there.
impl<P: Clone, B: Clone> Commands for Recording<P, B> {
    type Indirect = Recording<P, B>;

    fn run(&mut self, indirect: &Recording<P, B>, dispatches: Range<usize>) {
        let all = indirect.0.split_inclusive(|word| matches!(word, Word::Dispatch { .. }));
        let some = all.skip(dispatches.start).take(dispatches.len());
        self.0.push(Word::Run(some.flatten().cloned().collect()));
    }
}
