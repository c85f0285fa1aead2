//! A model on a device: passes over rows, and the KV cache they fill.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use akunu_plan::{Capabilities, Device, KvType, Loaded, ModelPlan};

use crate::session::SlotPool;
use crate::{DeviceChoice, Error, Model, Session};

/// Positions of the context where nobody says, unless the model has fewer.
pub const DEFAULT_CONTEXT: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    pub device: DeviceChoice,
    /// Host threads; `None`: one for each core.
    pub threads: Option<usize>,
    /// Positions of each slot; `None`: the model's own, at most 4096.
    pub context: Option<usize>,
    pub kv: KvType,
    /// Sessions held at once.
    pub slots: usize,
    /// Most rows of a prefill pass; `None`: what the device likes.
    pub chunk: Option<usize>,
    /// Most rows of a prefill pass that give logits. 1 is enough to generate; more makes scoring faster and takes
    /// `vocabulary · 4` bytes each.
    pub logit_rows: usize,
    /// Most steps of one decode submission; `None`: what the device likes.
    pub chain: Option<usize>,
    /// Fuse QKV and gate·up where their types agree. Off only to compare.
    pub fuse: bool,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            device: DeviceChoice::Auto,
            threads: None,
            context: None,
            kv: KvType::F16,
            slots: 1,
            chunk: None,
            logit_rows: 1,
            chain: None,
            fuse: true,
        }
    }
}

/// Something decided for the user that is worth a line on stderr. Display is that line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Note {
    #[error("device auto: {device} ({detail})")]
    AutoDevice { device: &'static str, detail: String },
    #[error(
        "the context is {context} of the {trained} positions that the model was trained for; -c asks for more"
    )]
    DefaultContext { context: usize, trained: usize },
    #[error(
        "a context of {context} is more than the {trained} positions that the model was trained for: expect nonsense beyond"
    )]
    BeyondTraining { context: usize, trained: usize },
    #[error(
        "the weights ({weights_bytes} bytes) are larger than the memory available: they are read from disk again for each token"
    )]
    WeightsExceedMemory { weights_bytes: u64 },
}

/// What a prefill did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilled {
    /// Tokens that stood in the session already.
    pub reused: usize,
    /// Tokens that went through the model.
    pub fed: usize,
}

/// Plans a model for a device without allocating or loading anything, and without asking whether it fits.
pub fn plan(model: &Model, capabilities: &Capabilities, options: &EngineOptions) -> Result<ModelPlan, Error> {
    let _ = (model, capabilities, options);
    Err(Error::EmptyPrompt)
}

/// A model that stands on a device.
#[derive(Debug)]
pub struct Engine {
    model: Arc<Model>,
    device: Box<dyn Device>,
    plan: ModelPlan,
    loaded: Loaded,
    pool: Arc<SlotPool>,
    notes: Vec<Note>,
    load_time: Duration,
}

impl Engine {
    /// Opens the device, plans, checks that memory suffices, loads and prepares.
    pub fn new(model: Arc<Model>, options: &EngineOptions) -> Result<Engine, Error> {
        let device = crate::open_device(options.device, options.threads)?;
        Engine::on_device(model, device, options)
    }

    /// As [`Engine::new`], on a device that is open already (`options.device` and `options.threads` are not looked at).
    pub fn on_device(
        model: Arc<Model>,
        device: Box<dyn Device>,
        options: &EngineOptions,
    ) -> Result<Engine, Error> {
        let _ = (model, device, options);
        Err(Error::EmptyPrompt)
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn plan(&self) -> &ModelPlan {
        &self.plan
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Positions of each slot.
    pub fn context(&self) -> usize {
        self.plan.options.context
    }

    pub fn vocab_size(&self) -> usize {
        self.plan.config.vocab_size
    }

    /// What was decided for the user and is worth a line.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Planning, loading and preparing.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// Takes a free slot.
    pub fn session(&mut self) -> Result<Session, Error> {
        let slots = self.plan.options.slots;
        self.pool.take(self.context()).ok_or(Error::NoFreeSlot { slots })
    }

    /// Makes the session's tokens equal to `ids`: keeps the prefix that they share, and feeds the rest (at least the
    /// last token, so that its logits can be had).
    pub fn prefill(&mut self, session: &mut Session, ids: &[u32]) -> Result<Prefilled, Error> {
        let _ = (session, ids, &self.loaded);
        Err(Error::EmptyPrompt)
    }

    /// The logits of the last pass's last row.
    pub fn last_logits(&mut self) -> Result<&[f32], Error> {
        Err(Error::EmptyPrompt)
    }

    /// Decodes greedily: feeds `token`, then what followed from it, `steps` times in one submission. Gives the ids
    /// found, fewer if one of `stop` came up or `cancel` was set; the session then holds `token` and all of them but the last.
    pub fn decode(
        &mut self,
        session: &mut Session,
        token: u32,
        steps: usize,
        stop: &[u32],
        cancel: Option<&AtomicBool>,
    ) -> Result<&[u32], Error> {
        let _ = (session, token, steps, stop, cancel);
        Err(Error::EmptyPrompt)
    }

    /// Forgets `discard` tokens after the first `keep_first` and moves the rest down, their keys turned back to their new
    /// positions. What the rest had seen of the forgotten stays in it, so this is not the same as feeding it anew.
    pub fn shift(&mut self, session: &mut Session, keep_first: usize, discard: usize) -> Result<(), Error> {
        let _ = (session, keep_first, discard);
        Err(Error::EmptyPrompt)
    }

    /// Makes the first `n` tokens of `from` all that `to` holds, without running the model.
    pub fn copy_prefix(&mut self, from: &Session, to: &mut Session, n: usize) -> Result<(), Error> {
        let _ = (from, to, n);
        Err(Error::EmptyPrompt)
    }

    /// The logits of every position of `ids` (`all`) or the last, one row after the other, in passes of at most `chunk`
    /// rows (`None`: as many as the engine was made for). Uses a free slot for the while.
    pub fn logits(&mut self, ids: &[u32], all: bool, chunk: Option<usize>) -> Result<Vec<f32>, Error> {
        let _ = (ids, all, chunk);
        Err(Error::EmptyPrompt)
    }
}
