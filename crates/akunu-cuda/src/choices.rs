//! What is decided about tables on every card. The emulator takes the same choices, so that they run where there is none.

use akunu_gpu::{Repack, Tuning, WORKSPACE_BYTES};
use akunu_kernels::Chip;
use akunu_plan::{Capabilities, InPlace, KeyOrder};

use crate::{NAME, blas};

/// Steps between two looks at whether to stop, and half of those that the card may be behind: so no more than 7 follow the one that
/// found a token to stop at.
const BATCH: usize = 4;

/// Rows from which on unpacking weights is worth it: more than these multiply in halves, by the speed of both ways at 64 rows and 65.
const FEW_ROWS: usize = 64;

/// How tables are run on a chip.
pub fn tuning(chip: Chip) -> Tuning {
    Tuning {
        chip,
        row_counts: &[16, 32, 64],
        part: BATCH,
        indirect: true,
        ahead: false,
        checked: false,
        repack: Repack::Back,
        queued_copies: true,
    }
}

/// A card as tables see it, for planning on a machine without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaChip {
    pub name: &'static str,
    /// For people.
    detail: &'static str,
    /// Whether cuBLASLt is there.
    products: bool,
}

/// The chips that tables can be planned for without a card; the first stands for CUDA where no chip is named. Of a
/// card's own properties no table depends on any, so one card stands for all of compute capability 8.0 and later.
pub const CHIPS: [CudaChip; 2] = [
    CudaChip { name: "h200", detail: "NVIDIA H200, sm_90a, with cuBLASLt", products: true },
    CudaChip { name: "h200-noblas", detail: "NVIDIA H200, sm_90a, without cuBLASLt", products: false },
];

impl CudaChip {
    pub fn capabilities(&self) -> Capabilities {
        capabilities(self.detail.into(), self.products)
    }
}

/// `products`: whether a library multiplies f16. Bytes that are available are not known.
pub fn capabilities(detail: String, products: bool) -> Capabilities {
    Capabilities {
        name: NAME,
        detail,
        folds: true,
        half_products: products.then_some(FEW_ROWS),
        keys: KeyOrder::Positions,
        in_place: InPlace::Nothing,
        samples: true,
        chain: 64,
        prefill_rows: if products { 2048 } else { 512 },
        workspace_bytes: WORKSPACE_BYTES + if products { blas::WORKSPACE_BYTES } else { 0 },
        available_bytes: None,
    }
}
