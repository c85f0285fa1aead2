//! A model of the server, loaded or not, and what is known of it without loading it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use akunu::chat::{CallMarks, ChatError, ChatTemplate, ChatTemplates, Tags};
use akunu::embed::default_longest;
use akunu::{EngineOptions, Model};
use akunu_arch::Source;
use akunu_format::TensorInfo;
use akunu_tokenizer::InfillTokens;

use super::digest::Digest;
use super::{Kind, Lease, Loaded, ModelSpec, ModelsOptions, Variant};

/// What is known of a model without loading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: Kind,
    /// The most tokens of a prompt and its answer, or of a text, if memory suffices; `None`: it takes no texts.
    pub context: Option<usize>,
    /// What the model was trained for.
    pub trained_context: usize,
    /// The architecture, such as `llama`.
    pub family: String,
    /// `gguf`, `ggml` or `safetensors`.
    pub format: &'static str,
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// The type of the largest tensor.
    pub quantisation: &'static str,
    /// Whether its template has tools, whose calls can be parsed.
    pub has_tools: bool,
    /// Whether its template has reasoning.
    pub has_reasoning: bool,
    /// Whether its vocabulary has tokens to fill in a middle.
    pub has_infill: bool,
}

impl Facts {
    pub(super) fn of(spec: &ModelSpec, model: &Model, options: &ModelsOptions) -> Facts {
        let (config, tensors) = (model.config(), model.weights().tensors());
        let kind = Kind::of(model, options);
        let elements = |tensor: &TensorInfo| tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        let chat_template = chat_template(spec, model, options).ok();
        let generates = kind == Kind::Generates;
        let facts = Facts {
            kind,
            context: match kind {
                Kind::Generates => Some(options.engine.context.unwrap_or(config.context_length)),
                Kind::Embeds(_) | Kind::Scores => {
                    Some(longest_text(model, &options.engine).unwrap_or(default_longest(config)))
                }
                Kind::Transcribes => None,
            },
            trained_context: config.context_length,
            family: config.architecture.clone(),
            format: match config.source {
                Source::Gguf => "gguf",
                Source::Ggml => "ggml",
                Source::HuggingFace => "safetensors",
            },
            parameters: tensors.iter().map(elements).sum(),
            bytes: tensors.iter().map(|tensor| tensor.bytes as u64).sum(),
            quantisation: tensors
                .iter()
                .max_by_key(|tensor| elements(tensor))
                .map_or("", |tensor| tensor.dtype.name()),
            has_tools: false,
            has_reasoning: false,
            has_infill: generates
                && model.tokenizer().is_ok_and(|tokenizer| InfillTokens::of(&**tokenizer).is_some()),
        };
        let Some(template) = chat_template else { return facts };
        let facts = facts.with_template(template.source());
        Facts { has_tools: facts.has_tools || CallMarks::one_for_tools(&template).is_some(), ..facts }
    }

    /// Those of a model that a client has made of this one.
    pub(crate) fn of_variant(&self, variant: Option<&Variant>) -> Facts {
        match variant.and_then(|variant| variant.settings.template.as_ref()) {
            Some(template) => self.clone().with_template(template),
            None => self.clone(),
        }
    }

    fn with_template(self, template: &str) -> Facts {
        let generates = self.kind == Kind::Generates;
        Facts {
            has_tools: generates && CallMarks::of_template(template).is_some(),
            has_reasoning: generates && template.contains(Tags::of_template(template).close),
            ..self
        }
    }

    /// What the model can do, under Ollama's names.
    pub(crate) fn capabilities(&self) -> Vec<&'static str> {
        let all = [
            (self.kind.capability(), true),
            ("tools", self.has_tools),
            ("thinking", self.has_reasoning),
            ("insert", self.has_infill),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }
}

/// The chat template of a model. `Err`: why there is none.
pub(super) fn chat_template(
    spec: &ModelSpec,
    model: &Model,
    options: &ModelsOptions,
) -> Result<ChatTemplate, String> {
    let missing = |error: ChatError| match error {
        ChatError::Missing => "its files contain none".to_string(),
        error => error.to_string(),
    };
    let templates = match &options.chat_templates {
        Some(templates) => templates.clone(),
        None => ChatTemplates::find(model.metadata(), spec.path.as_deref()).map_err(missing)?,
    };
    let tokenizer = model.tokenizer().map_err(|error| error.to_string())?;
    templates.template(None, &**tokenizer).map_err(missing)
}

/// The most tokens of a text of a model that makes vectors or scores, if the server's options limit it.
pub(super) fn longest_text(model: &Model, engine: &EngineOptions) -> Option<usize> {
    engine.context.map(|context| context.min(model.config().context_length))
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) spec: Arc<ModelSpec>,
    /// Read from the model's files on first use.
    pub(super) facts: OnceLock<Arc<Facts>>,
    pub(super) digest: Digest,
    loaded: Mutex<Option<Arc<Loaded>>>,
}

impl Entry {
    pub(super) fn new(spec: ModelSpec) -> Entry {
        Entry {
            spec: Arc::new(spec),
            facts: OnceLock::new(),
            digest: Digest::default(),
            loaded: Mutex::new(None),
        }
    }

    pub(super) fn loaded(&self) -> MutexGuard<'_, Option<Arc<Loaded>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        self.loaded().as_ref().map(Lease::new)
    }

    /// Takes the model if it is idle and `predicate` is true.
    pub(super) fn take_idle(&self, predicate: impl Fn(&Loaded) -> bool) -> Option<Arc<Loaded>> {
        self.loaded().take_if(|loaded| loaded.is_idle() && predicate(loaded))
    }
}
