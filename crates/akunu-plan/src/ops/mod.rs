//! All operations of tables, one file each.
//!
//! The file of an op contains everything about it: the options that select a variant of its kernel, its parameters, its
//! operands by name and type, the range that it may access in each operand, its cost, and a reference implementation in
//! f64. Bindings, hazards, bounds checks, verification, the printed table and the accessors of the CPU's kernels are
//! derived from these.
//!
//! No op writes a buffer that it reads (except `kv_shift`, `state_conv`, `state_scan`, `argmax` and `sample`, which update
//! state), so a command can be run again.

mod define;
mod extent;
mod operand;

use std::fmt::Debug;

use bytemuck::Pod;

pub use extent::{Counts, Extent};
pub use operand::{
    Access, Blocks, Content, Cursor, F8, F16, F32, FormNames, Forms, Indices, Input, Keys, Moves, Operand,
    OperandSet, Order, PlaneNames, Q8, Rounding, Routing, RowField, Rows, Sampling, Slot, U32, Values,
    Weight,
};

use crate::reference::Bound;
use crate::table::{Binding, DispatchCommand, PARAM_BYTES};
use crate::{Cost, Entries, Move, Row};
use define::{kernels, operands, params};

/// Which rows of a pass an op works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    All,
    /// Only the logit rows, packed in the order of the `logit_rows` buffer.
    Logits,
}

/// Field names and values, for printing a table.
pub trait Describe {
    fn fields(&self) -> Vec<(&'static str, String)>;
}

/// An operation. The implementing type contains the options that are fixed when the table is built.
pub trait Op: Copy + Debug + Into<Kernel> {
    type Params: Pod + Describe;
    /// The operands, each containing a `T`: a binding in a table, an extent in a check, a pointer in a CPU kernel.
    type Operands<T: Copy>: OperandSet<T, Op = Self>;

    /// The name includes the options: each variant of a kernel has a different name.
    fn name(self) -> String;

    /// Which rows of a pass it works on; `None` if none, as for conversions of weights.
    fn row_set(self) -> Option<RowSet> {
        Some(RowSet::All)
    }

    /// The byte offset in its output at which unused rows begin, if a kernel for a fixed number of rows leaves
    /// unspecified values there. All other memory that a command does not write is unchanged.
    fn dead_rows(self, _params: &Self::Params, _live: usize) -> Option<u64> {
        None
    }

    /// The range that a command may access in each operand, or an error in its parameters.
    fn extents(self, params: &Self::Params, counts: &Counts) -> Result<Self::Operands<Extent>, String>;

    /// The cost of one step over `rows`, with `logit_rows` logit rows. Ops that read neither weights nor the cache are
    /// not counted.
    fn cost(self, _params: &Self::Params, _rows: &[Row], _logit_rows: usize) -> Cost {
        Cost::default()
    }

    /// The cost of an op that works on moves.
    fn move_cost(self, _params: &Self::Params, _moves: &[Move]) -> Cost {
        Cost::default()
    }

    /// Runs a command of this op on the reference device.
    fn reference(self, bound: Bound<'_>);

    /// Reads the operands from a command's bindings, which are in the order of [`Op::slots`].
    #[inline(always)]
    fn operands<T: Copy>(self, bindings: &[T]) -> Self::Operands<T> {
        Self::Operands::<T>::take(self, &mut Cursor::new(bindings))
    }

    /// The bindings, in order. Operands that a variant does not use are omitted, so the following ones move up.
    fn slots(self) -> Vec<Slot> {
        Self::Operands::<()>::slots(self)
    }

    /// A command of this op. The compiler checks that operands and parameters belong to this op; this method checks
    /// that the optional operands match the options.
    fn command(self, operands: Self::Operands<Binding>, params: Self::Params) -> DispatchCommand {
        let mut bindings = Vec::with_capacity(crate::table::MAX_BINDINGS);
        operands.put(self, &mut bindings);
        DispatchCommand::new(self.into(), bindings, params)
    }
}

kernels! {
    embed::Embed,
    add_positions::AddPositions,
    unfold::Unfold,
    reorder::Reorder,
    across_rows::AcrossRows,
    rope_angles::RopeAngles,
    norm::Norm,
    norm_add::NormAdd,
    head_norm::HeadNorm,
    sum_squares::SumSquares,
    norm_part::NormPart,
    add::Add,
    matmul::Matmul,
    qkv::Qkv,
    glu_matmul::GluMatmul,
    glu::Glu,
    route::Route,
    weigh_inputs::WeighInputs,
    gather::Gather,
    expert_glu::ExpertGlu,
    expert_matmul::ExpertMatmul,
    expert_sum::ExpertSum,
    combine::Combine,
    activate::Activate,
    round::Round,
    unpack::Unpack,
    half_matmul::HalfMatmul,
    half_qkv::HalfQkv,
    half_expert_matmul::HalfExpertMatmul,
    half_expert_glu::HalfExpertGlu,
    eight_matmul::EightMatmul,
    rope_kv::RopeKv,
    attention::Attention,
    head_scores::HeadScores,
    latent_kv::LatentKv,
    heads_apart::HeadsApart,
    latent_queries::LatentQueries,
    latent_attention::LatentAttention,
    heads_together::HeadsTogether,
    state_conv::StateConv,
    state_scan::StateScan,
    pool::Pool,
    argmax::Argmax,
    sample::Sample,
    all_reduce::AllReduce,
    all_gather::AllGather,
    kv_shift::KvShift,
    kv_copy::KvCopy,
}

/// Reads a command's parameters from its inline bytes.
fn params_of<P: Pod>(bytes: &[u8; PARAM_BYTES]) -> P {
    bytemuck::pod_read_unaligned(&bytes[..size_of::<P>()])
}
