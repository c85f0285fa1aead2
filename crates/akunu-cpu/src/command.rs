//! A command as workers execute it: a function, pointers and parameters.

use std::ops::Range;

use akunu_plan::ops::{F32, GluMatmulParams, Input, MatmulParams, Moves, Op, QkvParams, Rows, U32};
use akunu_plan::table::{MAX_BINDINGS, PARAM_BYTES};
use akunu_plan::{ExpertPart, Kernel, Member, Move, Row, RowSet, q8};
use akunu_pool::{WorkQueue, partition};
use bytemuck::AnyBitPattern;

use crate::paging::Places;
use crate::panel::{Scratch, Shared};
use crate::read_pattern::ReadPattern;
use crate::tile::{PackedKernel, TileKernel};

/// Bytes of a row of activations.
pub(crate) fn row_bytes(inputs: usize, q8: bool) -> usize {
    if q8 { q8::row_bytes(inputs) } else { inputs * size_of::<f32>() }
}

/// # Safety
/// The command's pointers and extents were checked against its parameters and the table's maximum numbers of
/// rows when it was prepared; `context.rows`, `context.logit_rows` and the contents of the row buffers were checked
/// against the table when the submission began. `context.scratch` is used by no other thread during the call, and
/// parts of one command that run concurrently have different `context.part`.
pub(crate) type Run = unsafe fn(&Command, &Context);

/// What a command has to do with the experts of a layer that are read when they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experts {
    Nothing,
    /// It chooses them. One has so many bytes; the layer, if it is paged.
    Chosen {
        bytes: u64,
        layer: Option<usize>,
    },
    /// It multiplies with those of a paged layer.
    Read {
        layer: usize,
        part: ExpertPart,
    },
}

/// One prepared command.
pub(crate) struct Command {
    pub(crate) run: Run,
    pub(crate) kernel: Kernel,
    /// The products of its weight type; unused by kernels without weights.
    pub(crate) tile: TileKernel,
    /// If there may be many rows: the input's rows are packed first, by all workers together.
    pub(crate) packed: Option<PackedKernel>,
    /// In the order of [`Kernel::bindings`].
    pub(crate) bindings: [*mut u8; MAX_BINDINGS],
    pub(crate) params: [u8; PARAM_BYTES],
    /// Entries of one step in the tokens buffer.
    pub(crate) logit_capacity: usize,
    pub(crate) experts: Experts,
}

// SAFETY: the buffers that the pointers refer to outlive the command and may be accessed from any thread. Workers
// write through them only to disjoint parts: `Context::share`, `pieces` and `units` give each part different indices.
unsafe impl Send for Command {}
// SAFETY: as for `Send`; nothing is mutated through a shared `Command` itself.
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

/// Into how many pieces the share of a part is cut where units are dealt one by one.
const FINE: usize = 16;

/// What a worker needs while it runs a command.
pub(crate) struct Context<'a> {
    /// Which of a command's parts this is.
    pub(crate) part: usize,
    pub(crate) parts: usize,
    /// Live rows of the pass, and rows that request logits.
    pub(crate) rows: usize,
    pub(crate) logit_rows: usize,
    pub(crate) step: usize,
    /// The worker's own scratch.
    pub(crate) scratch: *mut Scratch,
    /// The groups of packed rows, shared by all workers; null if no command packs rows.
    pub(crate) packed: *mut u8,
    /// Memory shared by all workers.
    pub(crate) shared: *mut Shared,
    /// The work of this command that is left.
    pub(crate) queue: &'a WorkQueue,
    pub(crate) read_pattern: ReadPattern,
    /// The place of the device among several ranks.
    pub(crate) member: Option<&'a Member>,
    /// Where experts are, if the command's are paged.
    pub(crate) places: Option<&'a Places>,
}

impl Context<'_> {
    /// This part's share of `0..total`.
    #[inline(always)]
    pub(crate) fn share(&self, total: usize) -> Range<usize> {
        partition(total, self.part, self.parts)
    }

    /// `0..total` in pieces: first this part's share, then pieces stolen from other parts. With a single part, or if a
    /// share is no more than a piece, there is no stealing. A kernel must call this at most once, because the queue
    /// does not distinguish two ranges of work.
    #[inline(always)]
    pub(crate) fn pieces(&self, total: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
        self.dealt(total, piece, total > piece * self.parts)
    }

    /// `0..total` one by one, in the same way; for a single row there is no stealing, because a unit is too small.
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

    /// The rank of the device.
    #[inline(always)]
    pub(crate) fn rank(&self) -> usize {
        self.member.map_or(0, Member::rank)
    }

    /// The pass's rows.
    ///
    /// # Safety
    /// `rows` is the row buffer of the table that is being executed.
    #[inline(always)]
    pub(crate) unsafe fn rows<'a>(&self, rows: Rows<*mut u8>) -> &'a [Row] {
        // SAFETY: the row buffer is aligned and holds at least the live rows; only argmax writes it, and it does not
        // call this.
        unsafe { std::slice::from_raw_parts(rows.0.cast(), self.rows) }
    }

    /// The pass's moves.
    ///
    /// # Safety
    /// `moves` is the move buffer of the table that is being executed.
    #[inline(always)]
    pub(crate) unsafe fn moves<'a>(&self, moves: Moves<*mut u8>) -> &'a [Move] {
        // SAFETY: the move buffer is aligned and holds at least the live moves; no kernel writes it.
        unsafe { std::slice::from_raw_parts(moves.0.cast(), self.rows) }
    }
}
