//! Embedding and scoring of whole texts, without a persistent KV cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use akunu_arch::{ModelConfig, Pooling};
use akunu_plan::{
    Capabilities, Cost, Device, DeviceBuffer, EncodeOptions, EncodeOutput, EncodePlan, Entries, KvType,
    OnLoad, ReplayId, TextPass, load_buffers, plan_encoder,
};

use crate::engine::{available, check_memory};
use crate::profile::{LabelTiming, time_table};
use crate::{BackendOptions, DeviceChoice, Error, Model, Note};

/// Default maximum tokens of a text, unless that of the model is less.
pub const DEFAULT_LONGEST: usize = 8192;

/// Maximum texts of a pass, if each gives one vector.
const MOST_TEXTS: usize = 1024;

/// What is computed from texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedTask {
    /// Vectors; `None`: as the model's files say.
    Vectors(Option<Pooling>),
    /// Scores of documents for a query, from the model's classifier or the probability of its next token.
    Scores,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EmbedOptions {
    pub device: DeviceChoice,
    /// CPU threads; `None`: one per physical core.
    pub threads: Option<usize>,
    /// Settings of the device's backend.
    pub backends: BackendOptions,
    pub task: EmbedTask,
    /// Maximum tokens of a text; `None`: the maximum that the model was trained for, at most 8192.
    pub longest: Option<usize>,
    /// The type of keys and values during a pass; `None`: the most precise type that is fast on the device.
    pub kv: Option<KvType>,
    /// Rows of a pass; `None`: chosen for the device, at least the maximum tokens of a text.
    pub rows: Option<usize>,
    /// Fuse Q·K·V and gate·up where their types agree. Off only for comparisons.
    pub fuse: bool,
}

impl Default for EmbedOptions {
    fn default() -> EmbedOptions {
        EmbedOptions {
            device: DeviceChoice::Auto,
            threads: None,
            backends: BackendOptions::default(),
            task: EmbedTask::Vectors(None),
            longest: None,
            kv: None,
            rows: None,
            fuse: true,
        }
    }
}

/// A tokenized text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextIds {
    pub ids: Vec<u32>,
    /// The segment of each token: 1 for those of a second text. Empty if all are 0.
    pub segments: Vec<u32>,
    /// Whether the text was truncated.
    pub is_cut: bool,
}

impl From<Vec<u32>> for TextIds {
    fn from(ids: Vec<u32>) -> TextIds {
        TextIds { ids, ..TextIds::default() }
    }
}

/// An embedding or reranking model, loaded on a device.
#[derive(Debug)]
pub struct Embedder {
    model: Arc<Model>,
    device: Box<dyn Device>,
    plan: EncodePlan,
    buffers: Vec<DeviceBuffer>,
    replay: ReplayId,
    notes: Vec<Note>,
    load_time: Duration,
    pass: TextPass,
}

/// The pooling of a model: the requested one, or that of its files, or the default.
fn pooling(model: &Model, requested: Option<Pooling>) -> Result<(Pooling, Option<Note>), Error> {
    let config = model.config();
    match requested.or(config.embedding.pooling) {
        Some(pooling)
            if requested.is_none() || config.bidirectional || config.embedding.pooling.is_some() =>
        {
            Ok((pooling, None))
        }
        Some(pooling) => Ok((pooling, Some(Note::GenerativeEmbedding { pooling: pooling.name() }))),
        None if config.bidirectional => Ok((Pooling::Mean, Some(Note::AssumedPooling))),
        None => Err(Error::NoPooling),
    }
}

/// The default maximum tokens of a text: what the model's files say, or else [`DEFAULT_LONGEST`], and at most what the model
/// was trained for.
pub fn default_longest(config: &ModelConfig) -> usize {
    config.embedding.max_text_tokens.unwrap_or(DEFAULT_LONGEST).min(config.context_length)
}

/// The default rows of a pass. A GPU gets more than for prefill, because no KV cache grows with them: on an H200 bge-large
/// processes 38% more tokens per second than with the rows of a prefill.
fn default_rows(capabilities: &Capabilities) -> usize {
    match capabilities.half_products {
        Some(_) => 4 * capabilities.prefill_rows,
        None => capabilities.prefill_rows,
    }
}

/// Plans a model for a device, without allocating or loading anything or checking the memory.
pub fn plan_texts(
    model: &Model,
    capabilities: &Capabilities,
    options: &EmbedOptions,
) -> Result<(EncodePlan, Option<Note>), Error> {
    let config = model.config();
    let (output, note) = match options.task {
        EmbedTask::Vectors(requested) => {
            let (pooling, note) = pooling(model, requested)?;
            (EncodeOutput::Vectors(pooling), note)
        }
        EmbedTask::Scores if model.weights().tensor("cls.output.weight").is_some() => {
            (EncodeOutput::Scores, None)
        }
        EmbedTask::Scores if model.answers().is_some() => (EncodeOutput::Logits, None),
        EmbedTask::Scores => return Err(Error::NoClassifier),
    };
    let trained = config.context_length;
    let longest = options.longest.unwrap_or(default_longest(config));
    if longest == 0 || longest > trained {
        return Err(Error::Setting {
            name: "the maximum length of a text",
            value: longest.to_string(),
            expected: "from 1 to the context length that the model was trained for",
        });
    }
    let rows = options.rows.unwrap_or(default_rows(capabilities)).max(longest);
    let every_row = output == EncodeOutput::Vectors(Pooling::None);
    let plan_options = EncodeOptions {
        longest,
        rows,
        texts: if every_row { rows } else { rows.min(MOST_TEXTS) },
        kv: options.kv.unwrap_or(if capabilities.half_products.is_some() {
            KvType::F16
        } else {
            KvType::F32
        }),
        output,
        fuse: options.fuse,
    };
    Ok((plan_encoder(model.weights(), capabilities, &plan_options)?, note))
}

impl Embedder {
    /// Opens the device, plans, checks that memory suffices, loads and prepares.
    pub fn new(model: Arc<Model>, options: &EmbedOptions) -> Result<Embedder, Error> {
        crate::devices::hosts::refuse(&options.backends)?;
        let device = crate::open_device(options.device, options.threads, &options.backends)?;
        Embedder::on_device(model, device, options)
    }

    /// As [`Embedder::new`], on an open device.
    pub fn on_device(
        model: Arc<Model>,
        device: Box<dyn Device>,
        options: &EmbedOptions,
    ) -> Result<Embedder, Error> {
        Embedder::load(model, device, options, &mut akunu_plan::unwatched)
    }

    /// As [`Embedder::on_device`], and reports the progress, which may cancel it.
    pub fn load(
        model: Arc<Model>,
        mut device: Box<dyn Device>,
        options: &EmbedOptions,
        on_load: OnLoad<'_>,
    ) -> Result<Embedder, Error> {
        let began = Instant::now();
        let capabilities = device.capabilities();
        let (plan, note) = plan_texts(&model, capabilities, options)?;
        check_memory(&plan.memory, plan.options.longest, available(capabilities))
            .map_err(|error| about_rows(error, options, plan.options.longest))?;
        let mut notes = Vec::new();
        if options.device == DeviceChoice::Auto {
            notes.push(Note::AutoDevice { device: capabilities.name, detail: capabilities.detail.clone() });
        }
        notes.extend(note);
        notes.extend(model.tokenizer_notes());
        let buffers = load_buffers(&plan.buffers, model.weights(), &mut *device, on_load)?;
        let replay = device.prepare(&plan.table, &buffers)?;
        let pass = TextPass::default();
        Ok(Embedder { load_time: began.elapsed(), model, device, plan, buffers, replay, notes, pass })
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn plan(&self) -> &EncodePlan {
        &self.plan
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Decisions that the user should know of.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The time for planning, loading and preparing.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// Maximum tokens of a text.
    pub fn longest(&self) -> usize {
        self.plan.options.longest
    }

    /// Dimensions of a vector.
    pub fn width(&self) -> usize {
        self.plan.width
    }

    /// Checks that a text can be processed. `index` is its number, for the error.
    pub fn check(&self, text: &TextIds, index: usize) -> Result<(), Error> {
        check(&self.plan, text, index)
    }

    /// The result of each text, in order: its vector, not normalised; with [`Pooling::None`] the vectors of all its tokens, one
    /// after the other; or its scores. The bits of a result do not depend on the other texts of the pass.
    pub fn encode(&mut self, texts: &[TextIds]) -> Result<Vec<Vec<f32>>, Error> {
        texts.iter().enumerate().try_for_each(|(index, text)| self.check(text, index))?;
        let mut results = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fill_from(&mut self.pass, rest, &self.plan));
            self.run(now, &mut results)?;
            rest = later;
        }
        Ok(results)
    }

    /// The relevance of each document to its query.
    pub fn scores(&mut self, texts: &[TextIds]) -> Result<Vec<f32>, Error> {
        let answers = self.model.answers();
        let results = self.encode(texts)?;
        let causal = !self.plan.config.bidirectional;
        let score = |result: Vec<f32>| match (self.plan.options.output, &result[..]) {
            (EncodeOutput::Logits, logits) => {
                let [yes, no] = answers.ok_or(Error::NoClassifier)?;
                Ok(probability(logits[yes as usize], logits[no as usize]))
            }
            (_, [score]) => Ok(*score),
            (_, [yes, no]) if causal => Ok(probability(*yes, *no)),
            (_, more) => Err(Error::ManyLabels { labels: more.len() }),
        };
        results.into_iter().map(score).collect()
    }

    /// The memory traffic and operations of [`Embedder::encode`] for these texts.
    pub fn cost(&self, texts: &[TextIds]) -> Result<Cost, Error> {
        texts.iter().enumerate().try_for_each(|(index, text)| self.check(text, index))?;
        let mut cost = Cost::default();
        let mut pass = TextPass::default();
        let mut rest = texts;
        while !rest.is_empty() {
            rest = &rest[fill_from(&mut pass, rest, &self.plan)..];
            cost = cost + self.plan.table.cost(Entries::Rows(&pass.rows), pass.asking.len());
        }
        Ok(cost)
    }

    fn upload_segments(&mut self) -> Result<(), Error> {
        if let Some(segments) = self.plan.table.io.segments {
            let buffer = self.buffers[segments.index()];
            self.device.upload(buffer, 0, bytemuck::cast_slice(&self.pass.segments))?;
        }
        Ok(())
    }

    /// Times each command of a pass over these texts: the median over `passes`.
    pub fn profile(&mut self, texts: &[TextIds], passes: usize) -> Result<Vec<LabelTiming>, Error> {
        fill(&mut self.pass, texts, &self.plan)?;
        self.upload_segments()?;
        let submissions = [self.pass.submission()];
        time_table(&mut *self.device, (self.replay, &self.buffers), &self.plan.table, &submissions, passes)
    }

    fn run(&mut self, texts: &[TextIds], results: &mut Vec<Vec<f32>>) -> Result<(), Error> {
        self.upload_segments()?;
        self.device.replay(self.replay, self.pass.submission())?;
        self.device.wait()?;
        let width = self.plan.width;
        let mut found = vec![0.0f32; self.pass.asking.len() * width];
        self.device.download(
            self.buffers[self.plan.table.io.logits.index()],
            0,
            bytemuck::cast_slice_mut(&mut found),
        )?;
        let every_row = self.plan.options.output == EncodeOutput::Vectors(Pooling::None);
        let mut rest = &found[..];
        for text in texts {
            let (own, others) = rest.split_at(width * if every_row { text.ids.len() } else { 1 });
            if let Some(at) = own.iter().position(|v| !v.is_finite()) {
                return Err(Error::NotFinite { position: at / width });
            }
            results.push(own.to_vec());
            rest = others;
        }
        Ok(())
    }
}

/// Replaces the advice if more rows were requested than the longest text needs: fewer rows save memory first.
fn about_rows(error: Error, options: &EmbedOptions, longest: usize) -> Error {
    match error {
        Error::DoesNotFit { plan, context, available, .. }
            if options.rows.is_some_and(|rows| rows > longest) =>
        {
            let advice =
                "take fewer tokens in one pass (--chunk), a smaller model or a machine with more memory";
            Error::DoesNotFit { plan, context, available, advice: advice.into() }
        }
        error => error,
    }
}

fn check(plan: &EncodePlan, text: &TextIds, index: usize) -> Result<(), Error> {
    if text.ids.is_empty() {
        return Err(Error::EmptyText { index });
    }
    let (vocab, longest) = (plan.config.vocab_size, plan.options.longest);
    if let Some(at) = text.ids.iter().position(|&id| id as usize >= vocab) {
        let id = text.ids[at];
        return Err(Error::TokenOutsideVocabulary { id, index: at, vocab, place: "text" });
    }
    if text.ids.len() > longest {
        return Err(Error::TextTooLong { index, tokens: text.ids.len(), longest });
    }
    Ok(())
}

/// Fills a pass with as many of the first texts as fit, and returns their number.
fn fill_from(pass: &mut TextPass, texts: &[TextIds], plan: &EncodePlan) -> usize {
    pass.clear();
    texts.iter().take_while(|text| pass.add(&text.ids, &text.segments, plan)).count()
}

/// Fills a pass with all texts, or returns why they do not fit.
pub(crate) fn fill(pass: &mut TextPass, texts: &[TextIds], plan: &EncodePlan) -> Result<(), Error> {
    texts.iter().enumerate().try_for_each(|(index, text)| check(plan, text, index))?;
    if fill_from(pass, texts, plan) == texts.len() {
        return Ok(());
    }
    if texts.len() > plan.options.texts {
        return Err(Error::Setting {
            name: "the number of texts of one pass",
            value: texts.len().to_string(),
            expected: "at most the rows of a pass (--chunk), and at most 1,024 where a text gives one result",
        });
    }
    Err(Error::Setting {
        name: "the number of tokens of one pass",
        value: texts.iter().map(|text| text.ids.len()).sum::<usize>().to_string(),
        expected: "at most the rows of a pass (--chunk)",
    })
}

/// The probability of the first of two logits.
fn probability(first: f32, second: f32) -> f32 {
    1.0 / (1.0 + (second - first).exp())
}

/// Scales a vector to length 1. A zero vector is unchanged.
pub fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_scaled_to_length_one() {
        let mut vector = [3.0, 0.0, -4.0];
        normalise(&mut vector);
        assert_eq!(vector, [0.6, 0.0, -0.8]);
        let mut zeros = [0.0; 3];
        normalise(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
        // Squares that overflow f32.
        let mut large = [3.0, 4.0].map(|v: f32| v * 2f32.powi(100));
        normalise(&mut large);
        assert_eq!(large, [0.6, 0.8]);
    }

    #[test]
    fn probabilities_come_from_the_difference_of_logits() {
        assert_eq!(probability(0.0, 0.0), 0.5);
        assert!((probability(2.0, 0.0) - 0.880_797).abs() < 1e-6);
        assert_eq!((probability(0.0, 200.0), probability(200.0, 0.0)), (0.0, 1.0));
    }
}
