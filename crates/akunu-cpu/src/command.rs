//! A command as workers walk it: a function, pointers and parameters.

use std::ops::Range;

use akunu_plan::ops::{F32, GluMatmulParams, Input, MatmulParams, Moves, Op, QkvParams, Rows, U32};
use akunu_plan::table::{MAX_BINDINGS, PARAM_BYTES};
use akunu_plan::{Kernel, Move, Row, RowSet, q8};
use akunu_pool::{WorkQueue, partition};
use bytemuck::AnyBitPattern;

use crate::panel::{Scratch, Shared};
use crate::reading::Reading;
use crate::tile::{PackedKernel, TileKernel};

/// Bytes of a row of activations.
pub(crate) fn row_bytes(inputs: usize, q8: bool) -> usize {
    if q8 { q8::row_bytes(inputs) } else { inputs * size_of::<f32>() }
}

/// # Safety
/// The command's pointers were checked against its parameters, and the rows of the pass against its table.
pub(crate) type Run = unsafe fn(&Command, &Context);

/// One prepared command.
pub(crate) struct Command {
    pub(crate) run: Run,
    pub(crate) kernel: Kernel,
    /// Products of its weights' type; of no meaning to kernels without weights.
    pub(crate) tile: TileKernel,
    /// Where there may be many rows: those of its input are packed first, by all workers together.
    pub(crate) packed: Option<PackedKernel>,
    /// In the order of [`Kernel::bindings`].
    pub(crate) bindings: [*mut u8; MAX_BINDINGS],
    pub(crate) params: [u8; PARAM_BYTES],
    /// Entries of one step in the tokens buffer.
    pub(crate) logit_capacity: usize,
}

// SAFETY: workers share the pointers, and write through them only to the parts that are dealt to each.
unsafe impl Send for Command {}
// SAFETY: as above.
unsafe impl Sync for Command {}

impl Command {
    #[inline(always)]
    pub(crate) fn params<P: AnyBitPattern>(&self) -> P {
        bytemuck::pod_read_unaligned(&self.params[..size_of::<P>()])
    }

    /// A product's input, the elements and bytes of one of its rows, and which rows it takes.
    pub(crate) fn matrix_input(&self) -> Option<(*mut u8, usize, usize, RowSet)> {
        let (x, inputs, rows) = match self.kernel {
            Kernel::Matmul(op) => (self.operands(op).x, self.params::<MatmulParams>().inputs, op.rows),
            Kernel::Qkv(op) => (self.operands(op).x, self.params::<QkvParams>().inputs, RowSet::All),
            Kernel::GluMatmul(op) => {
                (self.operands(op).x, self.params::<GluMatmulParams>().inputs, RowSet::All)
            }
            _ => return None,
        };
        let inputs = inputs as usize;
        Some((x.get(), inputs, row_bytes(inputs, matches!(x, Input::Q8(_))), rows))
    }

    /// The operands by name. `op` is what [`Command::kernel`] holds.
    #[inline(always)]
    pub(crate) fn operands<O: Op>(&self, op: O) -> O::Operands<*mut u8> {
        op.operands(&self.bindings)
    }
}

#[inline(always)]
pub(crate) fn f32s(operand: F32<*mut u8>) -> *mut f32 {
    operand.0.cast()
}

#[inline(always)]
pub(crate) fn u32s(operand: U32<*mut u8>) -> *mut u32 {
    operand.0.cast()
}

/// Pieces of a part whose units are dealt one by one.
const FINE: usize = 16;

/// What a worker knows while it runs a command.
pub(crate) struct Context<'a> {
    /// Which of a command's parts this is.
    pub(crate) part: usize,
    pub(crate) parts: usize,
    /// Live entries of the pass, and rows that ask for logits.
    pub(crate) rows: usize,
    pub(crate) logit_rows: usize,
    pub(crate) step: usize,
    /// The worker's own.
    pub(crate) scratch: *mut Scratch,
    /// All workers' groups of packed rows; null where nothing is packed.
    pub(crate) packed: *mut u8,
    /// All workers'.
    pub(crate) shared: *mut Shared,
    /// What is left of this command's parts.
    pub(crate) queue: &'a WorkQueue,
    pub(crate) reading: Reading,
}

impl Context<'_> {
    /// What this part has of `0..total`.
    #[inline(always)]
    pub(crate) fn share(&self, total: usize) -> Range<usize> {
        partition(total, self.part, self.parts)
    }

    /// `0..total` piece by piece: this part's share, then of what others have left. Where there are no others, or a share is no
    /// more than a piece, each keeps its own. A kernel deals once: what is left of an earlier dealing would be mistaken for its own.
    #[inline(always)]
    pub(crate) fn pieces(&self, total: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
        self.dealt(total, piece, total > piece * self.parts)
    }

    /// `0..total` one by one, in the same way; of a single row each keeps its own, which is next to nothing.
    #[inline(always)]
    pub(crate) fn units(&self, total: usize) -> impl Iterator<Item = usize> {
        let piece = (total / (FINE * self.parts)).max(1);
        self.dealt(total, piece, self.rows > 1).flatten()
    }

    #[inline(always)]
    fn dealt(&self, total: usize, piece: usize, is_shared: bool) -> impl Iterator<Item = Range<usize>> {
        let mut own = self.share(total);
        let is_shared = is_shared && self.parts > 1;
        if is_shared {
            self.queue.begin(self.part, own.clone());
        }
        std::iter::from_fn(move || {
            if is_shared {
                return self.queue.take(self.part, piece);
            }
            let start = own.start;
            own.start = own.end.min(start + piece);
            (start < own.start).then_some(start..own.start)
        })
    }

    /// The pass's rows.
    ///
    /// # Safety
    /// `rows` is a table's row buffer.
    #[inline(always)]
    pub(crate) unsafe fn rows<'a>(&self, rows: Rows<*mut u8>) -> &'a [Row] {
        // SAFETY: the buffer holds at least the live rows, aligned; only argmax writes it, and does not use this.
        unsafe { std::slice::from_raw_parts(rows.0.cast(), self.rows) }
    }

    /// The pass's moves.
    ///
    /// # Safety
    /// `moves` is a table's buffer of moves.
    #[inline(always)]
    pub(crate) unsafe fn moves<'a>(&self, moves: Moves<*mut u8>) -> &'a [Move] {
        // SAFETY: the buffer holds at least the live moves, aligned; no kernel writes it.
        unsafe { std::slice::from_raw_parts(moves.0.cast(), self.rows) }
    }
}
