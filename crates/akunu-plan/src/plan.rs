//! From a model file to everything a device needs: buffers, tables and the memory they take.

use std::sync::Arc;

use akunu_arch::{ModelConfig, Pooling, WeightProvider};

use crate::{BufferSpec, Capabilities, Card, DispatchTable, KvType, Tables};

#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// KV cache positions of each slot.
    pub context: usize,
    /// Sequences held at once.
    pub slots: usize,
    pub kv: KvType,
    /// Rows of the prefill table.
    pub prefill_rows: usize,
    /// Rows of a prefill pass that may ask for logits.
    pub prefill_logit_rows: usize,
    /// Most steps in one decode submission.
    pub chain: usize,
    /// Fuse QKV and gate·up where dtypes agree, and fold what the device asks for. Off only for tests.
    pub fuse: bool,
}

/// Everything that is known before a device allocates anything.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    pub config: ModelConfig,
    pub arch: &'static Card,
    pub options: PlanOptions,
    /// Indexed by `BufferId`; shared by all tables.
    pub buffers: Vec<BufferSpec>,
    pub tables: Tables,
    /// Positions of the cache that a slot has: the context, in whole groups of keys.
    pub slot_positions: u32,
    pub memory: MemoryPlan,
}

impl ModelPlan {
    /// The position of the cache at which a slot's sequence begins: [`crate::Row::start`].
    pub fn slot_start(&self, slot: u32) -> u32 {
        slot * self.slot_positions
    }
}

/// Bytes by purpose. Their sum, less what is used in place, is what the device allocates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Used where the mapping put them; 0 on a device with memory of its own.
    pub weights_in_place: u64,
    /// Copied to the device, norm weights and biases converted to f32 included.
    pub weights_copied: u64,
    pub constants: u64,
    pub kv: u64,
    pub scratch: u64,
    pub io: u64,
    /// The device's own.
    pub workspace: u64,
    /// The commands themselves, on the host.
    pub tables: u64,
}

impl MemoryPlan {
    /// What the device allocates.
    pub fn allocated(&self) -> u64 {
        self.weights_copied + self.constants + self.kv + self.scratch + self.io + self.workspace
    }

    pub fn total(&self) -> u64 {
        self.allocated() + self.weights_in_place + self.tables
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("architecture \"{0}\" is not supported; supported are {1}")]
    UnknownArchitecture(String, String),
    #[error("tensor {0} is missing: the file is incomplete or not a model that runs")]
    MissingTensor(String),
    #[error("tensor {name} has shape {found:?}; {expected:?} was expected from the file's own configuration")]
    Shape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {name} is {found}, which cannot serve as {role}")]
    TensorType { name: String, found: &'static str, role: &'static str },
    #[error("tensor {name} is in the file, but architecture \"{architecture}\" has no place for it")]
    UnusedTensor { name: String, architecture: String },
    #[error("{0}")]
    Unsupported(String),
}

/// How a model makes vectors or scores of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodeOptions {
    /// Tokens of the longest text.
    pub longest: usize,
    /// Rows of a pass, of one text or of several.
    pub rows: usize,
    /// Rows of a pass that give a vector: its texts, or all of its rows.
    pub texts: usize,
    /// How the keys and values of a pass are stored.
    pub kv: KvType,
    pub output: EncodeOutput,
    /// As in [`PlanOptions`].
    pub fuse: bool,
}

/// What a text becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeOutput {
    Vectors(Pooling),
    /// What the model's classifier gives.
    Scores,
    /// The logits of what follows it.
    Logits,
}

/// Everything that is known of an encoder before a device allocates anything.
#[derive(Clone, Debug)]
pub struct EncodePlan {
    pub config: ModelConfig,
    pub arch: &'static Card,
    pub options: EncodeOptions,
    /// Indexed by `BufferId`.
    pub buffers: Vec<BufferSpec>,
    pub table: Arc<DispatchTable>,
    /// Numbers of one vector.
    pub width: usize,
    /// Texts begin at its multiples in the pass's cache.
    pub alignment: usize,
    pub memory: MemoryPlan,
}

impl EncodePlan {
    /// Whether a classifier reads the state of a text's first token, and not of its last one or all of them.
    pub fn scores_first(&self) -> bool {
        let stated = self.config.embedding.classifier_pooling.unwrap_or(Pooling::First);
        self.config.bidirectional && stated == Pooling::First
    }
}

/// Plans a model that makes vectors or scores of texts. Reads no weights but RoPE frequency factors and position biases.
pub fn plan_encoder(
    weights: &dyn WeightProvider,
    capabilities: &Capabilities,
    options: &EncodeOptions,
) -> Result<EncodePlan, PlanError> {
    crate::lower::plan_encoder(weights, capabilities, options)
}

/// Plans a model for a device. Reads no weights but the RoPE frequency factors.
pub fn plan(
    weights: &dyn WeightProvider,
    capabilities: &Capabilities,
    options: &PlanOptions,
) -> Result<ModelPlan, PlanError> {
    crate::lower::plan(weights, capabilities, options)
}
