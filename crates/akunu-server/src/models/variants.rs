//! Models with settings of their own that clients have made of others (Ollama's `create` and `copy`), kept in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use crate::job::{Job, Prompt, SamplingOverrides};
use crate::refusal::{Reason, Refusal};

/// Maximum number of variants, and of bytes of the texts of one.
const MAX_VARIANTS: usize = 256;
pub(crate) const MAX_BYTES: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    /// The model whose weights it has.
    pub(crate) of: String,
    pub(crate) settings: Settings,
    /// Who made it; `None`: the server has no keys.
    pub(crate) owner: Option<u64>,
    pub(crate) created: SystemTime,
}

/// What a variant has of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) system: Option<String>,
    /// Messages before those of a request, in OpenAI's format.
    pub(crate) messages: Vec<Json>,
    /// As they were given.
    pub(crate) parameters: Map<String, Json>,
    pub(crate) license: Vec<String>,
    /// What the parameters mean.
    pub(crate) preset: Preset,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Preset {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingOverrides,
}

impl Variant {
    /// Adds the settings to those of a request, which come first.
    pub(crate) fn apply(&self, job: &mut Job) {
        let Settings { system, messages, preset, .. } = &self.settings;
        for prompt in &mut job.prompts {
            let Prompt::Chat(conversation) = prompt else { continue };
            let is_system = |message: &Json| matches!(message["role"].as_str(), Some("system" | "developer"));
            let own = conversation.messages.first().is_some_and(is_system);
            let system = system.as_ref().filter(|_| !own);
            let before = system.map(|system| json!({ "role": "system", "content": system }));
            conversation.messages.splice(usize::from(own)..usize::from(own), messages.iter().cloned());
            conversation.messages.splice(0..0, before);
        }
        job.max_tokens = job.max_tokens.or(preset.max_tokens);
        if job.stop.is_empty() {
            job.stop.clone_from(&preset.stop);
        }
        job.sampling.fill(&preset.sampling);
    }
}

#[derive(Debug, Default)]
pub(super) struct Variants(Mutex<Vec<Arc<Variant>>>);

impl Variants {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Variant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<Variant>> {
        self.lock().clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Variant>> {
        self.lock().iter().find(|variant| variant.name == name).cloned()
    }

    /// Adds a variant, or replaces that of its name.
    pub(super) fn put(&self, variant: Variant) -> Result<(), Refusal> {
        let mut all = self.lock();
        match all.iter().position(|known| known.name == variant.name) {
            Some(index) => {
                check_owner(&all[index], variant.owner)?;
                all[index] = Arc::new(variant);
            }
            None if all.len() >= MAX_VARIANTS => {
                let message =
                    format!("the server has {MAX_VARIANTS} models made by clients, the most it keeps");
                return Err(Refusal::new(Reason::TooMany, message).code("too_many_models"));
            }
            None => all.push(Arc::new(variant)),
        }
        Ok(())
    }

    /// False: there is none of this name.
    pub(super) fn remove(&self, name: &str, owner: Option<u64>) -> Result<bool, Refusal> {
        let mut all = self.lock();
        let Some(index) = all.iter().position(|variant| variant.name == name) else { return Ok(false) };
        check_owner(&all[index], owner)?;
        all.remove(index);
        Ok(true)
    }
}

fn check_owner(variant: &Variant, owner: Option<u64>) -> Result<(), Refusal> {
    match variant.owner == owner {
        true => Ok(()),
        false => {
            let message = format!("the model \"{}\" was made with another API key", variant.name);
            Err(Refusal::new(Reason::Forbidden, message).param("model"))
        }
    }
}

impl SamplingOverrides {
    /// Takes what is not set from others.
    pub(crate) fn fill(&mut self, others: &SamplingOverrides) {
        self.temperature = self.temperature.or(others.temperature);
        self.top_k = self.top_k.or(others.top_k);
        self.top_p = self.top_p.or(others.top_p);
        self.min_p = self.min_p.or(others.min_p);
        self.repeat_penalty = self.repeat_penalty.or(others.repeat_penalty);
        self.frequency_penalty = self.frequency_penalty.or(others.frequency_penalty);
        self.presence_penalty = self.presence_penalty.or(others.presence_penalty);
        self.repeat_last_n = self.repeat_last_n.or(others.repeat_last_n);
        if self.logit_bias.is_empty() {
            self.logit_bias.clone_from(&others.logit_bias);
        }
        self.samplers.fill(&others.samplers);
        self.seed = self.seed.or(others.seed);
    }
}
