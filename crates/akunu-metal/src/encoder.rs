//! What a replay asks of a command encoder, and one that writes it down.

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

/// A word of an encoder's.
#[derive(Clone, Debug, PartialEq)]
pub enum Word<P, B> {
    Pipeline(P),
    Buffers(Vec<(B, usize)>),
    Threadgroup(u32),
    Dispatch { groups: [u32; 3], threads: u32 },
    Barrier,
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
