//! The buffers that commands bind, by id. Their sizes are known before a device exists.

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
    /// Unique: `blk.0.attn_q.weight`, `kv.k`, `decode.hidden_a`.
    pub name: String,
    pub bytes: u64,
    pub kind: BufferKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BufferKind {
    /// A matrix in its file's layout (of an affine type: one of its three planes), used where the mapping put it if the
    /// device shares memory.
    Weight {
        tensor: usize,
        plane: usize,
    },
    /// A norm weight or bias, converted to f32 when loaded: `(v + add) · scale`.
    Vector {
        tensor: usize,
        add: f32,
        scale: f32,
    },
    /// Small data computed by the plan (RoPE frequencies).
    Constant {
        data: Vec<u8>,
    },
    Kv,
    /// Written before it is read in every pass.
    Scratch,
    /// Rows, tokens and logits: what the host writes and reads.
    Io,
}

impl BufferKind {
    /// Weights and constants never change after loading.
    pub fn is_read_only(&self) -> bool {
        matches!(self, BufferKind::Weight { .. } | BufferKind::Vector { .. } | BufferKind::Constant { .. })
    }
}
