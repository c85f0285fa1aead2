//! From audio to text with times, by models of Whisper's kind: windows of 30 seconds, decoded by the rules that they were
//! trained with.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(akunu::Model::open("whisper-small")?);
//! let mut transcriber = akunu::Transcriber::new(model, &akunu::TranscriberOptions::default())?;
//! let audio = akunu::audio::Audio::open("talk.mp3".as_ref())?;
//! let transcript = transcriber.transcribe(audio, &akunu::TranscribeOptions::default(), &mut |_| {})?;
//! println!("{}", transcript.text);
//! # Ok(())
//! # }
//! ```

pub mod align;
mod cuts;
mod decode;
mod encode;
pub mod formats;
mod job;
mod options;
mod rules;
mod search;
mod segments;
mod times;
pub mod words;

#[cfg(test)]
mod oracle;

use std::sync::Arc;

use akunu_audio::Audio;
use akunu_plan::{Device, OnLoad, PlanError};
use akunu_tokenizer::{EncodeOptions, SpeechTokens, Tokenizer, non_speech_tokens};

pub use formats::TranscriptFormat;
pub use job::{Event, Job};
pub use options::{SpeechTask, Timestamps, TranscribeOptions};
pub use words::Word;

use crate::{Engine, EngineOptions, Error, Feed, Model, Session};
use decode::Window;
use rules::Rules;

/// Part of an audio file with its text. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Counts from 0.
    pub id: usize,
    /// Where the window begins that it was found in.
    pub window: f64,
    pub start: f64,
    pub end: f64,
    pub text: String,
    /// Timestamps included.
    pub tokens: Vec<u32>,
    pub words: Vec<Word>,
    pub temperature: f32,
    pub mean_log_probability: f64,
    pub compression: f64,
    pub no_speech: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The code of the language, given or detected; `None` if there was no speech to detect it by.
    pub language: Option<String>,
    /// Seconds of audio.
    pub duration: f64,
    pub text: String,
    pub segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TranscriberOptions {
    /// The context, slots and rows of logits are those of the windows and beams, and what is set for them here is not
    /// used.
    pub engine: EngineOptions,
    /// Windows that are decoded together.
    pub windows: usize,
    /// The most texts of a window that are followed: the most that [`TranscribeOptions::beams`] and
    /// [`TranscribeOptions::best_of`] may be.
    pub beams: usize,
    /// Whether the times of words can be found ([`Timestamps::Word`]). It takes memory.
    pub word_times: bool,
}

impl Default for TranscriberOptions {
    fn default() -> TranscriberOptions {
        TranscriberOptions { engine: EngineOptions::default(), windows: 1, beams: 5, word_times: false }
    }
}

/// The most windows that the encoder computes in one pass. More of them make no pass faster.
const ENCODER_WINDOWS: usize = 4;

/// Rows of a pass for the times of words.
const WORD_ROWS: usize = 32;

/// The tokens between `<|startoftranscript|>` and the first that is sampled, and that token itself.
const LONGEST_START: usize = 4;

impl TranscriberOptions {
    /// The options of the engine that transcribes.
    pub fn engine(&self) -> Result<EngineOptions, Error> {
        for (name, value) in [("the number of windows", self.windows), ("the number of beams", self.beams)] {
            if value == 0 || value > 64 {
                return Err(Error::Setting { name, value: value.to_string(), expected: "from 1 to 64" });
            }
        }
        let slots = self.windows * self.beams;
        Ok(EngineOptions {
            context: None,
            slots,
            logit_rows: slots.max(LONGEST_START * self.windows).max(if self.word_times {
                WORD_ROWS
            } else {
                0
            }),
            encoder_windows: self.windows.clamp(1, ENCODER_WINDOWS),
            beams: self.beams,
            word_times: self.word_times,
            // Texts are as long as they may be, and wait for nothing.
            kv_memory: Some(u64::MAX),
            kv_host: None,
            kv_disk: None,
            ..self.engine.clone()
        })
    }
}

/// A model that transcribes, on a device.
#[derive(Debug)]
pub struct Transcriber {
    engine: Engine,
    tokenizer: Arc<dyn Tokenizer>,
    tokens: SpeechTokens,
    rules: Rules,
    /// One for each slot.
    sessions: Vec<Session>,
    windows: usize,
    beams: usize,
    multilingual: bool,
    /// Rows of the last pass.
    logits: Vec<f32>,
}

impl Transcriber {
    pub fn new(model: Arc<Model>, options: &TranscriberOptions) -> Result<Transcriber, Error> {
        let engine = &options.engine;
        crate::devices::hosts::refuse(&engine.backends)?;
        let device = crate::open_device(engine.device, engine.threads, &engine.backends)?;
        Transcriber::load(model, device, options, &mut akunu_plan::unwatched)
    }

    /// On an open device; reports the progress, which may cancel it.
    pub fn load(
        model: Arc<Model>,
        device: Box<dyn Device>,
        options: &TranscriberOptions,
        on_load: OnLoad<'_>,
    ) -> Result<Transcriber, Error> {
        let of_engine = options.engine()?;
        if model.config().encoder.is_none() {
            return Err(Error::DoesNotTranscribe);
        }
        let tokenizer = model.tokenizer()?.clone();
        let rows = model.config().vocab_size;
        let tokens = SpeechTokens::new(&*tokenizer, rows).ok_or_else(|| {
            PlanError::Unsupported(
                "the vocabulary has no <|startoftranscript|>, so it is not of a model that \
                                    transcribes"
                    .into(),
            )
        })?;
        let multilingual = model.config().multilingual();
        let plain = EncodeOptions::default();
        let rules = Rules::new(&tokens, &non_speech_tokens(&*tokenizer)?, tokenizer.encode(" ", plain)?);
        let mut engine = Engine::load_any(model, device, &of_engine, on_load)?;
        let sessions = (0..options.windows * options.beams).map(|_| engine.session());
        let sessions = sessions.collect::<Result<_, Error>>()?;
        Ok(Transcriber {
            engine,
            tokenizer,
            tokens,
            rules,
            sessions,
            windows: options.windows,
            beams: options.beams,
            multilingual,
            logits: Vec::new(),
        })
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether prompts name a language and a task: English is not the only one.
    pub fn is_multilingual(&self) -> bool {
        self.multilingual
    }

    /// The codes of the languages that the model knows.
    pub fn languages(&self) -> impl Iterator<Item = &str> {
        let most = if self.multilingual { usize::MAX } else { 0 };
        self.tokens.languages.iter().take(most).map(|(code, _)| code.as_str())
    }

    /// Transcribes one file. `on_event` sees what is found as it is found.
    pub fn transcribe(
        &mut self,
        audio: Audio,
        options: &TranscribeOptions,
        on_event: &mut dyn FnMut(&Event),
    ) -> Result<Transcript, Error> {
        let mut job = self.job(audio, options)?;
        let mut transcript = Transcript::default();
        while !job.is_over() {
            self.step(&mut [&mut job])?;
            for event in job.events()? {
                on_event(&event);
                transcript.add(event);
            }
        }
        Ok(transcript)
    }

    /// Begins with a file, which [`Transcriber::step`] goes on with.
    pub fn job(&self, audio: Audio, options: &TranscribeOptions) -> Result<Job, Error> {
        options.check(self)?;
        let encoder = self.engine.plan().config.encoder.ok_or(Error::DoesNotTranscribe)?;
        let language = if self.multilingual { options.language_of(self)? } else { None };
        let prompt = match options.prompt.as_deref().map(str::trim) {
            Some(prompt) if !prompt.is_empty() => {
                self.tokenizer.encode(&format!(" {prompt}"), EncodeOptions::default())?
            }
            _ => Vec::new(),
        };
        let mut job = Job::new(audio, options.clone(), (encoder.bands, 2 * encoder.positions), prompt);
        if let Some(language) = language {
            job.set_language(language, &self.tokens.languages[language].0, 1.0);
        }
        Ok(job)
    }

    /// The logits of all positions of `ids` over the first window of a file.
    pub fn logits(&mut self, audio: Audio, ids: &[u32]) -> Result<Vec<f32>, Error> {
        self.engine.check_prompt(ids)?;
        let options = TranscribeOptions { beams: 1, best_of: 1, ..TranscribeOptions::default() };
        let mut frames = Vec::new();
        self.job(audio, &options)?.first(&mut frames)?;
        self.encode(1, &frames)?;
        let most = self.engine.plan().tables.prefill().logit_rows;
        let session = &mut self.sessions[0];
        session.clear();
        let mut logits = Vec::new();
        for ids in ids.chunks(most) {
            self.engine.pass(&mut [Feed { session, ids, logits: ids.len() }])?;
            self.engine.append_logits(&mut logits)?;
        }
        Ok(logits)
    }

    /// Transcribes the next windows of some files, together at most as many as [`TranscriberOptions::windows`]. An error
    /// is one of all of them; what is wrong with one file is told by its [`Job::events`].
    pub fn step(&mut self, jobs: &mut [&mut Job]) -> Result<(), Error> {
        let mut frames = Vec::new();
        // Which job, and where in it.
        let mut spans = Vec::new();
        // One of each before a second of any.
        let mut more = true;
        while more && spans.len() < self.windows {
            more = false;
            for (number, job) in jobs.iter_mut().enumerate() {
                // The next window begins where the text of this one ends.
                let waits = !job.is_parallel() && spans.iter().any(|(of, _)| *of == number);
                if !waits
                    && spans.len() < self.windows
                    && let Some(span) = job.next(&mut frames)
                {
                    more |= job.is_parallel();
                    spans.push((number, span));
                }
            }
        }
        if spans.is_empty() {
            return Ok(());
        }
        self.encode(spans.len(), &frames)?;
        self.detect(jobs, &spans)?;
        let mut windows = Vec::with_capacity(spans.len());
        for (number, (of, span)) in spans.iter().enumerate() {
            let job = &*jobs[*of];
            let (prompt, start) = self.prompt(job);
            windows.push(Window {
                number,
                prompt,
                start,
                with_timestamps: job.options().timestamps != Timestamps::None,
                frame: span.first,
                options: job.options(),
                cancel: job.cancel_flag(),
            });
        }
        let decoded = self.decode(&windows)?;
        for (number, ((of, span), decoded)) in spans.into_iter().zip(decoded).enumerate() {
            jobs[of].take(self, number, span, decoded)?;
        }
        Ok(())
    }

    fn detect(&mut self, jobs: &mut [&mut Job], spans: &[(usize, job::Span)]) -> Result<(), Error> {
        if !self.multilingual {
            let english = self.tokens.languages.iter().position(|(code, _)| code == "en").unwrap_or(0);
            jobs.iter_mut().for_each(|job| job.set_language(english, "en", 1.0));
            return Ok(());
        }
        let unknown: Vec<usize> =
            (0..spans.len()).filter(|&number| jobs[spans[number].0].language().is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let found = self.languages_of(&unknown)?;
        for (number, (language, probability)) in unknown.into_iter().zip(found) {
            let job = &mut *jobs[spans[number].0];
            if job.language().is_none() {
                job.set_language(language, &self.tokens.languages[language].0, probability);
            }
        }
        Ok(())
    }

    /// The tokens before the first that is sampled, and where in them the transcript starts.
    fn prompt(&self, job: &Job) -> (Vec<u32>, usize) {
        let tokens = &self.tokens;
        let mut prompt = Vec::new();
        let before = job.text_before();
        if let Some(previous) = tokens.previous.filter(|_| !before.is_empty()) {
            let most = (self.engine.context() / 2).saturating_sub(1);
            prompt.push(previous);
            prompt.extend(&before[before.len().saturating_sub(most)..]);
        }
        let start = prompt.len();
        prompt.push(tokens.start);
        prompt.extend(self.language_and_task(job));
        if job.options().timestamps == Timestamps::None {
            prompt.push(tokens.no_timestamps);
        }
        (prompt, start)
    }

    /// Their tokens, of which models of English only have none.
    fn language_and_task(&self, job: &Job) -> impl Iterator<Item = u32> + use<> {
        let multilingual = self.multilingual;
        let language = job.language().map(|language| self.tokens.languages[language].1);
        let task = match job.options().task {
            SpeechTask::Transcribe => self.tokens.transcribe,
            SpeechTask::Translate => self.tokens.translate,
        };
        [language, task].into_iter().flatten().filter(move |_| multilingual)
    }

    /// The text of tokens; timestamps and other control tokens have none.
    fn text(&self, tokens: &[u32]) -> Result<String, Error> {
        let text: Vec<u32> = tokens.iter().copied().filter(|&id| id < self.tokens.end).collect();
        Ok(self.tokenizer.decode(&text))
    }
}

impl Transcript {
    /// Adds what an event tells.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Language { code, .. } => self.language = Some(code),
            Event::Segment(segment) => {
                let text = if self.text.is_empty() { segment.text.trim_start() } else { &segment.text };
                self.text.push_str(text);
                self.segments.push(segment);
            }
            Event::Progress { seconds } => self.duration = self.duration.max(seconds),
            Event::Repetition { .. } | Event::Damage(_) => {}
        }
    }
}
