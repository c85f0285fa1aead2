//! The task of a model: generating text, embedding, reranking, or transcribing.

use akunu::{EmbedTask, Model, Pooling};

use super::ModelsOptions;
use crate::refusal::Refusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Generates,
    /// Embeds texts; `None`: with the pooling of the model's files, or else the mean.
    Embeds(Option<Pooling>),
    /// Scores the relevance of documents to a query.
    Scores,
    /// Transcribes audio.
    Transcribes,
}

impl Kind {
    /// Models with an encoder of audio transcribe. Models with a classifier score, and with [`ModelsOptions::rerank`] generative models that can answer yes or no. Encoders and models
    /// whose files specify a pooling embed, and with [`ModelsOptions::pooling`] all models do. Others generate text.
    pub fn of(model: &Model, options: &ModelsOptions) -> Kind {
        let config = model.config();
        if config.encoder.is_some() {
            return Kind::Transcribes;
        }
        let of_files = config.embedding.pooling.filter(|pooling| *pooling != Pooling::None);
        let answers = || !config.bidirectional && of_files.is_none() && model.answers().is_some();
        let is_reranker = options.rerank && answers();
        if model.weights().tensor("cls.output.weight").is_some() || is_reranker {
            return Kind::Scores;
        }
        match options.pooling.or(of_files) {
            Some(pooling) => Kind::Embeds(Some(pooling)),
            // Without pooling there is a vector per token, which none of the APIs supports.
            None if config.bidirectional => Kind::Embeds(config.embedding.pooling.map(|_| Pooling::Mean)),
            None => Kind::Generates,
        }
    }

    /// The embedder's task; `None`: the model needs an engine.
    pub(super) fn task(self) -> Option<EmbedTask> {
        match self {
            Kind::Generates | Kind::Transcribes => None,
            Kind::Embeds(pooling) => Some(EmbedTask::Vectors(pooling)),
            Kind::Scores => Some(EmbedTask::Scores),
        }
    }

    /// The name in `/v1/models` and in Ollama's `/api/show`.
    pub fn capability(self) -> &'static str {
        match self {
            Kind::Generates => "completion",
            Kind::Embeds(_) => "embedding",
            Kind::Scores => "rerank",
            Kind::Transcribes => "transcription",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Generates => "generates text (/v1/chat/completions, /v1/completions)",
            Kind::Embeds(_) => "embeds texts (/v1/embeddings)",
            Kind::Scores => "ranks documents (/v1/rerank)",
            Kind::Transcribes => "transcribes audio (/v1/audio/transcriptions, /v1/audio/translations)",
        }
    }

    /// The error for a request for `requested` to a model of this kind.
    pub(crate) fn refuse(self, model: &str, requested: Kind) -> Refusal {
        let rest = match (self, requested) {
            (_, Kind::Generates) => " and does not generate text",
            (Kind::Generates, Kind::Embeds(_)) => {
                "; to embed with it, start the server with --pooling mean, cls or last"
            }
            (_, Kind::Embeds(_)) => " and does not embed",
            (Kind::Generates, Kind::Scores) => {
                "; to rank documents with a generative reranker such as Qwen3-Reranker, start the server with --rerank; \
                 or load a model that has a classifier"
            }
            (_, Kind::Scores) => " and has no classifier, which ranking needs",
            (_, Kind::Transcribes) => " and does not transcribe audio: use a Whisper model",
        };
        Refusal::invalid(format!("the model \"{model}\" {}{rest}", self.name()))
            .param("model")
            .code("model_not_supported")
    }
}
