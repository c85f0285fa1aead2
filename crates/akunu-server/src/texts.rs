//! Embedding and reranking jobs, independent of the protocol.

use std::borrow::Cow;
use std::sync::Arc;

use akunu::embed::normalise;
use akunu::schedule::Refused;
use akunu::{Error, Model, TextIds};
use akunu_tokenizer::EncodeOptions;
use serde_json::Value as Json;
use tokio::time::{Duration, Instant, timeout_at};

use crate::app::App;
use crate::blocking::blocking;
use crate::fields::Fields;
use crate::memory::RequestMemory;
use crate::models::{Kind, Lease};
use crate::record;
use crate::refusal::{Reason, Refusal};
use crate::start::{charge_text, check_text, queue_full};

/// A text to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextInput {
    Text(String),
    /// Token ids, special tokens included.
    Ids(Vec<u32>),
}

/// A request to embed texts.
#[derive(Clone, Debug)]
pub struct EmbedJob {
    /// A model's name or alias; `None`: the server's first model.
    pub model: Option<String>,
    pub inputs: Vec<TextInput>,
    /// The name of the request's field, for errors.
    pub field: &'static str,
    /// The name of a prompt in the model's files, to be put before each text.
    pub prompt_name: Option<String>,
    /// Truncate texts that are too long instead of refusing them.
    pub truncate: bool,
    pub normalise: bool,
    /// Keep only this many dimensions of each vector.
    pub dimensions: Option<usize>,
}

#[derive(Debug)]
pub struct Embedded {
    pub model: String,
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub tokens: usize,
    /// The time to load the model; close to 0 if it was loaded.
    pub load: Duration,
}

/// A request to rank documents by their relevance to a query.
#[derive(Clone, Debug)]
pub struct RankJob {
    pub model: Option<String>,
    pub query: String,
    pub documents: Vec<String>,
    /// The name of the request's field, for errors.
    pub field: &'static str,
    /// Truncate documents that are too long instead of refusing them.
    pub truncate: bool,
    /// Truncate each document to this many tokens.
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
    /// The classifier's score, or a generative reranker's probability of yes.
    pub raw: f32,
    /// From 0 to 1: the sigmoid of the classifier's score, or that probability.
    pub relevance: f32,
}

impl Ranked {
    /// Indices of the documents, most relevant first. Ties keep their order.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.scores.len()).collect();
        order.sort_by(|a, b| self.scores[*b].raw.total_cmp(&self.scores[*a].raw));
        order
    }
}

/// The results of a job.
struct Encoded {
    lease: Lease,
    results: Vec<Vec<f32>>,
    tokens: usize,
    load: Duration,
}

impl App {
    /// Embeds texts.
    pub async fn embed(&self, job: EmbedJob) -> Result<Embedded, Refusal> {
        self.check_count(job.field, job.inputs.len())?;
        let EmbedJob { model, inputs, prompt_name, truncate, normalise: normalised, dimensions, .. } = job;
        let read = move |lease: &Lease, memory: &Arc<RequestMemory>| {
            if let (Some(dimensions), Some(queue)) = (dimensions, lease.texts())
                && dimensions > queue.width()
            {
                let message = format!(
                    "'dimensions' is {dimensions}, and the vectors of this model have {}",
                    queue.width()
                );
                return Err(Refusal::invalid(message).param("dimensions").code("invalid_value"));
            }
            let model = lease.model();
            let prompt = model.embedding_prompt(prompt_name.as_deref())?;
            let ids = |(index, input): (usize, &TextInput)| match input {
                TextInput::Text(text) if text.is_empty() => Err(Error::EmptyText { index }.into()),
                TextInput::Text(text) => {
                    let _charge = match truncate {
                        true => charge_text(text, memory)?,
                        false => check_text(text, lease, memory)?,
                    };
                    Ok(model.text_ids(text, prompt)?)
                }
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

    /// Scores documents.
    pub async fn rank(&self, job: RankJob) -> Result<Ranked, Refusal> {
        self.check_count(job.field, job.documents.len())?;
        if job.query.is_empty() {
            return Err(Refusal::invalid("'query' must not be empty").param("query"));
        }
        let RankJob { model, query, documents, truncate, document_tokens, .. } = job;
        // The query is tokenized with each document.
        let (bytes, limit) = (query.len().saturating_mul(documents.len()), self.limits().body);
        if bytes > limit {
            let message = format!(
                "the query, once for each document, has {bytes} bytes, and the limit is {limit}: shorten the query or send \
                 fewer documents"
            );
            return Err(Refusal::invalid(message).param("query").code("invalid_value"));
        }
        let read = move |lease: &Lease, memory: &Arc<RequestMemory>| {
            let _charge = charge_text(&query, memory)?;
            let pair = |(index, document): (usize, &String)| match document.is_empty() {
                true => Err(Error::EmptyText { index }.into()),
                false => {
                    let _charge = charge_text(document, memory)?;
                    let document = shorten(lease.model(), document, document_tokens)?;
                    let limit = truncate.then(|| lease.context());
                    Ok(lease.model().pair_ids(&query, &document, None, limit)?)
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
        let limit = self.limits().texts;
        match count {
            0 => Err(Refusal::invalid(format!("'{param}' is empty: give at least one text")).param(param)),
            count if count > limit => {
                let message = format!("'{param}' has {count} texts, and the limit is {limit}");
                Err(Refusal::invalid(message).param(param).code("too_many_texts"))
            }
            _ => Ok(()),
        }
    }

    /// Tokenizes texts on a blocking thread, and queues them for the model.
    async fn encode(
        &self,
        model: Option<&str>,
        kind: Kind,
        read: impl FnOnce(&Lease, &Arc<RequestMemory>) -> Result<Vec<TextIds>, Refusal> + Send + 'static,
    ) -> Result<Encoded, Refusal> {
        let started = Instant::now();
        let deadline = self.limits().request.map(|limit| started + limit);
        let mut lease = self.models().get(model).await?;
        lease.check_kind(kind)?;
        let load = started.elapsed();
        let (read_lease, memory) = (lease.clone(), self.memory().clone());
        let texts = blocking(move || read(&read_lease, &memory)).await??;
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        record::note(|record| record.prompt_tokens(tokens));
        let failed = || Refusal::internal("the engine failed; it is restarted by the next request");
        // The second attempt is for a model whose embedder had failed.
        for _ in 0..2 {
            let submitted = match lease.texts() {
                Some(queue) => queue.submit(texts.clone()),
                None => Err(Refused::Closed),
            };
            let answer = match submitted {
                Ok(answer) => answer,
                Err(Refused::Closed) => {
                    self.models().forget(&lease);
                    lease = self.models().get(model).await?;
                    continue;
                }
                Err(refused) => return Err(queue_full(&refused)),
            };
            let answer = match deadline {
                None => answer.await,
                Some(deadline) => timeout_at(deadline, answer).await.map_err(|_| {
                    let message = "the answer exceeded the server's time limit; send fewer texts";
                    Refusal::new(Reason::Overdue, message).code("timeout")
                })?,
            };
            let results = answer.map_err(|_| failed())??;
            return Ok(Encoded { lease, results, tokens, load });
        }
        Err(failed())
    }
}

/// Truncates a document to `limit` tokens.
fn shorten<'a>(model: &Model, document: &'a str, limit: Option<usize>) -> Result<Cow<'a, str>, Refusal> {
    let Some(limit) = limit else { return Ok(document.into()) };
    let all = plain_ids(model, document)?;
    Ok(if all.len() <= limit { document.into() } else { model.decode(&all[..limit])?.into() })
}

fn plain_ids(model: &Model, text: &str) -> Result<Vec<u32>, Refusal> {
    let plain = EncodeOptions { add_special: false, parse_special: false };
    Ok(model.tokenizer()?.encode(text, plain).map_err(Error::from)?)
}

/// Reads a string, token ids, or a list of either.
pub(crate) fn inputs(fields: &Fields<'_>, name: &str) -> Result<Vec<TextInput>, Refusal> {
    let refuse =
        || fields.refuse(name, "a string, a list of token ids, or a list of either, none of them empty");
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
        None => Err(missing(name, "give a string or a list of strings")),
    }
}

pub(crate) fn missing(name: &str, advice: &str) -> Refusal {
    Refusal::invalid(format!("'{name}' is missing: {advice}")).param(name).code("missing_required_parameter")
}

/// Reads documents: strings, or objects with a `text`.
pub(crate) fn documents(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, Refusal> {
    let list = fields.list(name)?.ok_or_else(|| missing(name, "give a list of strings"))?;
    let text = |value: &Json| Some(value.as_str().or_else(|| value.get("text")?.as_str())?.to_string());
    let texts: Option<Vec<String>> = list.iter().map(text).collect();
    texts.ok_or_else(|| fields.refuse(name, "a list of strings, or of objects with a \"text\""))
}

/// Writes a vector as JSON, each number with the fewest digits that identify it.
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

/// Writes vectors as a JSON list of lists.
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

/// A number with the fewest digits that identify it as f32.
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
