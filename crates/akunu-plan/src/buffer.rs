//! The buffers that commands bind, by id. Their sizes are known before a device is created.

use crate::{Cut, Side};

/// Index into `ModelPlan::buffers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct BufferSpec {
    /// A unique name: `blk.0.attn_q.weight`, `kv.k`, `decode.hidden_a`.
    pub name: String,
    pub bytes: u64,
    pub kind: BufferKind,
    pub home: Home,
}

/// Which devices have a buffer: a set of sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    pub const DEVICE: Home = Home(1);
    pub const HOST: Home = Home(2);
    pub const NOWHERE: Home = Home(0);

    fn of(side: Side) -> Home {
        match side {
            Side::Device => Home::DEVICE,
            Side::Host => Home::HOST,
            Side::Stage(stage) => Home(4 << stage),
        }
    }

    pub fn has(self, side: Side) -> bool {
        self.0 & Home::of(side).0 != 0
    }

    pub fn and(self, side: Side) -> Home {
        Home(self.0 | Home::of(side).0)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum BufferKind {
    /// A matrix in the layout of its file (for an affine type, one of its three planes). Used in place in the mapped
    /// file if the device shares the host's memory.
    Weight {
        tensor: usize,
        plane: usize,
        /// What a rank has of it, if the plan is that of several ranks.
        cut: Option<Cut>,
    },
    /// A norm weight or bias, converted to f32 when loaded: `(v + add) · scale`.
    Vector {
        tensor: usize,
        add: f32,
        scale: f32,
        /// As of a weight, of the numbers in f32.
        cut: Option<Cut>,
    },
    /// Small data computed by the plan, such as RoPE frequencies.
    Constant {
        data: Vec<u8>,
    },
    Kv,
    /// On the device, for weights that the host has: one after the other while a pass runs.
    Slot,
    /// Written in every pass before it is read.
    Scratch,
    /// Rows, tokens and logits: written and read by the host.
    Io,
}

impl BufferSpec {
    /// The buffer of a rank: its name says which part of the weights that rank has.
    pub fn of_rank(&self, rank: usize) -> BufferSpec {
        let mut of_rank = self.clone();
        if let BufferKind::Weight { cut: Some(cut), .. } | BufferKind::Vector { cut: Some(cut), .. } =
            &self.kind
        {
            of_rank.name.push_str(&format!("[{}]", cut.part_name(rank)));
        }
        of_rank
    }
}

impl BufferKind {
    /// Whether the buffer never changes after loading: weights and constants.
    pub fn is_read_only(&self) -> bool {
        matches!(self, BufferKind::Weight { .. } | BufferKind::Vector { .. } | BufferKind::Constant { .. })
    }
}
