//! From texts to vectors and rankings, whatever protocol asks for them.

use std::borrow::Cow;

use akunu::embed::normalise;
use akunu::schedule::Refused;
use akunu::{Error, Model, TextIds};
use akunu_tokenizer::EncodeOptions;
use serde_json::Value as Json;
use tokio::time::{Duration, Instant, timeout_at};

use crate::app::App;
use crate::fields::Fields;
use crate::models::{Kind, Lease, blocking};
use crate::refusal::{Reason, Refusal};
use crate::start::queue_full;

/// A text to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextInput {
    Text(String),
    /// As the model is to see it.
    Ids(Vec<u32>),
}

/// Texts whose vectors somebody wants.
#[derive(Clone, Debug)]
pub struct EmbedJob {
    /// A model's name or alias; `None`: the first.
    pub model: Option<String>,
    pub inputs: Vec<TextInput>,
    /// What errors call the inputs: the request's field.
    pub field: &'static str,
    /// The prompt before each text, by its name in the model's files.
    pub prompt_name: Option<String>,
    /// Cuts texts that are too long, instead of refusing them.
    pub truncate: bool,
    pub normalise: bool,
    /// Only the first numbers of each vector.
    pub dimensions: Option<usize>,
}

#[derive(Debug)]
pub struct Embedded {
    pub model: String,
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub tokens: usize,
    /// How long the model took to load; next to nothing where it was loaded.
    pub load: Duration,
}

/// Documents to be ranked by how well they answer a query.
#[derive(Clone, Debug)]
pub struct RankJob {
    pub model: Option<String>,
    pub query: String,
    pub documents: Vec<String>,
    /// What errors call the documents: the request's field.
    pub field: &'static str,
    /// Cuts documents that are too long, instead of refusing them.
    pub truncate: bool,
    /// Cuts each document to so many tokens.
    pub document_tokens: Option<usize>,
}

#[derive(Debug)]
pub struct Ranked {
    pub model: String,
    /// In the documents' order.
    pub scores: Vec<Score>,
    pub tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// As the model's classifier gives it; of a generative reranker, the probability of yes.
    pub raw: f32,
    /// From 0 to 1: the sigmoid of a classifier's score, or that probability.
    pub relevance: f32,
}

impl Ranked {
    /// Documents' numbers, best first; those that are equally good in their order.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.scores.len()).collect();
        order.sort_by(|a, b| self.scores[*b].raw.total_cmp(&self.scores[*a].raw));
        order
    }
}

/// Results of texts, and what it took to have them.
struct Encoded {
    lease: Lease,
    results: Vec<Vec<f32>>,
    tokens: usize,
    load: Duration,
}

impl App {
    /// Has texts made into vectors.
    pub async fn embed(&self, job: EmbedJob) -> Result<Embedded, Refusal> {
        self.check_count(job.field, job.inputs.len())?;
        let EmbedJob { model, inputs, prompt_name, truncate, normalise: normalised, dimensions, .. } = job;
        let read = move |lease: &Lease| {
            if let (Some(dimensions), Some(queue)) = (dimensions, lease.texts())
                && dimensions > queue.width()
            {
                let message = format!(
                    "'dimensions' is {dimensions}, and the vectors of this model have {} numbers",
                    queue.width()
                );
                return Err(Refusal::invalid(message).param("dimensions").code("invalid_value"));
            }
            let model = lease.model();
            let prompt = model.embedding_prompt(prompt_name.as_deref())?;
            let ids = |(index, input): (usize, &TextInput)| match input {
                TextInput::Text(text) if text.is_empty() => Err(Error::EmptyText { index }.into()),
                TextInput::Text(text) => Ok(model.text_ids(text, prompt)?),
                TextInput::Ids(ids) => Ok(ids.clone().into()),
            };
            let mut texts = inputs.iter().enumerate().map(ids).collect::<Result<Vec<TextIds>, Refusal>>()?;
            if truncate {
                texts.iter_mut().for_each(|text| model.cut(text, lease.context()));
            }
            Ok(texts)
        };
        let Encoded { lease, mut results, tokens, load } =
            self.encode(model.as_deref(), Kind::Embeds(None), read).await?;
        for vector in &mut results {
            vector.truncate(dimensions.unwrap_or(usize::MAX));
            if normalised {
                normalise(vector);
            }
        }
        Ok(Embedded { model: lease.name().to_string(), vectors: results, tokens, load })
    }

    /// Has documents scored.
    pub async fn rank(&self, job: RankJob) -> Result<Ranked, Refusal> {
        self.check_count(job.field, job.documents.len())?;
        if job.query.is_empty() {
            return Err(Refusal::invalid("'query' has to be a text that is not empty").param("query"));
        }
        let RankJob { model, query, documents, truncate, document_tokens, .. } = job;
        let read = move |lease: &Lease| {
            let pair = |(index, document): (usize, &String)| match document.is_empty() {
                true => Err(Error::EmptyText { index }.into()),
                false => {
                    let document = shorten(lease.model(), document, document_tokens)?;
                    let most = truncate.then(|| lease.context());
                    Ok(lease.model().pair_ids(&query, &document, None, most)?)
                }
            };
            documents.iter().enumerate().map(pair).collect()
        };
        let Encoded { lease, results, tokens, .. } =
            self.encode(model.as_deref(), Kind::Scores, read).await?;
        let is_probability = !lease.model().config().bidirectional;
        let score = |result: Vec<f32>| {
            let raw = result.first().copied().unwrap_or_default();
            let relevance = if is_probability { raw } else { 1.0 / (1.0 + (-raw).exp()) };
            Score { raw, relevance }
        };
        let scores = results.into_iter().map(score).collect();
        Ok(Ranked { model: lease.name().to_string(), scores, tokens })
    }

    fn check_count(&self, param: &str, count: usize) -> Result<(), Refusal> {
        let most = self.limits().texts;
        match count {
            0 => Err(Refusal::invalid(format!("'{param}' is empty: give at least one text")).param(param)),
            count if count > most => {
                let message = format!("'{param}' has {count} texts, and one request may have {most}");
                Err(Refusal::invalid(message).param(param).code("too_many_texts"))
            }
            _ => Ok(()),
        }
    }

    /// Reads texts off the threads that pass messages on, and has them go through the model with those of others.
    async fn encode(
        &self,
        model: Option<&str>,
        kind: Kind,
        read: impl FnOnce(&Lease) -> Result<Vec<TextIds>, Refusal> + Send + 'static,
    ) -> Result<Encoded, Refusal> {
        let started = Instant::now();
        let deadline = self.limits().request.map(|limit| started + limit);
        let mut lease = self.models().get(model).await?;
        lease.check_kind(kind)?;
        let load = started.elapsed();
        let of_reader = lease.clone();
        let texts = blocking(move || read(&of_reader)).await??;
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        let broken = || Refusal::internal("the engine broke down; the next request starts it anew");
        // The second time where the embedder had broken down.
        for _ in 0..2 {
            let submitted = match lease.texts() {
                Some(queue) => queue.submit(texts.clone()),
                None => Err(Refused::Closed),
            };
            let answer = match submitted {
                Ok(answer) => answer,
                Err(refused @ Refused::QueueFull { .. }) => return Err(queue_full(&refused)),
                Err(Refused::Closed) => {
                    self.models().forget(&lease);
                    lease = self.models().get(model).await?;
                    continue;
                }
            };
            let answer = match deadline {
                None => answer.await,
                Some(deadline) => timeout_at(deadline, answer).await.map_err(|_| {
                    let message = "the answer took longer than this server allows; send fewer texts";
                    Refusal::new(Reason::Overdue, message).code("timeout")
                })?,
            };
            let results = answer.map_err(|_| broken())??;
            return Ok(Encoded { lease, results, tokens, load });
        }
        Err(broken())
    }
}

/// The first tokens of a document, as a text.
fn shorten<'a>(model: &Model, document: &'a str, most: Option<usize>) -> Result<Cow<'a, str>, Refusal> {
    let Some(most) = most else { return Ok(document.into()) };
    let all = plain_ids(model, document)?;
    Ok(if all.len() <= most { document.into() } else { model.decode(&all[..most])?.into() })
}

fn plain_ids(model: &Model, text: &str) -> Result<Vec<u32>, Refusal> {
    let plain = EncodeOptions { add_special: false, parse_special: false };
    Ok(model.tokenizer()?.encode(text, plain).map_err(Error::from)?)
}

/// A text, ids, or a list of either.
pub(crate) fn inputs(fields: &Fields<'_>, name: &str) -> Result<Vec<TextInput>, Refusal> {
    let refuse = || {
        fields.refuse(name, "a text, a list of token ids, or a list of texts or of such lists, none empty")
    };
    let ids = |list: &[Json]| {
        let id = |value: &Json| u32::try_from(value.as_u64()?).ok();
        list.iter().map(id).collect::<Option<Vec<u32>>>().filter(|ids| !ids.is_empty()).map(TextInput::Ids)
    };
    let one = |value: &Json| match value {
        Json::String(text) if !text.is_empty() => Some(TextInput::Text(text.clone())),
        Json::Array(list) => ids(list),
        _ => None,
    };
    match fields.get(name) {
        Some(Json::Array(list)) if list.is_empty() => Err(refuse()),
        Some(Json::Array(list)) if list.iter().all(Json::is_number) => {
            Ok(vec![ids(list).ok_or_else(refuse)?])
        }
        Some(Json::Array(list)) => list.iter().map(|value| one(value).ok_or_else(refuse)).collect(),
        Some(value) => Ok(vec![one(value).ok_or_else(refuse)?]),
        None => Err(missing(name, "give a text or a list of texts")),
    }
}

pub(crate) fn missing(name: &str, advice: &str) -> Refusal {
    Refusal::invalid(format!("'{name}' is missing: {advice}")).param(name).code("missing_required_parameter")
}

/// Documents as texts, or as objects with a `text`.
pub(crate) fn documents(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, Refusal> {
    let list = fields.list(name)?.ok_or_else(|| missing(name, "give a list of texts"))?;
    let text = |value: &Json| Some(value.as_str().or_else(|| value.get("text")?.as_str())?.to_string());
    let texts: Option<Vec<String>> = list.iter().map(text).collect();
    texts.ok_or_else(|| fields.refuse(name, "a list of texts, or of objects with a \"text\""))
}

/// Numbers as JSON, each with as many digits as tell it from its neighbours.
pub(crate) fn write_vector(vector: &[f32], to: &mut String) {
    to.push('[');
    for (index, number) in vector.iter().enumerate() {
        if index > 0 {
            to.push(',');
        }
        to.push_str(&number.to_string());
    }
    to.push(']');
}

/// Vectors as a JSON list of lists.
pub(crate) fn write_vectors(vectors: &[Vec<f32>]) -> String {
    let mut text = String::from("[");
    for (index, vector) in vectors.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_vector(vector, &mut text);
    }
    text.push(']');
    text
}

/// A number with the digits that tell it from its neighbours, instead of those of the same number as f64.
pub(crate) fn exact(number: f32) -> Json {
    number.to_string().parse::<f64>().map_or(Json::Null, Json::from)
}

/// Base64 with padding.
pub(crate) fn base64(bytes: impl Iterator<Item = u8>) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = bytes.collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            match digit <= chunk.len() {
                true => text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_in_rfc_4648() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.bytes()), expected);
        }
    }

    #[test]
    fn vectors_are_json_that_reads_as_the_same_numbers() {
        let numbers = [0.1f32, -0.0, 1e-30, 3.4e38, -1.5];
        let mut text = String::new();
        write_vector(&numbers, &mut text);
        let read: Vec<f32> = serde_json::from_str(&text).unwrap();
        assert_eq!(read.map_bits(), numbers.to_vec().map_bits());
        assert_eq!(exact(0.1).to_string(), "0.1");
    }

    trait Bits {
        fn map_bits(self) -> Vec<u32>;
    }

    impl Bits for Vec<f32> {
        fn map_bits(self) -> Vec<u32> {
            self.into_iter().map(f32::to_bits).collect()
        }
    }
}
