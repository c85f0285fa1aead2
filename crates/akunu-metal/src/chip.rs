//! How tables are executed on each Apple GPU: what follows from its family, and one row of numbers per size of chip.
//!
//! **No number in [`APPLE7`], [`APPLE8`] and [`APPLE9`] was measured on a Mac.** Each comes from a published
//! specification or from the reasoning beside its field; docs/metal.md says how to measure on a Mac.

use akunu_gpu::{Repack, Tuning, WORKSPACE_BYTES};
use akunu_kernels::Chip;
use akunu_plan::{Capabilities, InPlace, KeyOrder};

pub(crate) const NAME: &str = "metal";

/// Bytes of threadgroup memory per threadgroup: 32 KiB in every family, by Metal's feature table.
const SHARED_BYTES: u32 = 32 << 10;

/// The most steps per command buffer. A chain that ends early or is cancelled runs on for less than two command
/// buffers. Starting one costs the GPU tens of microseconds, and a step takes milliseconds. Not measured on a Mac.
const PART: usize = 8;

/// Tables are also prepared for these numbers of rows. Products of up to 16 rows have kernels for few rows; a table of
/// up to 64 rows has one tile of rows instead of many of which all but one are idle. Not measured on a Mac.
const ROW_COUNTS: &[usize] = &[16, 64];

/// The families of Apple GPUs, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// None of the others, such as the GPU of a virtual machine.
    Other,
    /// A14, M1.
    Apple7,
    /// A15, A16, M2.
    Apple8,
    /// A17 Pro, M3, M4.
    Apple9,
    /// Families that are newer than this table.
    Later,
}

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Family::Other => "no known family",
            Family::Apple7 => "Apple7",
            Family::Apple8 => "Apple8",
            Family::Apple9 => "Apple9",
            Family::Later => "later than Apple9",
        }
    }

    /// Whether it has `simdgroup_matrix`: all from Apple7 on, by Metal's feature table.
    fn has_tiles(self) -> bool {
        self >= Family::Apple7
    }

    /// Whether bf16 weights are multiplied as bf16 tiles of `simdgroup_matrix`. GPUs before Apple9 have no bf16
    /// arithmetic, so they would convert such a tile to f32 on every use instead of once.
    fn has_bf16_tiles(self) -> bool {
        self >= Family::Apple9
    }

    /// Whether pipelines used by indirect command buffers must also be set on the encoder that executes them. Others
    /// have reported this for GPUs before Apple9.
    pub fn sets_pipelines(self) -> bool {
        self < Family::Apple9
    }

    /// Families that are not in the table use the numbers of the nearest one.
    fn rows(self) -> &'static [ChipRow; 4] {
        match self {
            Family::Other | Family::Apple7 => &APPLE7,
            Family::Apple8 => &APPLE8,
            Family::Apple9 | Family::Later => &APPLE9,
        }
    }
}

/// The size of a chip within its generation. The numbers of GPU cores of two sizes overlap in no generation so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// M1, M2, M3, M4, and the chips of phones and tablets: 4 to 10 GPU cores.
    Base,
    /// 14 to 20 GPU cores.
    Pro,
    /// 24 to 40 GPU cores.
    Max,
    /// Two of Max: 48 to 80 GPU cores.
    Ultra,
}

impl Size {
    fn of(cores: u32) -> Size {
        match cores {
            0..=10 => Size::Base,
            11..=20 => Size::Pro,
            21..=40 => Size::Max,
            _ => Size::Ultra,
        }
    }
}

/// The numbers for one size of chip of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipRow {
    pub size: Size,
    /// GPU cores if the system does not report them: the fewest that a Mac of this row has. Too many threadgroups per
    /// core cost less than idle cores.
    pub cores: u32,
    /// Bytes of the system-level cache, which the GPU shares with the CPU: the smallest of the row's chips, as
    /// published by others, because Metal does not report it. `akunu doctor` shows it, so that a benchmark can use
    /// more memory.
    pub cache_bytes: u64,
    /// Steps of a chain at most. The engine bounds the duration of a chain; this bounds the length of its command
    /// buffers. A GPU with more bandwidth needs more steps to be busy for as long: 64 for less than 100 GB/s, 96 for
    /// less than 300 GB/s, 128 from there on, by the published bandwidth of the row's slowest chip.
    pub chain: usize,
    /// Rows of a prefill pass. With 512 rows of 64-row tiles, a matrix of 4096 outputs makes 512 threadgroups: more
    /// than 10 for each of 40 cores. Max and Ultra have twice as many rows, so that the last threadgroups leave fewer
    /// cores idle. Scratch memory grows with the rows.
    pub prefill_rows: usize,
    /// The most outputs that a SIMD group of a matrix-vector product computes ([`Chip::gemv_outputs`]). Two outputs
    /// share the loads of the input; one output leaves more SIMD groups to spread over the cores of a large chip.
    pub gemv_outputs: u32,
}

const fn row(
    (size, cores): (Size, u32),
    cache_mib: u64,
    chain: usize,
    prefill_rows: usize,
    gemv_outputs: u32,
) -> ChipRow {
    ChipRow { size, cores, cache_bytes: cache_mib << 20, chain, prefill_rows, gemv_outputs }
}

// The columns: size and cores, MiB of cache, steps of a chain, rows of a prefill pass, outputs of a SIMD group.

/// Not measured on a Mac, as no row of this table was.
const APPLE7: [ChipRow; 4] = [
    row((Size::Base, 7), 8, 64, 512, 2),      // M1: 68 GB/s. Not measured.
    row((Size::Pro, 14), 24, 96, 512, 2),     // M1 Pro: 200 GB/s. Not measured.
    row((Size::Max, 24), 48, 128, 1024, 1),   // M1 Max: 400 GB/s. Not measured.
    row((Size::Ultra, 48), 96, 128, 1024, 1), // M1 Ultra: 800 GB/s. Not measured.
];

/// Not measured on a Mac, as no row of this table was.
const APPLE8: [ChipRow; 4] = [
    row((Size::Base, 8), 8, 96, 512, 2),      // M2: 100 GB/s. Not measured.
    row((Size::Pro, 16), 24, 96, 512, 2),     // M2 Pro: 200 GB/s. Not measured.
    row((Size::Max, 30), 48, 128, 1024, 1),   // M2 Max: 400 GB/s. Not measured.
    row((Size::Ultra, 60), 96, 128, 1024, 1), // M2 Ultra: 800 GB/s. Not measured.
];

/// Not measured on a Mac, as no row of this table was.
const APPLE9: [ChipRow; 4] = [
    row((Size::Base, 8), 8, 96, 512, 2), // M3: 100 GB/s; M4: 120 GB/s. Not measured.
    row((Size::Pro, 14), 12, 96, 512, 2), // M3 Pro: 150 GB/s; M4 Pro: 273 GB/s. Not measured.
    row((Size::Max, 30), 48, 128, 1024, 1), // M3 Max: 300 GB/s; M4 Max: 410 GB/s. Not measured.
    row((Size::Ultra, 60), 96, 128, 1024, 1), // M3 Ultra: 819 GB/s. Not measured.
];

/// The properties of a GPU that tables depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetalChip {
    pub family: Family,
    /// GPU cores; `None` if the system does not report them, as on iOS.
    pub cores: Option<u32>,
}

/// The chips of Macs by name, each with the fewest GPU cores that it is sold with. Tables can be planned for them
/// without a Mac; the first is used if no chip is named.
pub const CHIPS: [(&str, MetalChip); 15] = [
    ("m1", MetalChip::new(Family::Apple7, 7)),
    ("m1-pro", MetalChip::new(Family::Apple7, 14)),
    ("m1-max", MetalChip::new(Family::Apple7, 24)),
    ("m1-ultra", MetalChip::new(Family::Apple7, 48)),
    ("m2", MetalChip::new(Family::Apple8, 8)),
    ("m2-pro", MetalChip::new(Family::Apple8, 16)),
    ("m2-max", MetalChip::new(Family::Apple8, 30)),
    ("m2-ultra", MetalChip::new(Family::Apple8, 60)),
    ("m3", MetalChip::new(Family::Apple9, 8)),
    ("m3-pro", MetalChip::new(Family::Apple9, 14)),
    ("m3-max", MetalChip::new(Family::Apple9, 30)),
    ("m3-ultra", MetalChip::new(Family::Apple9, 60)),
    ("m4", MetalChip::new(Family::Apple9, 8)),
    ("m4-pro", MetalChip::new(Family::Apple9, 16)),
    ("m4-max", MetalChip::new(Family::Apple9, 32)),
];

impl MetalChip {
    pub const fn new(family: Family, cores: u32) -> MetalChip {
        MetalChip { family, cores: Some(cores) }
    }

    /// A GPU whose number of cores is not known counts as the smallest of its family.
    pub fn row(self) -> &'static ChipRow {
        let size = self.cores.map_or(Size::Base, Size::of);
        &self.family.rows()[size as usize]
    }

    pub fn tuning(self) -> Tuning {
        let row = self.row();
        Tuning {
            chip: Chip {
                tiles: self.family.has_tiles(),
                bf16_tiles: self.family.has_bf16_tiles(),
                gemv_outputs: row.gemv_outputs,
                ..Chip::plain(self.cores.unwrap_or(row.cores), SHARED_BYTES)
            },
            row_counts: ROW_COUNTS,
            part: PART,
            indirect: false,
            ahead: true,
            checked: false,
            repack: Repack::Elsewhere,
            queued_copies: false,
        }
    }

    /// The number of bytes that are available is not known here.
    pub fn capabilities(self, detail: String) -> Capabilities {
        let row = self.row();
        Capabilities {
            name: NAME,
            detail,
            folds: true,
            half_products: None,
            packed_products: None,
            eight_products: None,
            keys: KeyOrder::PositionMajor,
            block: akunu_kernels::BLOCK,
            in_place: InPlace::Unpacked,
            samples: true,
            chain: row.chain,
            prefill_rows: row.prefill_rows,
            workspace_bytes: WORKSPACE_BYTES,
            workspace_row_bytes: 0,
            streaming_bytes: 0,
            ranks: 1,
            host: None,
            stages: Vec::new(),
            available_bytes: None,
        }
    }

    /// A description for people: family, size and cores.
    pub fn describe(self) -> String {
        let row = self.row();
        let cores = self.cores.map_or_else(String::new, |cores| format!(", {cores} cores"));
        let cache = row.cache_bytes >> 20;
        format!("{} {:?}{cores}, system-level cache of {cache} MiB or more", self.family.name(), row.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [Family; 5] =
        [Family::Other, Family::Apple7, Family::Apple8, Family::Apple9, Family::Later];

    #[test]
    fn every_family_and_size_has_a_row_that_can_be_used() {
        for family in FAMILIES {
            let sizes = [Size::Base, Size::Pro, Size::Max, Size::Ultra];
            for (row, size) in family.rows().iter().zip(sizes) {
                assert_eq!((row.size, Size::of(row.cores)), (size, size));
                assert_eq!(MetalChip::new(family, row.cores).row(), row);
                assert!(ROW_COUNTS.is_sorted() && ROW_COUNTS.iter().all(|&rows| rows < row.prefill_rows));
                assert!([1, 2].contains(&row.gemv_outputs));
                assert!([64, 96, 128].contains(&row.chain));
            }
        }
        assert!(FAMILIES.is_sorted());
    }

    #[test]
    fn launches_are_shaped_for_the_cores_that_the_system_tells_and_else_for_the_fewest() {
        assert_eq!(MetalChip::new(Family::Apple9, 40).tuning().chip.units, 40);
        assert_eq!(MetalChip { family: Family::Apple9, cores: None }.tuning().chip.units, 8);
    }

    #[test]
    fn chips_of_macs_have_rows_of_their_size() {
        for (name, chip) in CHIPS {
            let size = match name.split_once('-') {
                None => Size::Base,
                Some((_, "pro")) => Size::Pro,
                Some((_, "max")) => Size::Max,
                Some(_) => Size::Ultra,
            };
            assert_eq!(chip.row().size, size, "{name}");
            assert!(chip.cores.unwrap() >= chip.row().cores, "{name}");
        }
        let m3_max = CHIPS.iter().find(|(name, _)| *name == "m3-max").unwrap().1;
        assert_eq!(m3_max.describe(), "Apple9 Max, 30 cores, system-level cache of 48 MiB or more");
    }
}
