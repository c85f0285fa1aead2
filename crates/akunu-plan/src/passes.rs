//! The passes of a model as a list: of tables, or of their prepared forms on a device.

use std::ops::Index;
use std::sync::Arc;

use crate::DispatchTable;

/// The purpose of a pass. Each kind has a separate table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// One row; may run several steps in a chain.
    Decode,
    /// Rows of a prompt, or of several sequences.
    Prefill,
    /// Like `Prefill` with the same inputs and outputs, for few rows: if `Prefill` multiplies f16 ([`crate::halves`]), this
    /// one does not.
    SmallPrefill,
    /// Like `Prefill` with the same inputs and outputs, for fewer rows: if `Prefill` converts its weights, this one reads
    /// them as they are and multiplies f16.
    MiddlePrefill,
    /// Like `Prefill` with the same inputs and outputs, for many rows: the device multiplies the weights that the host has,
    /// which are copied to it ahead of their use ([`crate::Streams`]).
    StreamedPrefill,
    /// Like `Decode`, with sampling on the device, if it supports that.
    SampledDecode,
    /// A single command that samples from the logits of the last prefill pass, for the same rows.
    Pick,
    /// Like `Decode` for one step, without choosing a token.
    HeldDecode,
    /// A single command that samples from the logits of `HeldDecode`, and advances its row to the token found.
    HeldPick,
    /// The encoder of audio: frames to what the decoder attends to.
    Encode,
    /// Like `Prefill` with the same inputs and outputs, for the tokens of a transcript: also writes the scores of the heads
    /// that attend to what is said.
    Align,
    /// One move of cached positions; see `Kernel::KvShift`.
    KvShift,
    /// One copy of cached positions; see `Kernel::KvCopy`.
    KvCopy,
    /// The same of the cache of sliding-window layers, if they have one of their own and others have one, too.
    WindowShift,
    WindowCopy,
}

impl PassKind {
    pub fn name(self) -> &'static str {
        match self {
            PassKind::Decode => "decode",
            PassKind::Prefill => "prefill",
            PassKind::SmallPrefill => "small_prefill",
            PassKind::MiddlePrefill => "middle_prefill",
            PassKind::StreamedPrefill => "streamed_prefill",
            PassKind::SampledDecode => "sampled",
            PassKind::Pick => "pick",
            PassKind::HeldDecode => "held",
            PassKind::HeldPick => "held_pick",
            PassKind::Encode => "encode",
            PassKind::Align => "align",
            PassKind::KvShift => "kv_shift",
            PassKind::KvCopy => "kv_copy",
            PassKind::WindowShift => "window_shift",
            PassKind::WindowCopy => "window_copy",
        }
    }
}

/// An item for each pass of a model. Decoding, prefill and both cache moves always exist.
#[derive(Clone, Debug)]
pub struct Passes<T>(Vec<(PassKind, T)>);

impl<T> Passes<T> {
    pub(crate) fn new(decode: T, prefill: T, kv_shift: T, kv_copy: T) -> Passes<T> {
        Passes(vec![
            (PassKind::Decode, decode),
            (PassKind::Prefill, prefill),
            (PassKind::KvShift, kv_shift),
            (PassKind::KvCopy, kv_copy),
        ])
    }

    pub(crate) fn push(&mut self, kind: PassKind, pass: T) {
        self.0.push((kind, pass));
    }

    pub fn iter(&self) -> impl Iterator<Item = (PassKind, &T)> {
        self.0.iter().map(|(kind, pass)| (*kind, pass))
    }

    pub fn get(&self, kind: PassKind) -> Option<&T> {
        self.iter().find(|(other, _)| *other == kind).map(|(_, pass)| pass)
    }

    pub fn decode(&self) -> &T {
        &self[PassKind::Decode]
    }

    pub fn prefill(&self) -> &T {
        &self[PassKind::Prefill]
    }

    pub fn kv_shift(&self) -> &T {
        &self[PassKind::KvShift]
    }

    pub fn kv_copy(&self) -> &T {
        &self[PassKind::KvCopy]
    }

    pub fn map<U>(self, mut to: impl FnMut(T) -> U) -> Passes<U> {
        Passes(self.0.into_iter().map(|(kind, pass)| (kind, to(pass))).collect())
    }

    pub fn try_map<U, E>(&self, mut to: impl FnMut(&T) -> Result<U, E>) -> Result<Passes<U>, E> {
        self.iter().map(|(kind, pass)| Ok((kind, to(pass)?))).collect::<Result<_, E>>().map(Passes)
    }
}

/// For kinds that always exist; [`Passes::get`] is for the others.
impl<T> Index<PassKind> for Passes<T> {
    type Output = T;

    fn index(&self, kind: PassKind) -> &T {
        self.get(kind).unwrap_or_else(|| panic!("the model has no {} pass", kind.name()))
    }
}

pub type Tables = Passes<Arc<DispatchTable>>;

impl Tables {
    /// The kind of pass for this number of rows of a prompt, or of several sequences.
    pub fn kind_for(&self, rows: usize) -> PassKind {
        let holds = |kind: &PassKind| self.get(*kind).is_some_and(|table| rows <= table.rows);
        let streams = |table: &Arc<DispatchTable>| (table.streams.least_rows..=table.rows).contains(&rows);
        match rows {
            1 => PassKind::Decode,
            _ if self.get(PassKind::StreamedPrefill).is_some_and(streams) => PassKind::StreamedPrefill,
            _ => [PassKind::SmallPrefill, PassKind::MiddlePrefill]
                .into_iter()
                .find(holds)
                .unwrap_or(PassKind::Prefill),
        }
    }
}
