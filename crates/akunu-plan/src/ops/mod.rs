//! Every operation that a table may hold, one file each.
//!
//! The file of an op is the only place that knows it: the options that select a variant of its kernel, its parameters,
//! its operands by name and type, how much of each operand it may touch, what it costs, and a reference implementation in
//! f64. Bindings, hazards, bounds checks, verification, the printed table and the accessors of the CPU's kernels follow
//! from these.
//!
//! No op writes a buffer that it reads (`kv_shift`, `argmax` and `sample` excepted, which advance state), so a command
//! can be run again.

mod define;
mod extent;
mod operand;

use std::fmt::Debug;

use bytemuck::Pod;

pub use extent::{Counts, Extent};
pub use operand::{
    Access, Content, Cursor, F16, F32, FormNames, Forms, Input, Keys, Moves, Operand, OperandSet, PlaneNames,
    Q8, RowField, Rows, Sampling, Slot, U32, Values, Weight,
};

use crate::reference::Bound;
use crate::table::{Binding, DispatchCommand, PARAM_BYTES};
use crate::{Cost, Entries, Move, Row};
use define::{kernels, operands, params};

/// Which of a pass's rows an op works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    All,
    /// Only rows that ask for logits, packed together in the order of the `logit_rows` buffer.
    Logits,
}

/// Field names and values, for printing a table.
pub trait Describe {
    fn fields(&self) -> Vec<(&'static str, String)>;
}

/// One operation. The implementing type holds the options that are resolved when the table is built.
pub trait Op: Copy + Debug + Into<Kernel> {
    type Params: Pod + Describe;
    /// The operands, each holding a `T`: a binding in a table, an extent in a check, a pointer in a CPU kernel.
    type Operands<T: Copy>: OperandSet<T, Op = Self>;

    /// Names carry the options: a device that looks kernels up by name finds a distinct one for each variant.
    fn name(self) -> String;

    /// Which of a pass's rows it works on; `None` where it works on none, as on weights alone.
    fn row_set(self) -> Option<RowSet> {
        Some(RowSet::All)
    }

    /// The byte of its output at which the rows that are not live begin, where a kernel for a fixed number of rows leaves
    /// something in them. Everything else that a command does not write stays as it was.
    fn dead_rows(self, _params: &Self::Params, _live: usize) -> Option<u64> {
        None
    }

    /// How much of each operand a command may touch, or what is wrong with its parameters.
    fn extents(self, params: &Self::Params, counts: &Counts) -> Result<Self::Operands<Extent>, String>;

    /// Of one step over `rows`, of which `logit_rows` ask for logits. Ops that read neither weights nor the cache cost too
    /// little to count.
    fn cost(self, _params: &Self::Params, _rows: &[Row], _logit_rows: usize) -> Cost {
        Cost::default()
    }

    /// Of an op that works on moves.
    fn move_cost(self, _params: &Self::Params, _moves: &[Move]) -> Cost {
        Cost::default()
    }

    /// Runs a command of this op on the reference device.
    fn reference(self, bound: Bound<'_>);

    /// Reads the operands back from a command's bindings, which are in the order of [`Op::slots`].
    #[inline(always)]
    fn operands<T: Copy>(self, bindings: &[T]) -> Self::Operands<T> {
        Self::Operands::<T>::take(self, &mut Cursor::new(bindings))
    }

    /// What each binding is, in order. An operand that a variant does not use is left out, and the next ones move up.
    fn slots(self) -> Vec<Slot> {
        Self::Operands::<()>::slots(self)
    }

    /// A command of this op. The compiler checks that operands and parameters are this op's own; whether the optional
    /// operands are those that the options ask for is checked here.
    fn command(self, operands: Self::Operands<Binding>, params: Self::Params) -> DispatchCommand {
        let mut bindings = Vec::with_capacity(crate::table::MAX_BINDINGS);
        operands.put(self, &mut bindings);
        DispatchCommand::new(self.into(), bindings, params)
    }
}

kernels! {
    embed::Embed,
    add_positions::AddPositions,
    rope_angles::RopeAngles,
    norm::Norm,
    norm_add::NormAdd,
    head_norm::HeadNorm,
    add::Add,
    matmul::Matmul,
    qkv::Qkv,
    glu_matmul::GluMatmul,
    glu::Glu,
    activate::Activate,
    round::Round,
    unpack::Unpack,
    half_matmul::HalfMatmul,
    rope_kv::RopeKv,
    attention::Attention,
    pool::Pool,
    argmax::Argmax,
    sample::Sample,
    kv_shift::KvShift,
    kv_copy::KvCopy,
}

/// Reads a command's parameters from its inline bytes.
fn params_of<P: Pod>(bytes: &[u8; PARAM_BYTES]) -> P {
    bytemuck::pod_read_unaligned(&bytes[..size_of::<P>()])
}
