//! The input of a pass: tokens to process ([`Row`]), or positions of the KV cache to move ([`Move`]).

use bytemuck::{Pod, Zeroable};

use crate::{DispatchTable, Row};

/// A range of positions of the KV cache that is moved, for all layers and heads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Move {
    /// The first position of the source.
    pub from: u32,
    /// The first position of the destination.
    pub to: u32,
    /// The number of positions.
    pub len: u32,
}

impl Move {
    pub const BYTES: usize = size_of::<Move>();
}

/// The entries of a pass, of the kind that its table takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries<'a> {
    Rows(&'a [Row]),
    Moves(&'a [Move]),
}

impl<'a> Entries<'a> {
    pub fn len(self) -> usize {
        match self {
            Entries::Rows(rows) => rows.len(),
            Entries::Moves(moves) => moves.len(),
        }
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn bytes(self) -> &'a [u8] {
        match self {
            Entries::Rows(rows) => bytemuck::cast_slice(rows),
            Entries::Moves(moves) => bytemuck::cast_slice(moves),
        }
    }
}

/// The kind of a table's entries, and the limits that keep kernels inside their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryBounds {
    Rows(RowBounds),
    Moves(MoveBounds),
}

impl From<RowBounds> for EntryBounds {
    fn from(bounds: RowBounds) -> EntryBounds {
        EntryBounds::Rows(bounds)
    }
}

impl From<MoveBounds> for EntryBounds {
    fn from(bounds: MoveBounds) -> EntryBounds {
        EntryBounds::Moves(bounds)
    }
}

impl EntryBounds {
    /// Size of one entry.
    pub fn entry_bytes(&self) -> usize {
        match self {
            EntryBounds::Rows(_) => Row::BYTES,
            EntryBounds::Moves(_) => Move::BYTES,
        }
    }

    /// Interprets memory as entries of this kind. `bytes` must be whole entries, aligned as [`u32`].
    pub fn entries<'a>(&self, bytes: &'a [u8]) -> Entries<'a> {
        match self {
            EntryBounds::Rows(_) => Entries::Rows(bytemuck::cast_slice(bytes)),
            EntryBounds::Moves(_) => Entries::Moves(bytemuck::cast_slice(bytes)),
        }
    }

    /// Vocabulary size: the limit of token ids.
    pub fn vocab(&self) -> u32 {
        match self {
            EntryBounds::Rows(bounds) => bounds.vocab,
            EntryBounds::Moves(_) => 0,
        }
    }

    /// Maximum length of a sequence.
    pub fn context(&self) -> u32 {
        match self {
            EntryBounds::Rows(bounds) => bounds.context,
            EntryBounds::Moves(bounds) => bounds.positions,
        }
    }

    /// Number of positions in a layer's cache.
    pub fn positions(&self) -> u32 {
        match self {
            EntryBounds::Rows(bounds) => bounds.positions,
            EntryBounds::Moves(bounds) => bounds.positions,
        }
    }
}

/// Limits of the fields of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBounds {
    pub vocab: u32,
    /// Number of positions in a layer's cache.
    pub positions: u32,
    /// Maximum length of a sequence.
    pub context: u32,
    /// Sequences begin at multiples of this ([`crate::KeyOrder::alignment`]).
    pub alignment: u32,
}

impl RowBounds {
    /// Limits for a single sequence, which has the whole cache.
    pub fn one_sequence(vocab: u32, context: u32) -> RowBounds {
        RowBounds { vocab, positions: context, context, alignment: 1 }
    }

    /// Whether the row stays within the limits for `steps` steps.
    pub fn admit(&self, row: &Row, steps: usize) -> bool {
        let longest = u64::from(row.kv_len) + steps as u64 - 1;
        row.token < self.vocab
            && row.position < row.kv_len
            && longest <= u64::from(self.context)
            && row.start.is_multiple_of(self.alignment)
            && u64::from(row.start) + longest <= u64::from(self.positions)
    }
}

/// Limits of the fields of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveBounds {
    pub kind: MoveKind,
    /// Number of positions in a layer's cache.
    pub positions: u32,
}

/// Which positions a table of moves may read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// Moves the positions of a sequence down, possibly overlapping: [`crate::ops::KvShift`].
    Shift,
    /// Source and destination do not overlap: [`crate::ops::KvCopy`].
    Copy,
}

impl MoveBounds {
    pub fn admit(&self, moved: &Move) -> bool {
        let (from, to, len) = (u64::from(moved.from), u64::from(moved.to), u64::from(moved.len));
        let inside = from.max(to) + len <= u64::from(self.positions);
        inside
            && match self.kind {
                MoveKind::Shift => to <= from,
                MoveKind::Copy => from + len <= to || to + len <= from,
            }
    }
}

impl DispatchTable {
    /// Size in bytes of the buffer for its entries.
    pub fn entry_bytes(&self) -> usize {
        self.rows * self.bounds.entry_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_must_stay_within_the_cache_for_all_steps() {
        let bounds = RowBounds { vocab: 10, positions: 96, context: 40, alignment: 16 };
        let row = |position, start| Row::causal(9, position, start);
        for (row, steps) in [(row(0, 0), 1), (row(39, 48), 1), (row(30, 48), 10), (row(31, 64), 1)] {
            assert!(bounds.admit(&row, steps), "{row:?} {steps}");
        }
        let bidirectional = Row { position: 3, kv_len: 40, ..row(0, 16) };
        assert!(bounds.admit(&bidirectional, 1));
        let refused = [
            // Longer than a sequence may be, immediately or after some steps.
            (row(40, 0), 1),
            (row(30, 48), 11),
            // Beyond the end of the cache.
            (row(32, 64), 1),
            (row(31, 64), 2),
            (row(0, 96), 1),
            (row(0, u32::MAX - 15), 1),
            // Not at a multiple of the alignment.
            (row(0, 8), 1),
            (Row { token: 10, ..row(0, 0) }, 1),
            (Row { kv_len: 3, ..row(3, 0) }, 1),
        ];
        for (row, steps) in refused {
            assert!(!bounds.admit(&row, steps), "{row:?} {steps}");
        }
    }

    #[test]
    fn a_move_must_be_within_the_cache_and_in_its_direction() {
        let admits = |kind, from, to, len| MoveBounds { kind, positions: 96 }.admit(&Move { from, to, len });
        let shift = |from, to, len| admits(MoveKind::Shift, from, to, len);
        assert!(shift(8, 5, 88) && shift(5, 5, 3) && shift(96, 0, 0));
        assert!(!shift(5, 8, 2) && !shift(8, 5, 89) && !shift(u32::MAX, 0, u32::MAX));
        let copy = |from, to, len| admits(MoveKind::Copy, from, to, len);
        assert!(copy(64, 0, 32) && copy(0, 64, 32) && copy(0, 32, 32));
        assert!(!copy(0, 31, 32) && !copy(31, 0, 32) && !copy(0, 65, 32));
    }

    #[test]
    fn entries_are_the_bytes_that_they_were_made_of() {
        let moves = [Move { from: 1, to: 2, len: 3 }, Move::default()];
        let bounds = EntryBounds::Moves(MoveBounds { kind: MoveKind::Copy, positions: 1 });
        assert_eq!(bounds.entries(Entries::Moves(&moves).bytes()), Entries::Moves(&moves));
        assert_eq!(bounds.entry_bytes(), 12);
        let rows = [Row::causal(1, 2, 3)];
        let bounds = EntryBounds::Rows(RowBounds::one_sequence(1, 1));
        assert_eq!(bounds.entries(Entries::Rows(&rows).bytes()), Entries::Rows(&rows));
        assert_eq!((bounds.entry_bytes(), Entries::Rows(&rows).len()), (16, 1));
    }
}
