//! Models with settings of their own that clients have made of others (Ollama's `create` and `copy`). With keys, each belongs
//! to the key that made it, and is not there for others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};
use tokio::task_local;

use super::Facts;
use crate::app::{App, Caller};
use crate::job::{Conversation, Job, Prompt, SamplingOverrides};
use crate::refusal::{Reason, Refusal};

/// Maximum number of variants, of those of one key, and of bytes of the texts of one.
const MAX_VARIANTS: usize = 256;
const MAX_OF_OWNER: usize = 32;
pub(crate) const MAX_BYTES: usize = 64 << 10;

/// Who made a variant.
pub(crate) type Owner = Option<[u8; 32]>;

task_local! {
    /// The caller of the request that is handled.
    static CALLER: Owner;
}

/// Makes the caller known where variants are looked for.
pub(crate) async fn of_caller(
    State(app): State<App>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    CALLER.scope(app.keys().digest(caller), next.run(request)).await
}

#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    /// The model whose weights it has.
    pub(crate) of: String,
    pub(crate) settings: Settings,
    /// The digest of the key that made it; `None`: the server has no keys, or made it itself.
    pub(crate) owner: Owner,
    pub(crate) created: SystemTime,
}

/// What a variant has of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) system: Option<String>,
    /// In place of the model's chat template.
    pub(crate) template: Option<Arc<str>>,
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
    fn is_visible(&self) -> bool {
        self.owner.is_none() || CALLER.try_with(|caller| *caller == self.owner).unwrap_or(false)
    }

    /// Adds the settings to those of a request, which come first.
    pub(crate) fn apply(&self, job: &mut Job) {
        let preset = &self.settings.preset;
        for prompt in &mut job.prompts {
            if let Prompt::Chat(conversation) = prompt {
                self.begin(conversation);
            }
        }
        job.max_tokens = job.max_tokens.or(preset.max_tokens);
        if job.stop.is_empty() {
            job.stop.clone_from(&preset.stop);
        }
        job.sampling.fill(&preset.sampling);
    }

    /// Changes what a description of the model that it was made from says of its template.
    pub(crate) fn describe(&self, model: &mut Json, facts: Option<&Facts>) {
        if let (Some(_), Some(facts)) = (&self.settings.template, facts) {
            model["capabilities"] = facts.of_variant(Some(self)).capabilities().into();
        }
    }

    /// Begins a conversation with its system message, if it has none of its own, and messages; its template writes it.
    pub(crate) fn begin(&self, conversation: &mut Conversation) {
        let Settings { system, template, messages, .. } = &self.settings;
        conversation.template.clone_from(template);
        let is_system = |message: &Json| matches!(message["role"].as_str(), Some("system" | "developer"));
        let own = conversation.messages.first().is_some_and(is_system);
        let system = system.as_ref().filter(|_| !own);
        let before = system.map(|system| json!({ "role": "system", "content": system }));
        conversation.messages.splice(usize::from(own)..usize::from(own), messages.iter().cloned());
        conversation.messages.splice(0..0, before);
    }
}

#[derive(Debug, Default)]
pub(super) struct Variants(Mutex<Vec<Arc<Variant>>>);

impl Variants {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Variant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of the caller.
    pub(super) fn all(&self) -> Vec<Arc<Variant>> {
        self.lock().iter().filter(|variant| variant.is_visible()).cloned().collect()
    }

    /// Those of all owners.
    pub(super) fn of_all(&self) -> Vec<Arc<Variant>> {
        self.lock().clone()
    }

    /// The caller's variant of a name.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Variant>> {
        self.lock().iter().find(|variant| variant.name == name && variant.is_visible()).cloned()
    }

    /// Adds a variant, or replaces the owner's of its name.
    pub(super) fn put(&self, variant: Variant) -> Result<(), Refusal> {
        let mut all = self.lock();
        let of_owner = all.iter().filter(|known| known.owner == variant.owner).count();
        match all.iter().position(|known| known.name == variant.name && known.owner == variant.owner) {
            Some(index) => all[index] = Arc::new(variant),
            None if all.len() >= MAX_VARIANTS => return Err(too_many("the server has", MAX_VARIANTS)),
            None if variant.owner.is_some() && of_owner >= MAX_OF_OWNER => {
                return Err(too_many("this API key has", MAX_OF_OWNER));
            }
            None => all.push(Arc::new(variant)),
        }
        Ok(())
    }

    /// False: the owner has none of this name.
    pub(super) fn remove(&self, name: &str, owner: Owner) -> bool {
        let mut all = self.lock();
        let before = all.len();
        all.retain(|variant| !(variant.name == name && variant.owner == owner));
        all.len() < before
    }
}

fn too_many(who: &str, most: usize) -> Refusal {
    let message = format!("{who} {most} models made by clients, the most that are kept");
    Refusal::new(Reason::TooMany, message).code("too_many_models")
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
