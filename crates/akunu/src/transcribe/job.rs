//! One file on its way to text: what was read of it, where the next window begins, and what was found.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use akunu_audio::{Audio, AudioError, Damage, HOP, Mel, RATE};

use super::decode::Decoded;
use super::segments::{Part, Parts, repeated, split};
use super::words::Timed;
use super::{Segment, Timestamps, TranscribeOptions, Transcriber, cuts};
use crate::Error;

/// Steps of timestamps are this many frames.
const STEP_FRAMES: u64 = 2;

/// The temperature above which a text is not shown to the model with the next window.
const HIGH_TEMPERATURE: f32 = 0.5;

/// What is found, in the order of the audio.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The language was detected; or it is known without that, and has probability 1.
    Language {
        code: String,
        probability: f64,
    },
    Segment(Segment),
    /// All of the audio up to here is transcribed.
    Progress {
        seconds: f64,
    },
    /// A text that ended in a loop was cut.
    Repetition {
        seconds: f64,
    },
    /// Parts of the file could not be decoded.
    Damage(Damage),
}

/// Frames of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub first: u64,
    pub count: usize,
}

impl Span {
    fn seconds(&self) -> f64 {
        seconds(self.first)
    }
}

fn seconds(frame: u64) -> f64 {
    frame as f64 * HOP as f64 / f64::from(RATE)
}

#[derive(Debug)]
pub struct Job {
    audio: Audio,
    has_ended: bool,
    mel: Mel,
    /// Frames of a window.
    window: usize,
    options: TranscribeOptions,
    /// The index of the language.
    language: Option<usize>,
    /// The index of the first frame that is not transcribed.
    next: u64,
    /// The tokens that the next window goes on from.
    before: Vec<u32>,
    segments: usize,
    events: VecDeque<Event>,
    /// When the last word ended, in seconds.
    last_speech: f64,
    is_over: bool,
    /// Why it is over.
    error: Option<Error>,
    cancel: Arc<AtomicBool>,
}

impl Job {
    pub(super) fn new(
        audio: Audio,
        options: TranscribeOptions,
        (bands, window): (usize, usize),
        before: Vec<u32>,
    ) -> Job {
        Job {
            audio,
            has_ended: false,
            mel: Mel::new(bands),
            window,
            options,
            language: None,
            next: 0,
            before,
            segments: 0,
            events: VecDeque::new(),
            last_speech: 0.0,
            is_over: false,
            error: None,
            cancel: Arc::default(),
        }
    }

    /// Whether all is transcribed, the job was cancelled, or its audio cannot be read.
    pub fn is_over(&self) -> bool {
        self.is_over && self.error.is_none()
    }

    /// Cancels the job when it is set to true.
    pub fn cancel_flag(&self) -> &Arc<AtomicBool> {
        &self.cancel
    }

    /// What was found since the last call; after all of it an error, if the audio cannot be read any further.
    pub fn events(&mut self) -> Result<Vec<Event>, Error> {
        match self.error.take_if(|_| self.events.is_empty()) {
            Some(error) => Err(error),
            None => Ok(self.events.drain(..).collect()),
        }
    }

    /// The length that the file says it has.
    pub fn seconds(&self) -> Option<f64> {
        self.audio.seconds()
    }

    /// The job is cancelled when this is set to true.
    pub fn cancelled_by(self, cancel: Arc<AtomicBool>) -> Job {
        Job { cancel, ..self }
    }

    /// The frames of the first window, whatever is in it.
    pub(super) fn first(&mut self, frames: &mut Vec<f32>) -> Result<(), Error> {
        self.read(self.window as u64);
        self.mel.scaled(0, self.window, self.window, frames);
        self.error.take().map_or(Ok(()), Err)
    }

    pub(super) fn options(&self) -> &TranscribeOptions {
        &self.options
    }

    pub(super) fn language(&self) -> Option<usize> {
        self.language
    }

    pub(super) fn text_before(&self) -> &[u32] {
        &self.before
    }

    /// Whether windows do not wait for one another.
    pub(super) fn is_parallel(&self) -> bool {
        self.options.parallel || self.options.timestamps == Timestamps::None
    }

    pub(super) fn set_language(&mut self, index: usize, code: &str, probability: f64) {
        if self.language.is_none() {
            self.language = Some(index);
            self.events.push_back(Event::Language { code: code.to_string(), probability });
        }
    }

    /// The next window, whose frames are appended to `frames`. None if the audio is over, the job was cancelled, or there is
    /// only silence as far as was read: others do not wait for more.
    pub(super) fn next(&mut self, frames: &mut Vec<f32>) -> Option<Span> {
        self.is_over |= self.cancel.load(Ordering::Relaxed);
        if self.is_over {
            return None;
        }
        self.mel.forget(self.next);
        // For a cut, a pause is looked for in as much as the next window.
        let most = if self.is_parallel() { 2 * self.window } else { self.window };
        self.read(self.next + most as u64);
        let content = if self.has_ended { self.mel.length() } else { self.mel.frames().end };
        let left = content.saturating_sub(self.next);
        if left == 0 {
            self.end(content);
            return None;
        }
        let loudness = self.mel.loudness(self.next, left.min(most as u64) as usize);
        let is_last = self.has_ended && left == loudness.len() as u64;
        let part = match self.is_parallel() {
            true => cuts::next_part(&loudness, self.window, is_last),
            false => 0..loudness.len().min(self.window),
        };
        let (first, count) = (self.next + part.start as u64, part.len());
        if cuts::is_silent(&loudness[part]) {
            self.advance(first + count as u64);
            return None;
        }
        // The last frames of the audio are followed by those that it ends in.
        let shown = if first + count as u64 == content { self.window } else { count };
        self.mel.scaled(first, shown, self.window, frames);
        if self.is_parallel() {
            self.next = first + count as u64;
        }
        Some(Span { first, count })
    }

    /// Reads so many frames, if there are. Audio that cannot be read any further ends, with an error after its text.
    fn read(&mut self, frames: u64) {
        let mut samples = Vec::new();
        while !self.has_ended && self.mel.frames().end < frames && !self.cancel.load(Ordering::Relaxed) {
            samples.clear();
            match self.audio.read(&mut samples) {
                Ok(goes_on) => self.has_ended = !goes_on,
                Err(error) => {
                    self.has_ended = true;
                    self.error = Some(error.into());
                }
            }
            self.mel.push(&samples);
            if self.has_ended {
                self.mel.finish();
            }
        }
    }

    fn advance(&mut self, to: u64) {
        self.next = self.next.max(to);
        let seconds = seconds(to);
        self.events.push_back(Event::Progress { seconds });
    }

    fn end(&mut self, content: u64) {
        if self.mel.is_empty() && self.error.is_none() {
            self.error = Some(AudioError::Empty.into());
        }
        if *self.audio.damage() != Damage::default() {
            self.events.push_back(Event::Damage(self.audio.damage().clone()));
        }
        self.events.push_back(Event::Progress { seconds: seconds(content) });
        self.is_over = true;
    }

    /// Takes the text of a window.
    pub(super) fn take(
        &mut self,
        by: &mut Transcriber,
        number: usize,
        span: Span,
        mut decoded: Decoded,
    ) -> Result<(), Error> {
        if self.cancel.load(Ordering::Relaxed) {
            self.is_over = true;
            return Ok(());
        }
        let end = span.first + span.count as u64;
        if decoded.is_silence(&self.options) {
            self.advance(end);
            return Ok(());
        }
        let timestamps = by.tokens.timestamps.clone();
        let is_loop = self.options.compression.is_some_and(|most| decoded.compression > f64::from(most));
        if let Some(range) = repeated(&decoded.tokens, &timestamps).filter(|_| is_loop) {
            decoded.tokens.drain(range);
            self.events.push_back(Event::Repetition { seconds: span.seconds() });
        }
        let steps = (span.count as u64).div_ceil(STEP_FRAMES) as u32;
        let Parts { parts, advance, is_complete } = split(&decoded.tokens, &timestamps, steps);
        let mut next = span.first + (u64::from(advance) * STEP_FRAMES).min(span.count as u64);
        let timed = self.times(by, (number, steps), span, &parts)?;
        if self.options.timestamps == Timestamps::Word
            && !is_complete
            && let Some(end) =
                timed.iter().filter_map(|timed| timed.words.last()).map(|word| word.end).next_back()
        {
            // A word that is not complete is in the next window again.
            let end = (end * f64::from(RATE) / HOP as f64).round() as u64;
            next = if end > span.first { end.min(span.first + span.count as u64) } else { next };
        }
        let mut kept = Vec::new();
        for (part, timed) in parts.into_iter().zip(timed) {
            kept.extend(self.add(by, span, part, timed, &decoded)?);
        }
        if self.is_parallel() {
            self.events.push_back(Event::Progress { seconds: seconds(end) });
            return Ok(());
        }
        let is_high = decoded.temperature > HIGH_TEMPERATURE;
        if is_high || !self.options.condition {
            self.before.clear();
        } else {
            self.before.extend(kept);
            // As many as a prompt may have.
            let most = by.engine.context() / 2;
            self.before.drain(..self.before.len().saturating_sub(most));
        }
        self.advance(next);
        Ok(())
    }

    /// The times of parts, and of their words if they are asked for.
    fn times(
        &mut self,
        by: &mut Transcriber,
        (number, steps): (usize, u32),
        span: Span,
        parts: &[Part],
    ) -> Result<Vec<Timed>, Error> {
        let end = seconds(span.first + span.count as u64);
        let at = |step: u32| seconds(span.first + u64::from(step) * STEP_FRAMES).min(end);
        let is_text = |id: &u32| *id < by.tokens.end;
        let text_of = |part: &Part| part.tokens.iter().copied().filter(is_text).collect::<Vec<u32>>();
        let texts: Vec<Vec<u32>> = parts.iter().map(text_of).collect();
        let timed = parts.iter().zip(&texts).map(|(part, text)| Timed {
            start: at(part.steps.start),
            end: at(part.steps.end),
            tokens: text.len(),
            words: Vec::new(),
        });
        let mut timed: Vec<Timed> = timed.collect();
        if self.options.timestamps == Timestamps::Word {
            let mut last_speech = self.last_speech;
            let text = texts.concat();
            by.find_words(
                number,
                self,
                &text,
                steps as usize,
                &mut timed,
                (span.seconds(), &mut last_speech),
            )?;
            self.last_speech = last_speech;
        }
        Ok(timed)
    }

    /// Adds a segment if it has a text, and returns its tokens.
    fn add(
        &mut self,
        by: &Transcriber,
        span: Span,
        part: Part,
        timed: Timed,
        decoded: &Decoded,
    ) -> Result<Vec<u32>, Error> {
        let text = by.text(&part.tokens)?;
        if text.trim().is_empty() || timed.start == timed.end {
            return Ok(Vec::new());
        }
        self.events.push_back(Event::Segment(Segment {
            id: self.segments,
            window: span.seconds(),
            start: timed.start,
            end: timed.end,
            text,
            tokens: part.tokens.clone(),
            words: timed.words,
            temperature: decoded.temperature,
            mean_log_probability: decoded.mean_log_probability,
            compression: decoded.compression,
            no_speech: decoded.no_speech,
        }));
        self.segments += 1;
        Ok(part.tokens)
    }
}
