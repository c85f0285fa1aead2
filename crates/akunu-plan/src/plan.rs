//! From a model file to everything a device needs: buffers, tables and the memory they take.

use std::sync::Arc;

use akunu_arch::{ModelConfig, WeightProvider};

use crate::{BufferId, BufferSpec, Capabilities, Card, DispatchTable, KvType};

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
    pub memory: MemoryPlan,
}

#[derive(Clone, Debug)]
pub struct Tables {
    /// One row; chains.
    pub decode: Arc<DispatchTable>,
    pub prefill: Arc<DispatchTable>,
    /// As `prefill`, into the same inputs and outputs, for fewer rows: where `prefill` unpacks its weights ([`crate::halves`]).
    pub few: Option<Arc<DispatchTable>>,
    /// On devices that pick tokens themselves.
    pub sampled: Option<SampledTables>,
    /// One row of cache maintenance each; see `Kernel::KvShift` and `Kernel::KvCopy`.
    pub kv_shift: Arc<DispatchTable>,
    pub kv_copy: Arc<DispatchTable>,
}

/// Tables whose tokens are sampled. Their records ([`crate::sample`]) are uploaded before a submission.
#[derive(Clone, Debug)]
pub struct SampledTables {
    /// As `decode`, but that a sample ends each step.
    pub decode: Arc<DispatchTable>,
    /// The one record of `decode`.
    pub decode_records: BufferId,
    /// One command, which picks from the logits of the last prefill pass for the same rows.
    pub pick: Arc<DispatchTable>,
    /// A record for each of the rows of `pick` that ask for logits.
    pub pick_records: BufferId,
}

impl Tables {
    pub fn all(&self) -> impl Iterator<Item = &Arc<DispatchTable>> {
        let sampled = self.sampled.iter().flat_map(|sampled| [&sampled.decode, &sampled.pick]);
        let all = [&self.decode, &self.prefill, &self.kv_shift, &self.kv_copy];
        all.into_iter().chain(&self.few).chain(sampled)
    }

    /// What so many rows of a prompt, or of several sequences, go through.
    pub fn feeding(&self, rows: usize) -> &Arc<DispatchTable> {
        self.few_for(rows).unwrap_or(&self.prefill)
    }

    /// [`Tables::few`], where it has room for so many rows.
    pub(crate) fn few_for(&self, rows: usize) -> Option<&Arc<DispatchTable>> {
        self.few.as_ref().filter(|few| rows <= few.rows)
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

/// Plans a model for a device. Reads no weights but the RoPE frequency factors.
pub fn plan(
    weights: &dyn WeightProvider,
    capabilities: &Capabilities,
    options: &PlanOptions,
) -> Result<ModelPlan, PlanError> {
    crate::build::plan(weights, capabilities, options)
}
