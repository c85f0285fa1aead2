//! Where the inputs of matrix products are in a pass, for statistics over them.

use crate::ops::{self, Content, Op, Routing, RowSet};
use crate::{Access, Binding, BufferKind, DispatchTable, Kernel, ModelPlan};

/// The f32 rows that one or several products read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductInput {
    /// The first of these products, or the command that puts its columns into the order of a matrix: the rows are
    /// complete when the commands before it have run, and are overwritten only after it.
    pub command: usize,
    pub rows: RowSet,
    pub binding: Binding,
    /// Elements of a row.
    pub columns: usize,
    /// The weights, as indices among the provider's tensors.
    pub tensors: Vec<usize>,
    /// If the weights are those of experts, and rows sorted by expert.
    pub sorted: Option<SortedRows>,
}

/// How rows are sorted by expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedRows {
    /// Where the rows of each expert begin, and where those of the last one end: `[u32; experts + 1]`.
    pub starts: Binding,
    pub experts: usize,
    /// Experts of each row.
    pub top: usize,
}

/// The inputs of all products of the prefill table, in the order of its commands. The plan must keep them
/// ([`crate::PlanOptions::keep_inputs`]); an input without f32 rows is left out.
pub fn product_inputs(plan: &ModelPlan) -> Vec<ProductInput> {
    let table = plan.tables.prefill();
    let mut inputs: Vec<ProductInput> = Vec::new();
    for (index, command) in table.commands.iter().enumerate() {
        let bindings = command.bindings();
        let (x, columns, rows) = match command.kernel {
            Kernel::Matmul(op) => {
                (op.operands(bindings).x.get(), command.params::<ops::MatmulParams>().inputs, op.rows)
            }
            Kernel::Qkv(op) => {
                (op.operands(bindings).x.get(), command.params::<ops::QkvParams>().inputs, RowSet::All)
            }
            Kernel::GluMatmul(op) => {
                (op.operands(bindings).x.get(), command.params::<ops::GluMatmulParams>().inputs, RowSet::All)
            }
            Kernel::ExpertGlu(op) => {
                (op.operands(bindings).x.get(), command.params::<ops::ExpertParams>().inputs, RowSet::All)
            }
            Kernel::ExpertMatmul(op) => {
                (op.operands(bindings).x.get(), command.params::<ops::ExpertParams>().inputs, RowSet::All)
            }
            _ => continue,
        };
        let routing = match command.kernel {
            Kernel::ExpertGlu(op) => Some(op.operands(bindings).routing),
            Kernel::ExpertMatmul(op) => Some(Routing::Starts(op.operands(bindings).starts)),
            _ => None,
        };
        let sorted = match routing {
            Some(Routing::Starts(starts)) => {
                let p: ops::ExpertParams = command.params();
                Some(SortedRows { starts: starts.0, experts: p.experts as usize, top: p.top as usize })
            }
            // Not in plans that keep inputs.
            Some(Routing::Picks(_)) => continue,
            None => None,
        };
        let Some(binding) = in_f32(table, index, x) else { continue };
        let (index, binding) = before_reorder(table, index, binding);
        let tensors = bindings.iter().filter_map(|bound| match plan.buffers[bound.buffer.index()].kind {
            BufferKind::Weight { tensor, plane: 0, .. } => Some(tensor),
            _ => None,
        });
        let shared = inputs.iter_mut().rev().find(|input| {
            input.binding == binding && !(input.command..index).any(|at| writes(table, at, binding).is_some())
        });
        match shared {
            Some(input) => input.tensors.extend(tensors),
            None => {
                let (columns, tensors) = (columns as usize, tensors.collect());
                inputs.push(ProductInput { command: index, rows, binding, columns, tensors, sorted });
            }
        }
    }
    inputs
}

/// The f32 rows of a product's input: the input itself, or the rows that its int8 blocks were rounded from.
fn in_f32(table: &DispatchTable, product: usize, x: Binding) -> Option<Binding> {
    let (writer, content) = (0..product).rev().find_map(|at| Some((at, writes(table, at, x)?)))?;
    if content == Content::F32 {
        return Some(x);
    }
    let command = &table.commands[writer];
    // Other commands write both forms.
    let access = if matches!(command.kernel, Kernel::Round(_)) { Access::Read } else { Access::Write };
    let mut bound = command.kernel.bindings().into_iter().zip(command.bindings());
    bound.find(|(slot, _)| slot.access == access && slot.content == Content::F32).map(|(_, found)| *found)
}

/// Rows whose columns are in the order of the model: those that a reordering command reads, and its index, if `x` are
/// what it writes for the command at `product`.
fn before_reorder(table: &DispatchTable, product: usize, x: Binding) -> (usize, Binding) {
    let writer = (0..product).rev().find(|&at| writes(table, at, x).is_some());
    match writer.map(|at| (at, table.commands[at].kernel)) {
        Some((at, Kernel::Reorder(op))) => (at, op.operands(table.commands[at].bindings()).x.0),
        _ => (product, x),
    }
}

/// What a command writes to a binding, if it does.
fn writes(table: &DispatchTable, at: usize, binding: Binding) -> Option<Content> {
    let command = &table.commands[at];
    let mut bound = command.kernel.bindings().into_iter().zip(command.bindings());
    let found = bound.find(|(slot, found)| slot.access != Access::Read && found.buffer == binding.buffer);
    found.map(|(slot, _)| slot.content)
}
