//! Plans a model for a device: buffers, tables and their memory.

use std::sync::Arc;

use akunu_arch::{ModelConfig, Pooling, WeightProvider};

use crate::{
    BufferId, BufferSpec, Capabilities, Card, DispatchTable, KvType, Paging, Row, Side, Strips, Tables,
};

#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// Most positions of a sequence.
    pub context: usize,
    /// Maximum number of sequences at once.
    pub slots: usize,
    pub kv: KvType,
    /// Bytes of the KV cache, of which whole blocks are used, at least those of a context; `None`: enough for the contexts of
    /// all slots, which is also the most.
    pub kv_bytes: Option<u64>,
    /// Rows of the prefill table.
    pub prefill_rows: usize,
    /// Rows of a prefill pass whose logits may be requested.
    pub prefill_logit_rows: usize,
    /// Maximum number of steps in a decode submission.
    pub chain: usize,
    /// Windows of audio that the encoder computes in a pass; 1 for models that do not hear.
    pub windows: usize,
    /// Slots, one after the other, whose sequences are about the same window of audio; 1 for models that do not hear.
    pub beams: usize,
    /// Whether there is a table for the times of words ([`crate::PassKind::Align`]), in models that hear.
    pub word_times: bool,
    /// Fuse Q, K and V, and gate and up, if dtypes are equal, and products with their activations, and fold operations as
    /// the device asks. Disabled only in tests.
    pub fuse: bool,
    /// Write the inputs of products as f32 even if products read them rounded, and normalise them before products:
    /// [`crate::product_inputs`] finds them.
    pub keep_inputs: bool,
    /// What the device of the host computes, if there is one beside the device.
    pub host: OnHost,
    /// The layer at which each device after the first begins, if several share out the layers: the first one also has the
    /// embedding, and the last one the output.
    pub stages: Vec<usize>,
    /// Prefill passes of so many rows and more copy the host's weights to the device and multiply them there; `None`: none
    /// do, and there are no slots for them.
    pub stream_rows: Option<usize>,
}

impl PlanOptions {
    /// Which device computes a layer, without routed experts that the host has.
    pub fn side_of(&self, layer: usize) -> Side {
        if layer < self.host.layers {
            return Side::Host;
        }
        match self.stages.iter().filter(|first| layer >= **first).count() {
            last if last == self.stages.len() => Side::Device,
            stage => Side::Stage(stage as u8),
        }
    }
}

/// The parts of a model that the device of the host computes, from its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnHost {
    /// The embedding and so many of the first layers, with their KV cache.
    pub layers: usize,
    /// The routed experts of so many of the first layers.
    pub experts: usize,
}

impl OnHost {
    pub fn is_nothing(self) -> bool {
        self == OnHost::default()
    }
}

/// Everything that is known before a device allocates memory.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    pub config: ModelConfig,
    pub arch: &'static Card,
    pub options: PlanOptions,
    /// Indexed by `BufferId`; shared by all tables.
    pub buffers: Vec<BufferSpec>,
    pub tables: Tables,
    pub cache: CachePlan,
    /// Logical cache positions of a slot: the context, rounded up to whole blocks.
    pub slot_positions: u32,
    /// The same for a window of audio in the cache of the encoder's states; 0 for models that do not hear.
    pub window_positions: u32,
    /// The heads of which the table for the times of words writes scores; 0 without it.
    pub aligned_heads: usize,
    pub memory: MemoryPlan,
    /// That of the devices before the last one, which `memory` is about, if several share out the layers.
    pub stages: Vec<MemoryPlan>,
    /// If experts are paged.
    pub paging: Option<Paging>,
}

impl ModelPlan {
    /// The memory of each device, in the order of [`Capabilities::devices`].
    ///
    /// [`Capabilities::devices`]: crate::Capabilities::devices
    pub fn memory_of_devices(&self) -> impl Iterator<Item = &MemoryPlan> {
        self.stages.iter().chain([&self.memory])
    }

    /// The memory of all devices together.
    pub fn whole_memory(&self) -> MemoryPlan {
        self.stages.iter().fold(self.memory, |all, stage| all + *stage)
    }

    /// The rows of the encoder's pass over a window of audio, which slots from `window · beams` on attend to.
    pub fn window_rows(&self, window: u32) -> impl Iterator<Item = Row> + use<> {
        let (start, count) =
            (window * self.window_positions, self.config.encoder.map_or(0, |e| e.positions as u32));
        (0..count).map(move |position| Row { token: 0, position, kv_len: count, start })
    }

    /// The logical cache position at which the sequence of a slot begins: [`crate::Row::start`].
    pub fn slot_start(&self, slot: u32) -> u32 {
        slot * self.slot_positions
    }
}

/// The blocks of the KV cache ([`crate::blocks`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// The buffer of the table: for each slot, the block of each run of its positions. [`crate::load()`] writes
    /// [`crate::blocks::identity`]. `None` if all layers have blocks of `windows`: the others then only name
    /// positions.
    pub table: Option<BufferId>,
    /// Positions of a block.
    pub block: u32,
    /// Number of blocks.
    pub count: u32,
    /// Entries of a slot in the table.
    pub slot_blocks: u32,
    /// The keys and values of these blocks: for each head of each layer, those of all positions. The same buffer if rows
    /// are both.
    pub k: BufferId,
    pub v: BufferId,
    /// Number of heads in all layers together.
    pub heads: u32,
    /// Bytes of a position of one head.
    pub row_bytes: u32,
    /// The blocks of sliding-window layers, if they have their own, or the slots of states.
    pub windows: Option<WindowPlan>,
    /// Ranks that have such blocks, each for its heads.
    pub ranks: u32,
    /// Layers whose keys and values are in buffers of other devices, and not in these.
    pub other_layers: u32,
}

impl CachePlan {
    /// Where the keys, or the values, of a block are in their buffer.
    pub fn strips(&self, block: u32) -> Strips {
        let bytes = self.block as usize * self.row_bytes as usize;
        let pitch = bytes as u64 * u64::from(self.count);
        Strips { first: u64::from(block) * bytes as u64, bytes, pitch, count: self.heads as usize }
    }

    /// The buffers of keys and values.
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> + use<> {
        [Some(self.k), (self.v != self.k).then_some(self.v)].into_iter().flatten()
    }

    /// Bytes of the keys, or the values, of a block on all ranks.
    pub fn half_block_bytes(&self) -> usize {
        self.strips(0).all() * self.ranks as usize
    }

    /// Bytes of the keys and values of a block on all ranks.
    pub fn block_bytes(&self) -> usize {
        self.buffers().count() * self.half_block_bytes()
    }
}

/// Blocks of sliding-window layers, of as many positions as the others, or slots for the states of layers without attention,
/// one for each such block. A sequence needs those that a row of a pass sees or writes, and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPlan {
    /// As that of [`CachePlan`], with as many entries.
    pub table: BufferId,
    /// Number of blocks, which is enough for all slots at once.
    pub count: u32,
    /// The most positions that a row sees, its own included.
    pub positions: u32,
    /// They hold states ([`crate::state`]), which a sequence can go on from after the last position of a block, or after its
    /// own last position.
    pub are_states: bool,
}

/// Bytes by purpose. Their sum without weights in place is what the device allocates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights used in the mapped file; 0 on a device with its own memory.
    pub weights_in_place: u64,
    /// Of these, the weights that are made of the files when they are first read, in memory of their own.
    pub weights_made: u64,
    /// Weights copied to the device, including norm weights and biases converted to f32.
    pub weights_copied: u64,
    pub constants: u64,
    pub kv: u64,
    /// Slots of the device for weights that the host has.
    pub slots: u64,
    /// Slots for experts that are paged, unless the device of the host has them.
    pub expert_slots: u64,
    pub scratch: u64,
    pub io: u64,
    /// Memory for the device's own use.
    pub workspace: u64,
    /// The commands themselves, on the host.
    pub tables: u64,
    /// What a device with memory of its own needs beside that while it loads: a copy of the largest weight, which is
    /// repacked, and what allocations are rounded up by.
    pub loading: u64,
    /// Memory of the host for blocks of the cache that the device has no memory for.
    pub host_cache: u64,
    /// Weights that the device of the host uses in the mapped file, if a part of the model is on the host.
    pub host_weights: u64,
    /// What that device allocates: its part of the KV cache, and memory for its work; and what its weights are copied through
    /// for prompts that stream.
    pub host_work: u64,
}

impl std::ops::Add for MemoryPlan {
    type Output = MemoryPlan;

    fn add(self, other: MemoryPlan) -> MemoryPlan {
        MemoryPlan {
            weights_in_place: self.weights_in_place + other.weights_in_place,
            weights_made: self.weights_made + other.weights_made,
            weights_copied: self.weights_copied + other.weights_copied,
            constants: self.constants + other.constants,
            kv: self.kv + other.kv,
            slots: self.slots + other.slots,
            expert_slots: self.expert_slots + other.expert_slots,
            scratch: self.scratch + other.scratch,
            io: self.io + other.io,
            workspace: self.workspace + other.workspace,
            tables: self.tables + other.tables,
            loading: self.loading + other.loading,
            host_cache: self.host_cache + other.host_cache,
            host_weights: self.host_weights + other.host_weights,
            host_work: self.host_work + other.host_work,
        }
    }
}

impl MemoryPlan {
    /// Memory that the device allocates.
    pub fn allocated(&self) -> u64 {
        let weights = self.weights_copied + self.slots + self.expert_slots;
        weights + self.constants + self.kv + self.scratch + self.io + self.workspace
    }

    /// The most memory that the device needs at any time.
    pub fn peak(&self) -> u64 {
        self.allocated() + self.loading
    }

    /// Everything but what the device of the host has.
    pub fn total(&self) -> u64 {
        self.allocated() + self.weights_in_place + self.tables + self.host_cache
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("architecture \"{0}\" is not supported; supported are {1}")]
    UnknownArchitecture(String, String),
    #[error("tensor {0} is missing: the file is incomplete, or the model is not supported")]
    MissingTensor(String),
    #[error("tensor {name} has shape {found:?}; the file's configuration requires {expected:?}")]
    Shape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {name} is {found}, which is not supported for {role}")]
    TensorType { name: String, found: &'static str, role: &'static str },
    #[error("tensor {name} is in the file, but is not part of architecture \"{architecture}\"")]
    UnusedTensor { name: String, architecture: String },
    #[error("{0}")]
    Unsupported(String),
}

/// Options for computing embeddings or scores of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodeOptions {
    /// Maximum number of tokens of a text.
    pub longest: usize,
    /// Rows of a pass, of one text or of several.
    pub rows: usize,
    /// Maximum number of vectors of a pass: one per text, or one per row.
    pub texts: usize,
    /// Storage type of the keys and values of a pass.
    pub kv: KvType,
    pub output: EncodeOutput,
    /// As in [`PlanOptions`].
    pub fuse: bool,
}

/// The result for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeOutput {
    Vectors(Pooling),
    /// The scores of the model's classifier.
    Scores,
    /// The logits of the next token.
    Logits,
}

/// Everything that is known of an encoder before a device allocates memory.
#[derive(Clone, Debug)]
pub struct EncodePlan {
    pub config: ModelConfig,
    pub arch: &'static Card,
    pub options: EncodeOptions,
    /// Indexed by `BufferId`.
    pub buffers: Vec<BufferSpec>,
    pub table: Arc<DispatchTable>,
    /// Elements of one vector.
    pub width: usize,
    /// Texts begin at multiples of this in the cache of the pass.
    pub alignment: usize,
    pub memory: MemoryPlan,
}

impl EncodePlan {
    /// Whether a classifier reads the first token's hidden state, and not the last one or the mean.
    pub fn scores_first(&self) -> bool {
        let stated = self.config.embedding.classifier_pooling.unwrap_or(Pooling::First);
        self.config.bidirectional && stated == Pooling::First
    }
}

/// Plans a model for embeddings or scores of texts. The only weights read are RoPE frequency factors and position
/// biases.
pub fn plan_encoder(
    weights: &dyn WeightProvider,
    capabilities: &Capabilities,
    options: &EncodeOptions,
) -> Result<EncodePlan, PlanError> {
    crate::lower::plan_encoder(weights, capabilities, options)
}

/// Plans a model for a device. The only weights read are RoPE frequency factors.
pub fn plan(
    weights: &dyn WeightProvider,
    capabilities: &Capabilities,
    options: &PlanOptions,
) -> Result<ModelPlan, PlanError> {
    crate::lower::plan(weights, capabilities, options)
}
