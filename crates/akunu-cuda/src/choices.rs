//! How tables are executed on every card. The emulator uses the same settings, so that they are tested without a card.

use akunu_gpu::{Repack, Tuning, WORKSPACE_BYTES};
use akunu_kernels::Chip;
use akunu_plan::{Capabilities, FewRows, InPlace, KeyOrder, PackedRows};

use crate::{NAME, blas};

/// Steps between two checks whether to stop. The host is at most two batches ahead, so at most 7 steps follow the one
/// that found a stop token.
const BATCH: usize = 4;

/// Up to this number of rows, weights are multiplied quantised; with more, they are unpacked to f16 and multiplied by
/// cuBLASLt. From measurements of Q4_0 and Q4_K_M at 64, 72, 96 and 128 rows. Products with packed weights have their own
/// limits.
const FEW_ROWS: FewRows = FewRows { scaled: 128, shifted: 96, floats: 64 };

/// With products of f16 rows and packed weights, of which a card's own kernels have any number of rows.
const PACKED_ROWS: PackedRows = PackedRows { few: 32, most: 512 };

/// The most rows for which FP8 weights are not multiplied by rows in FP8.
const FEW_EIGHTS: usize = 1;

/// The products of f16 rows that a card has, with those of cuBLASLt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Products {
    /// Also with packed weights: compute capability 9.x only.
    pub packed: bool,
    /// Also of FP8 rows with FP8 weights, both with scales for each row: compute capability 9.x and cuBLASLt 12.9.
    pub eights: bool,
}

/// How tables are executed on a chip.
pub fn tuning(chip: Chip) -> Tuning {
    Tuning {
        chip,
        row_counts: &[8, 16, 32, 64, 128, 256],
        part: BATCH,
        indirect: true,
        ahead: false,
        checked: false,
        repack: Repack::Back,
        queued_copies: true,
    }
}

/// The properties of a card that tables depend on, for planning on a machine without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaChip {
    pub name: &'static str,
    /// A description for people.
    detail: &'static str,
    products: Option<Products>,
}

/// The chips for which tables can be planned without a card; the first is used if no chip is named. Tables depend on
/// no other property of a card, so one entry represents compute capability 9.0.
pub const CHIPS: [CudaChip; 2] = [
    CudaChip {
        name: "h200",
        detail: "NVIDIA H200, sm_90a, with cuBLASLt",
        products: Some(Products { packed: true, eights: true }),
    },
    CudaChip { name: "h200-noblas", detail: "NVIDIA H200, sm_90a, without cuBLASLt", products: None },
];

impl CudaChip {
    pub fn capabilities(&self) -> Capabilities {
        capabilities(self.detail.into(), self.products)
    }
}

/// `products`: if a library multiplies f16. The number of available bytes is not known here.
pub fn capabilities(detail: String, products: Option<Products>) -> Capabilities {
    let library = products.is_some();
    Capabilities {
        name: NAME,
        detail,
        folds: true,
        half_products: products.map(|_| FEW_ROWS),
        packed_products: products.filter(|products| products.packed).map(|_| PACKED_ROWS),
        eight_products: products.filter(|products| products.eights).map(|_| FEW_EIGHTS),
        keys: KeyOrder::PositionMajor,
        block: akunu_kernels::BLOCK,
        in_place: InPlace::Nothing,
        samples: true,
        chain: 64,
        prefill_rows: if library { 2048 } else { 512 },
        workspace_bytes: WORKSPACE_BYTES + if library { blas::WORKSPACE_BYTES } else { 0 },
        workspace_row_bytes: 0,
        streaming_bytes: crate::reader::BYTES,
        ranks: 1,
        host: None,
        stages: Vec::new(),
        available_bytes: None,
    }
}
