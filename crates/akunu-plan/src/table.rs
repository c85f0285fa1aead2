//! The dispatch table: a forward pass as a flat list of commands, with every kernel, buffer and parameter resolved.

use bytemuck::{AnyBitPattern, NoUninit};

use crate::ops::{Argmax, ArgmaxParams, Content, Counts, Extent, RowSet, Sample, SampleParams};
use crate::{BufferId, EntryBounds, Kernel};

/// The maximum is Q, K and V of an affine type with biases: the input, three planes of each weight, the output, three
/// biases; two are spare.
pub const MAX_BINDINGS: usize = 16;
pub const PARAM_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub buffer: BufferId,
    /// In bytes.
    pub offset: u64,
}

impl From<BufferId> for Binding {
    /// Binds the whole buffer.
    fn from(buffer: BufferId) -> Binding {
        Binding { buffer, offset: 0 }
    }
}

/// Where a command is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// The device, or the last one of several that share out the layers: it has the output.
    #[default]
    Device,
    /// One of the devices before it ([`crate::Capabilities::stages`]), which have the layers before.
    Stage(u8),
    /// The device of the host beside it ([`crate::Capabilities::host`]).
    Host,
}

impl Side {
    pub fn is_host(self) -> bool {
        self == Side::Host
    }

    /// A command's label as it is shown.
    pub fn of_label(self, label: &str) -> String {
        match self {
            Side::Device => label.to_string(),
            Side::Stage(stage) => format!("{label} (stage {stage})"),
            Side::Host => format!("{label} (CPU)"),
        }
    }
}

/// One kernel launch: the kernel, its buffers and its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DispatchCommand {
    pub kernel: Kernel,
    pub side: Side,
    pub bindings: [Binding; MAX_BINDINGS],
    pub binding_count: u8,
    pub params: [u8; PARAM_BYTES],
}

impl DispatchCommand {
    /// A command from its bindings in the order of [`Kernel::bindings`]. [`crate::ops::Op::command`] checks more, if
    /// the op is known.
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
            side: Side::Device,
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

    /// The range that it may access in each binding, in order; or an error in its parameters.
    pub fn extents(&self, counts: &Counts) -> Result<Vec<Extent>, String> {
        self.kernel.extents(&self.params, counts)
    }

    /// The inputs that the command depends on in each step: fields of its entries, or the number of rows.
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

/// Number of bytes that a command may access from each binding on, in order; or an error in its parameters. Devices
/// check this once, when a table is prepared.
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
    let mut bound = command.kernel.bindings().into_iter().zip(&extents);
    if let (Some((_, blocks)), EntryBounds::Rows(bounds)) =
        (bound.find(|(slot, _)| slot.content == Content::Blocks), table.bounds)
        && !u64::from(bounds.alignment).is_multiple_of(blocks.cols)
    {
        let (begins, block) = (bounds.alignment, blocks.cols);
        return Err(format!("sequences that begin at multiples of {begins}, in blocks of {block}"));
    }
    Ok(extents.into_iter().map(|extent| extent.bytes).collect())
}

/// The buffers through which the host communicates with a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableIo {
    /// The entries of a pass: `[Row; rows]`, or `[Move; rows]` for cache moves.
    pub rows: BufferId,
    /// `[u32; logit_rows]`: the indices of the logit rows.
    pub logit_rows: BufferId,
    /// `[u32; steps + 1][logit_rows]`: the ids found; entry 0 is unused.
    pub tokens: BufferId,
    /// `[f32; logit_rows][vocab]`; for encoders, `[f32; logit_rows][width]`.
    pub logits: BufferId,
    /// `[u32; rows]`: the token type of each row, if the model has token types.
    pub segments: Option<BufferId>,
    /// `[f32; rows][2 · bands]`: log-mel frames, two in a row, if the table is an encoder's of audio. Uploaded before a
    /// submission.
    pub frames: Option<BufferId>,
    /// The rows as attention to an encoder's states reads them, if the table does that; the table itself writes them.
    pub across: Option<BufferId>,
    /// `[f32; rows][heads][positions]`: attention to an encoder's states before softmax, if the table is for the times of
    /// words.
    pub scores: Option<BufferId>,
    /// The sampling record ([`crate::sample`]) of each logit row, if the table samples. Uploaded before a submission.
    pub records: Option<BufferId>,
}

impl TableIo {
    /// Without what only some tables have.
    pub fn new([rows, logit_rows, tokens, logits]: [BufferId; 4]) -> TableIo {
        TableIo {
            rows,
            logit_rows,
            tokens,
            logits,
            segments: None,
            frames: None,
            across: None,
            scores: None,
            records: None,
        }
    }
}

/// Weights of the host that a pass copies to slots of the device ahead of their use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Streams {
    /// With fewer rows, the host computes its part sooner than its weights are copied.
    pub least_rows: usize,
    /// In the order of the commands.
    pub loans: Vec<Loan>,
}

/// A weight of the host in a slot of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The first command that reads it from the slot.
    pub command: usize,
    pub weight: BufferId,
    /// Where its bytes arrive while the slot has the weight before it.
    pub arrival: BufferId,
    pub slot: BufferId,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DispatchTable {
    /// `decode`, `prefill`, `kv_shift`, …
    pub name: &'static str,
    pub commands: Vec<DispatchCommand>,
    /// Parallel to `commands`, used only for display: `layer.3.attention`.
    pub labels: Vec<String>,
    /// Maximum number of entries of a pass.
    pub rows: usize,
    /// Maximum number of logit rows.
    pub logit_rows: usize,
    /// Maximum number of steps of a submission.
    pub steps: usize,
    pub io: TableIo,
    pub bounds: EntryBounds,
    /// Of no weights, unless the pass streams.
    pub streams: Streams,
}

impl DispatchTable {
    /// The sizes that determine the extents of its commands.
    pub fn counts(&self) -> Counts {
        Counts { rows: self.rows, logit_rows: self.logit_rows, steps: self.steps, bounds: self.bounds }
    }

    /// Whether each step advances the rows, and the pass's step counter.
    pub fn advances(&self) -> bool {
        self.advance() == 1
    }

    /// Whether a token that it finds may end a chain of steps.
    pub fn may_stop(&self) -> bool {
        self.advance() > 0
    }

    fn advance(&self) -> u32 {
        self.commands.last().map_or(0, |command| match command.kernel {
            Kernel::Argmax(Argmax) => command.params::<ArgmaxParams>().advance,
            Kernel::Sample(Sample) => command.params::<SampleParams>().advance,
            _ => 0,
        })
    }

    /// The weights that are lent to slots for a command.
    pub fn loans(&self, command: usize) -> impl Iterator<Item = &Loan> {
        self.streams.loans.iter().filter(move |loan| loan.command == command)
    }

    /// Size of the commands in bytes.
    pub fn bytes(&self) -> u64 {
        (self.commands.len() * size_of::<DispatchCommand>()) as u64
    }
}
