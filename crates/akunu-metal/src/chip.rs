//! How tables are run on each family of Apple's GPUs. None of these numbers was measured yet: docs/metal.md says how to.

use akunu_gpu::{Repack, Tuning};
use akunu_kernels::Chip;

/// As Metal numbers families of Apple's GPUs, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// None of the others, such as a virtual machine's.
    Other,
    /// A14, M1.
    Apple7,
    /// A15, A16, M2.
    Apple8,
    /// A17 Pro, M3, M4.
    Apple9,
    /// What came after this was written.
    Later,
}

/// A row of [`FAMILIES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyRow {
    pub family: Family,
    pub name: &'static str,
    /// GPU cores where the system does not tell: those of the smallest Mac of the family, for too many groups a core cost less than idle cores.
    pub cores: u32,
    /// Steps of a chain at most. The engine bounds a chain's seconds; this bounds the words of a command buffer, of which a faster GPU needs more
    /// to be busy for as long.
    pub chain: usize,
    /// Steps of a command buffer at most. A chain that ends early or is cancelled runs on for less than two of them; each costs the GPU the time
    /// to begin one, tens of microseconds beside steps of milliseconds.
    pub part: usize,
    /// Bytes of threadgroup memory that a group may have: 32 KiB in all of them, by Metal's feature table.
    pub shared_bytes: u32,
    /// Whether it has `simdgroup_matrix`: all from Apple7 on, by Metal's feature table.
    pub tiles: bool,
    /// Whether tiles of `simdgroup_matrix` are of bf16 where weights are: GPUs before Apple9 have no bf16 by themselves, so there it would be
    /// turned to f32 again and again, not once.
    pub bf16_tiles: bool,
    /// Whether pipelines that indirect command buffers name have to be set on the encoder that runs them, too: what others saw of GPUs before
    /// Apple9.
    pub sets_pipelines: bool,
    /// Rows of a prefill pass: 8 tiles of 64. More make the logits of a chunk no cheaper, and scratch memory grows with them.
    pub prefill_rows: usize,
    /// Up to 16 rows products are those for few rows; a table of up to 64 has one tile of rows instead of 8 of which 7 are idle.
    pub row_counts: &'static [usize],
}

const APPLE7: FamilyRow = FamilyRow {
    family: Family::Apple7,
    name: "Apple7",
    cores: 7,
    chain: 64,
    part: 8,
    shared_bytes: 32 << 10,
    tiles: true,
    bf16_tiles: false,
    sets_pipelines: true,
    prefill_rows: 512,
    row_counts: &[16, 64],
};

const APPLE9: FamilyRow = FamilyRow {
    family: Family::Apple9,
    name: "Apple9",
    cores: 8,
    chain: 128,
    bf16_tiles: true,
    sets_pipelines: false,
    ..APPLE7
};

pub const FAMILIES: [FamilyRow; 5] = [
    FamilyRow { family: Family::Other, name: "no known family", tiles: false, ..APPLE7 },
    APPLE7,
    FamilyRow { family: Family::Apple8, name: "Apple8", cores: 8, chain: 96, ..APPLE7 },
    APPLE9,
    // As the newest known.
    FamilyRow { family: Family::Later, name: "later than Apple9", ..APPLE9 },
];

impl Family {
    pub fn row(self) -> &'static FamilyRow {
        &FAMILIES[self as usize]
    }
}

impl FamilyRow {
    /// `cores`: as the system told, if it did.
    pub fn tuning(&self, cores: Option<u32>) -> Tuning {
        Tuning {
            chip: Chip {
                tiles: self.tiles,
                bf16_tiles: self.bf16_tiles,
                ..Chip::plain(cores.unwrap_or(self.cores), self.shared_bytes)
            },
            row_counts: self.row_counts,
            part: self.part,
            indirect: false,
            ahead: true,
            checked: false,
            repack: Repack::Elsewhere,
            queued_copies: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_its_row_and_rows_are_usable() {
        for row in FAMILIES {
            assert_eq!(row.family.row(), &row);
            assert!(row.row_counts.is_sorted() && row.row_counts.iter().all(|&rows| rows < row.prefill_rows));
            assert_eq!(row.tuning(None).chip.units, row.cores);
            assert_eq!(row.tuning(Some(40)).chip.units, 40);
        }
        assert!(FAMILIES.is_sorted_by_key(|row| row.family));
    }
}
