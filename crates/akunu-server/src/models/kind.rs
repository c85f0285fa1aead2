//! What a model can do: generate text, or make vectors or scores of texts.

use akunu::{EmbedTask, Model, Pooling};

use super::ModelsOptions;
use crate::refusal::Refusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Generates,
    /// Makes vectors; with `None` pooled as the model's files say, or by the mean.
    Embeds(Option<Pooling>),
    /// Scores how well documents answer a query.
    Scores,
}

impl Kind {
    /// A classifier scores, and so do models that answer yes or no where the server was told so. Encoders, models whose files name a pooling, and all models of a server with a pooling make
    /// vectors. The rest generates text.
    pub fn of(model: &Model, options: &ModelsOptions) -> Kind {
        let config = model.config();
        let of_files = config.embedding.pooling.filter(|pooling| *pooling != Pooling::None);
        let answers = || !config.bidirectional && of_files.is_none() && model.answers().is_some();
        let is_reranker = options.rerank && answers();
        if model.weights().tensor("cls.output.weight").is_some() || is_reranker {
            return Kind::Scores;
        }
        match options.pooling.or(of_files) {
            Some(pooling) => Kind::Embeds(Some(pooling)),
            // Files that ask for no pooling at all leave one vector for each token, which no API here has a form for.
            None if config.bidirectional => Kind::Embeds(config.embedding.pooling.map(|_| Pooling::Mean)),
            None => Kind::Generates,
        }
    }

    /// What the embedder is to do; `None`: the model needs an engine.
    pub(super) fn task(self) -> Option<EmbedTask> {
        match self {
            Kind::Generates => None,
            Kind::Embeds(pooling) => Some(EmbedTask::Vectors(pooling)),
            Kind::Scores => Some(EmbedTask::Scores),
        }
    }

    /// As `/v1/models` and Ollama's `/api/show` name it.
    pub fn capability(self) -> &'static str {
        match self {
            Kind::Generates => "completion",
            Kind::Embeds(_) => "embedding",
            Kind::Scores => "rerank",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Generates => "generates text (/v1/chat/completions, /v1/completions)",
            Kind::Embeds(_) => "makes vectors of texts (/v1/embeddings)",
            Kind::Scores => "scores how well documents answer a query (/v1/rerank)",
        }
    }

    /// The error for a request for `wanted` to a model of this kind.
    pub(crate) fn refuse(self, model: &str, wanted: Kind) -> Refusal {
        let rest = match (self, wanted) {
            (_, Kind::Generates) => " and generates no text",
            (Kind::Generates, Kind::Embeds(_)) => {
                "; to make vectors with it, start the server with --pooling mean, cls or last"
            }
            (_, Kind::Embeds(_)) => " and makes no vectors",
            (Kind::Generates, Kind::Scores) => {
                "; a generative reranker such as Qwen3-Reranker scores documents where the server is started with \
                 --rerank, and any model that has a classifier does"
            }
            (_, Kind::Scores) => " and has no classifier to score documents with",
        };
        Refusal::invalid(format!("the model \"{model}\" {}{rest}", self.name()))
            .param("model")
            .code("model_not_supported")
    }
}
