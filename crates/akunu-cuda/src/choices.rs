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

/// `products`: whether a library multiplies f16. Bytes that are available are not known.
pub fn capabilities(detail: String, products: bool) -> Capabilities {
    Capabilities {
        name: NAME,
        detail,
        q8_activations: true,
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
