//! The dispatch table: a forward pass as a flat list of commands, with every kernel, buffer and parameter resolved.

use bytemuck::{AnyBitPattern, NoUninit};

use crate::{BufferId, Kernel, Row};

/// Q, K and V of an affine type with biases: the input, three planes of each weight, the output, three biases; and two to spare.
pub const MAX_BINDINGS: usize = 16;
pub const PARAM_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub buffer: BufferId,
    /// In bytes.
    pub offset: u64,
}

/// What may change between replays; the rest of a command is immutable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    None,
    /// Reads the rows' tokens.
    TokenOffset,
    Position,
    KvLen,
    PositionAndKvLen,
    /// Writes a step's token ids.
    ArgmaxOutput,
    /// The grid's second dimension follows the number of live rows.
    Rows,
    /// The grid's second dimension follows the number of rows that ask for logits.
    LogitRows,
}

/// One kernel launch. `grid` counts what is dealt out: outputs or heads in x, rows in y (at their most).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DispatchCommand {
    pub kernel: Kernel,
    pub bindings: [Binding; MAX_BINDINGS],
    pub binding_count: u8,
    pub params: [u8; PARAM_BYTES],
    pub threadgroup_bytes: u32,
    pub grid: [u32; 3],
    pub threadgroup: [u32; 3],
    pub patch: Patch,
}

impl DispatchCommand {
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings[..self.binding_count as usize]
    }

    /// The inline parameters, as the kernel's own struct.
    pub fn params<P: AnyBitPattern>(&self) -> P {
        bytemuck::pod_read_unaligned(&self.params[..size_of::<P>()])
    }
}

/// The buffers through which host and table talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableIo {
    /// `[Row; rows]`
    pub rows: BufferId,
    /// `[u32; logit_rows]`: which rows ask for logits.
    pub logit_rows: BufferId,
    /// `[u32; steps + 1][logit_rows]`: the ids found; entry 0 is unused.
    pub tokens: BufferId,
    /// `[f32; logit_rows][vocab]`
    pub logits: BufferId,
}

/// What a table's rows say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowMeaning {
    /// A token to run.
    Token,
    /// [`Kernel::KvShift`]'s.
    Shift,
    /// [`Kernel::KvCopy`]'s.
    Copy,
}

/// What a row may say without leading a kernel outside its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBounds {
    pub meaning: RowMeaning,
    pub vocab: u32,
    pub capacity: u32,
    pub slots: u32,
}

impl RowBounds {
    /// Whether the row stays inside for `steps` steps.
    pub fn admit(&self, row: &Row, steps: usize) -> bool {
        let (token, position, len) = (u64::from(row.token), u64::from(row.position), u64::from(row.kv_len));
        let more = steps as u64 - 1;
        let fits = row.slot < self.slots && len + more <= u64::from(self.capacity);
        fits && match self.meaning {
            RowMeaning::Token => row.token < self.vocab && position < len,
            RowMeaning::Shift => position + token <= len,
            RowMeaning::Copy => row.token < self.slots,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct DispatchTable {
    /// `decode`, `prefill`, `kv_shift`, …
    pub name: &'static str,
    pub commands: Vec<DispatchCommand>,
    /// Parallel to `commands`, cold: `layer.3.attention`.
    pub labels: Vec<String>,
    /// The most rows that a pass may have.
    pub rows: usize,
    /// The most rows that may ask for logits.
    pub logit_rows: usize,
    /// The most steps that one submission may chain.
    pub steps: usize,
    pub io: TableIo,
    pub bounds: RowBounds,
}

impl DispatchTable {
    /// Bytes of the hot part.
    pub fn bytes(&self) -> u64 {
        (self.commands.len() * size_of::<DispatchCommand>()) as u64
    }
}

/// Writes one command fluently: bindings in the kernel's order, then geometry.
#[derive(Debug)]
pub struct CommandBuilder {
    command: DispatchCommand,
}

impl CommandBuilder {
    pub fn new(kernel: Kernel) -> CommandBuilder {
        let unbound = Binding { buffer: BufferId(u32::MAX), offset: 0 };
        CommandBuilder {
            command: DispatchCommand {
                kernel,
                bindings: [unbound; MAX_BINDINGS],
                binding_count: 0,
                params: [0; PARAM_BYTES],
                threadgroup_bytes: 0,
                grid: [1; 3],
                threadgroup: [1; 3],
                patch: Patch::None,
            },
        }
    }

    pub fn bind(self, buffer: BufferId) -> CommandBuilder {
        self.bind_at(buffer, 0)
    }

    pub fn bind_at(mut self, buffer: BufferId, offset: u64) -> CommandBuilder {
        let next = self.command.binding_count as usize;
        assert!(next < MAX_BINDINGS, "{} binds more than {MAX_BINDINGS} buffers", self.command.kernel.name());
        self.command.bindings[next] = Binding { buffer, offset };
        self.command.binding_count += 1;
        self
    }

    pub fn bind_if(self, buffer: Option<BufferId>) -> CommandBuilder {
        match buffer {
            Some(buffer) => self.bind(buffer),
            None => self,
        }
    }

    pub fn params<P: NoUninit>(mut self, params: P) -> CommandBuilder {
        let bytes = bytemuck::bytes_of(&params);
        self.command.params[..bytes.len()].copy_from_slice(bytes);
        self
    }

    pub fn grid(mut self, x: usize, y: usize) -> CommandBuilder {
        self.command.grid = [x as u32, y as u32, 1];
        self
    }

    pub fn patch(mut self, patch: Patch) -> CommandBuilder {
        self.command.patch = patch;
        self
    }

    /// Checks the bindings against the kernel's list.
    pub fn build(self) -> DispatchCommand {
        let expected = self.command.kernel.bindings().len();
        let bound = self.command.binding_count as usize;
        assert_eq!(bound, expected, "{} binds {expected} buffers", self.command.kernel.name());
        self.command
    }
}
