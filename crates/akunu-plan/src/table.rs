//! The dispatch table: a forward pass as a flat list of commands, with every kernel, buffer and parameter resolved.

use bytemuck::{AnyBitPattern, NoUninit};

use crate::ops::{Content, Counts, Extent, RowSet};
use crate::{BufferId, EntryBounds, Kernel};

/// Q, K and V of an affine type with biases: the input, three planes of each weight, the output, three biases; and two to spare.
pub const MAX_BINDINGS: usize = 16;
pub const PARAM_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub buffer: BufferId,
    /// In bytes.
    pub offset: u64,
}

impl From<BufferId> for Binding {
    /// The whole buffer.
    fn from(buffer: BufferId) -> Binding {
        Binding { buffer, offset: 0 }
    }
}

/// One kernel launch: what runs, over which buffers, with which parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DispatchCommand {
    pub kernel: Kernel,
    pub bindings: [Binding; MAX_BINDINGS],
    pub binding_count: u8,
    pub params: [u8; PARAM_BYTES],
}

impl DispatchCommand {
    /// A command from its bindings in the order of [`Kernel::bindings`]. Where the op is known, [`crate::ops::Op::command`]
    /// checks more.
    pub fn new<B: Into<Binding>>(
        kernel: Kernel,
        bindings: impl IntoIterator<Item = B>,
        params: impl NoUninit,
    ) -> DispatchCommand {
        let expected = kernel.bindings().len();
        let bindings: Vec<Binding> = bindings.into_iter().map(B::into).collect();
        assert_eq!(bindings.len(), expected, "{} binds {expected} buffers", kernel.name());
        let unbound = Binding { buffer: BufferId(u32::MAX), offset: 0 };
        let mut command = DispatchCommand {
            kernel,
            bindings: [unbound; MAX_BINDINGS],
            binding_count: expected as u8,
            params: [0; PARAM_BYTES],
        };
        command.bindings[..expected].copy_from_slice(&bindings);
        let params = bytemuck::bytes_of(&params);
        command.params[..params.len()].copy_from_slice(params);
        command
    }

    pub fn bindings(&self) -> &[Binding] {
        &self.bindings[..self.binding_count as usize]
    }

    /// The inline parameters, as the kernel's own struct.
    pub fn params<P: AnyBitPattern>(&self) -> P {
        bytemuck::pod_read_unaligned(&self.params[..size_of::<P>()])
    }

    /// How much of each binding it may touch, in order; or what is wrong with its parameters.
    pub fn extents(&self, counts: &Counts) -> Result<Vec<Extent>, String> {
        self.kernel.extents(&self.params, counts)
    }

    /// What the command follows from one step to the next: fields of its entries, or how many rows there are.
    pub fn follows(&self) -> Vec<&'static str> {
        let fields = self.kernel.bindings().into_iter().find_map(|slot| match slot.content {
            Content::Rows(fields) => Some(fields.iter().map(|field| field.name()).collect()),
            Content::Moves(_) => Some(vec!["from", "to", "len"]),
            _ => None,
        });
        match (fields, self.kernel.row_set()) {
            (Some(fields), _) => fields,
            (None, None) => vec![],
            (None, Some(RowSet::All)) => vec!["rows"],
            (None, Some(RowSet::Logits)) => vec!["logit_rows"],
        }
    }
}

/// Bytes that a command may touch from each binding on, in order; or what is wrong with its parameters. Devices check
/// them once, when a table is prepared.
pub fn extents(table: &DispatchTable, command: &DispatchCommand) -> Result<Vec<u64>, String> {
    for slot in command.kernel.bindings() {
        let fits = match (slot.content, table.bounds) {
            (Content::Rows(_), bounds) => matches!(bounds, EntryBounds::Rows(_)),
            (Content::Moves(kind), EntryBounds::Moves(bounds)) => bounds.kind == kind && table.rows == 1,
            (Content::Moves(_), EntryBounds::Rows(_)) => false,
            _ => true,
        };
        if !fits {
            return Err(format!("the entries of table {} are not its {}", table.name, slot.name));
        }
    }
    let extents = command.extents(&table.counts())?;
    Ok(extents.into_iter().map(|extent| extent.bytes).collect())
}

/// The buffers through which host and table talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableIo {
    /// The entries of a pass: `[Row; rows]`, or `[Move; rows]` where a table moves the cache.
    pub rows: BufferId,
    /// `[u32; logit_rows]`: which rows ask for logits.
    pub logit_rows: BufferId,
    /// `[u32; steps + 1][logit_rows]`: the ids found; entry 0 is unused.
    pub tokens: BufferId,
    /// `[f32; logit_rows][vocab]`; in a table that encodes, `[f32; logit_rows][width]`.
    pub logits: BufferId,
    /// `[u32; rows]`: the kind of each row's token, where the model asks for it.
    pub segments: Option<BufferId>,
    /// What a table that samples picks by: a record ([`crate::sample`]) for each row that asks for logits. Uploaded
    /// before a submission.
    pub records: Option<BufferId>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DispatchTable {
    /// `decode`, `prefill`, `kv_shift`, …
    pub name: &'static str,
    pub commands: Vec<DispatchCommand>,
    /// Parallel to `commands`, cold: `layer.3.attention`.
    pub labels: Vec<String>,
    /// The most entries that a pass may have.
    pub rows: usize,
    /// The most rows that may ask for logits.
    pub logit_rows: usize,
    /// The most steps that one submission may chain.
    pub steps: usize,
    pub io: TableIo,
    pub bounds: EntryBounds,
}

impl DispatchTable {
    /// The sizes that say how far its commands reach.
    pub fn counts(&self) -> Counts {
        Counts { rows: self.rows, logit_rows: self.logit_rows, steps: self.steps, bounds: self.bounds }
    }

    /// Bytes of the hot part.
    pub fn bytes(&self) -> u64 {
        (self.commands.len() * size_of::<DispatchCommand>()) as u64
    }
}
