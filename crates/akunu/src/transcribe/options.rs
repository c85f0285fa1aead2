//! Settings of a transcription.

use akunu_tokenizer::language_code;

use super::Transcriber;
use crate::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpeechTask {
    /// Text in the language that is spoken.
    #[default]
    Transcribe,
    /// Text in English.
    Translate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// The model writes none, and windows are cut where the audio is quiet.
    None,
    #[default]
    Segment,
    Word,
}

/// The defaults are those of OpenAI's command.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscribeOptions {
    /// The code of the language or its English name (`de`, `german`); `None`: detected by the first window. Models of English only have no choice.
    pub language: Option<String>,
    pub task: SpeechTask,
    pub timestamps: Timestamps,
    /// Text that comes before: names, spelling and style are taken from it.
    pub prompt: Option<String>,
    /// Each window is decoded after the text of those before. Not if `parallel`.
    pub condition: bool,
    /// Windows do not wait for one another: they are cut where the audio is quiet, and several of them are decoded
    /// together.
    pub parallel: bool,
    /// Texts that are followed at temperature 0; 1: greedy.
    pub beams: usize,
    /// The search ends when `beams · patience` texts have ended.
    pub patience: f32,
    /// Texts that are sampled at other temperatures, of which the most probable one is taken.
    pub best_of: usize,
    /// Tried one after the other until a text is good enough.
    pub temperatures: Vec<f32>,
    /// A text is poor if compression makes it more than this many times shorter.
    pub compression: Option<f32>,
    /// A text is poor if its mean log probability is less.
    pub log_probability: Option<f32>,
    /// A window is silence if the probability of no speech is more, and its text is improbable.
    pub no_speech: Option<f32>,
    pub seed: u64,
}

impl Default for TranscribeOptions {
    fn default() -> TranscribeOptions {
        TranscribeOptions {
            language: None,
            task: SpeechTask::Transcribe,
            timestamps: Timestamps::Segment,
            prompt: None,
            condition: true,
            parallel: false,
            beams: 5,
            patience: 1.0,
            best_of: 5,
            temperatures: TranscribeOptions::TEMPERATURES.to_vec(),
            compression: Some(2.4),
            log_probability: Some(-1.0),
            no_speech: Some(0.6),
            seed: 0,
        }
    }
}

impl TranscribeOptions {
    pub const TEMPERATURES: [f32; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];

    pub(super) fn check(&self, transcriber: &Transcriber) -> Result<(), Error> {
        let refuse = |name, value: String, expected| Err(Error::Setting { name, value, expected });
        let most = transcriber.beams;
        let samples = self.temperatures.iter().any(|&temperature| temperature > 0.0);
        for (name, value) in [("the number of beams", self.beams), ("best-of", self.best_of)] {
            let is_used = samples || name != "best-of";
            if value == 0 || is_used && value > most {
                let expected = "from 1 to the beams that the transcriber was made for";
                return refuse(name, value.to_string(), expected);
            }
        }
        if self.temperatures.is_empty() || self.temperatures.len() > 64 {
            let expected = "from 1 to 64 of them";
            return refuse("the number of temperatures", self.temperatures.len().to_string(), expected);
        }
        if let Some(wrong) = self.temperatures.iter().find(|value| !(0.0..=10.0).contains(*value)) {
            return refuse("the temperature", wrong.to_string(), "from 0 to 10");
        }
        if !(self.patience > 0.0 && self.patience <= 64.0) {
            return refuse("the patience", self.patience.to_string(), "more than 0, and at most 64");
        }
        if self.timestamps == Timestamps::Word && transcriber.engine.plan().aligned_heads == 0 {
            return Err(Error::NoWordTimes);
        }
        if !transcriber.multilingual {
            if self.task == SpeechTask::Translate {
                return Err(Error::EnglishOnly { asked: "to translate".into() });
            }
            return match self.language.as_deref() {
                Some(language) if language_code(language) != Some("en") => {
                    Err(Error::EnglishOnly { asked: format!("for language \"{language}\"") })
                }
                _ => Ok(()),
            };
        }
        self.language_of(transcriber).map(|_| ())
    }

    /// The index of the language that is given, among those of the model.
    pub(super) fn language_of(&self, transcriber: &Transcriber) -> Result<Option<usize>, Error> {
        let Some(language) = self.language.as_deref() else { return Ok(None) };
        let code = language_code(language).unwrap_or(language);
        let index = transcriber.tokens.languages.iter().position(|(other, _)| other == code);
        index.map(Some).ok_or_else(|| Error::UnknownLanguage {
            language: language.to_string(),
            known: transcriber.languages().collect::<Vec<_>>().join(", "),
        })
    }
}
