//! Transcripts as text: lines with times, subtitles, and OpenAI's JSON.

use std::str::FromStr;

use serde_json::{Value, json};

use super::{Segment, SpeechTask, Transcript, Word};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TranscriptFormat {
    #[default]
    Text,
    /// `{"text": …}`
    Json,
    /// With language, duration, segments and words.
    VerboseJson,
    /// SubRip.
    Srt,
    /// WebVTT.
    Vtt,
}

impl TranscriptFormat {
    pub const ALL: [TranscriptFormat; 5] = [
        TranscriptFormat::Text,
        TranscriptFormat::Json,
        TranscriptFormat::VerboseJson,
        TranscriptFormat::Srt,
        TranscriptFormat::Vtt,
    ];

    pub fn name(self) -> &'static str {
        match self {
            TranscriptFormat::Text => "text",
            TranscriptFormat::Json => "json",
            TranscriptFormat::VerboseJson => "verbose_json",
            TranscriptFormat::Srt => "srt",
            TranscriptFormat::Vtt => "vtt",
        }
    }

    /// The suffix of files.
    pub fn suffix(self) -> &'static str {
        match self {
            TranscriptFormat::Text => "txt",
            TranscriptFormat::Json | TranscriptFormat::VerboseJson => "json",
            TranscriptFormat::Srt => "srt",
            TranscriptFormat::Vtt => "vtt",
        }
    }

    /// The type of its content in HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            TranscriptFormat::Json | TranscriptFormat::VerboseJson => "application/json",
            TranscriptFormat::Vtt => "text/vtt; charset=utf-8",
            TranscriptFormat::Text | TranscriptFormat::Srt => "text/plain; charset=utf-8",
        }
    }

    /// Whether each segment is written by itself, as it is found.
    pub fn is_by_segment(self) -> bool {
        !matches!(self, TranscriptFormat::Json | TranscriptFormat::VerboseJson)
    }

    /// What a file begins with.
    pub fn header(self) -> &'static str {
        if self == TranscriptFormat::Vtt { "WEBVTT\n\n" } else { "" }
    }

    /// A segment in a format that has them one by one.
    pub fn segment(self, segment: &Segment) -> String {
        let text = segment.text.trim();
        match self {
            // Nothing in a text ends a subtitle early or looks like a new one.
            TranscriptFormat::Srt => {
                let times = times(segment, ',', true);
                format!("{}\n{times}\n{}\n\n", segment.id + 1, text.replace("-->", "->"))
            }
            TranscriptFormat::Vtt => {
                let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace("-->", "--&gt;");
                format!("{}\n{escaped}\n\n", times(segment, '.', false))
            }
            _ => format!("{text}\n"),
        }
    }

    /// A whole transcript.
    pub fn whole(self, transcript: &Transcript, task: SpeechTask) -> String {
        match self {
            TranscriptFormat::Json => json!({ "text": transcript.text }).to_string(),
            TranscriptFormat::VerboseJson => verbose(transcript, task).to_string(),
            TranscriptFormat::Text => format!("{}\n", transcript.text),
            _ => {
                let segments = transcript.segments.iter().map(|segment| self.segment(segment));
                std::iter::once(self.header().to_string()).chain(segments).collect()
            }
        }
    }
}

impl FromStr for TranscriptFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<TranscriptFormat, String> {
        let found = TranscriptFormat::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let known = TranscriptFormat::ALL.map(TranscriptFormat::name).join(", ");
            format!("it must be one of {known}")
        })
    }
}

/// A line for people: `[00:01.000 --> 00:02.500] text`.
pub fn timed_line(segment: &Segment) -> String {
    format!("[{}] {}\n", times(segment, '.', false), segment.text.trim())
}

fn times(segment: &Segment, point: char, with_hours: bool) -> String {
    format!("{} --> {}", clock(segment.start, point, with_hours), clock(segment.end, point, with_hours))
}

/// `01:02:03.456`; without hours if there are none and they are not asked for.
fn clock(seconds: f64, point: char, with_hours: bool) -> String {
    let all = (seconds * 1000.0).round() as u64;
    let (hours, minutes, seconds, milliseconds) =
        (all / 3_600_000, all / 60_000 % 60, all / 1000 % 60, all % 1000);
    let hours = if with_hours || hours > 0 { format!("{hours:02}:") } else { String::new() };
    format!("{hours}{minutes:02}:{seconds:02}{point}{milliseconds:03}")
}

/// To milliseconds, as numbers are read.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn verbose(transcript: &Transcript, task: SpeechTask) -> Value {
    let words = transcript.segments.iter().flat_map(|segment| &segment.words).map(word);
    let words: Vec<Value> = words.collect();
    let mut all = json!({
        "task": match task {
            SpeechTask::Transcribe => "transcribe",
            SpeechTask::Translate => "translate",
        },
        "language": transcript.language.as_deref().unwrap_or("unknown"),
        "duration": rounded(transcript.duration),
        "text": transcript.text,
        "segments": transcript.segments.iter().map(segment).collect::<Vec<_>>(),
    });
    if !words.is_empty() {
        all["words"] = words.into();
    }
    all
}

/// A segment as OpenAI's interface has it. `seek` is in frames of 10 ms.
pub fn segment(segment: &Segment) -> Value {
    json!({
        "id": segment.id,
        "seek": (segment.window * 100.0).round() as u64,
        "start": rounded(segment.start),
        "end": rounded(segment.end),
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.mean_log_probability,
        "compression_ratio": segment.compression,
        "no_speech_prob": segment.no_speech,
    })
}

fn word(word: &Word) -> Value {
    json!({
        "word": word.text.trim(),
        "start": rounded(word.start),
        "end": rounded(word.end),
        "probability": word.probability,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |id, start, end, text: &str| Segment {
            id,
            window: 0.0,
            start,
            end,
            text: text.into(),
            tokens: vec![1, 2],
            words: vec![Word { text: " Hi".into(), tokens: vec![1], start, end, probability: 0.5 }],
            temperature: 0.0,
            mean_log_probability: -0.25,
            compression: 1.0,
            no_speech: 0.0,
        };
        Transcript {
            language: Some("en".into()),
            duration: 3700.5,
            text: "Hi <b> --> you. Bye & so on.".into(),
            segments: vec![
                segment(0, 0.0, 1.5, " Hi <b> --> you."),
                segment(1, 3599.9996, 3661.25, " Bye & so on."),
            ],
        }
    }

    #[test]
    fn subtitles_have_their_times_and_nothing_that_looks_like_times() {
        assert_eq!(
            TranscriptFormat::Srt.whole(&transcript(), SpeechTask::Transcribe),
            "1\n00:00:00,000 --> 00:00:01,500\nHi <b> -> you.\n\n\
             2\n01:00:00,000 --> 01:01:01,250\nBye & so on.\n\n"
        );
        assert_eq!(
            TranscriptFormat::Vtt.whole(&transcript(), SpeechTask::Transcribe),
            "WEBVTT\n\n00:00.000 --> 00:01.500\nHi &lt;b> --&gt; you.\n\n\
             01:00:00.000 --> 01:01:01.250\nBye &amp; so on.\n\n"
        );
    }

    #[test]
    fn json_is_that_of_openai() {
        let whole = |format: TranscriptFormat| -> Value {
            serde_json::from_str(&format.whole(&transcript(), SpeechTask::Translate)).expect("JSON")
        };
        assert_eq!(whole(TranscriptFormat::Json), json!({"text": "Hi <b> --> you. Bye & so on."}));
        let verbose = whole(TranscriptFormat::VerboseJson);
        assert_eq!((&verbose["task"], &verbose["duration"]), (&json!("translate"), &json!(3700.5)));
        assert_eq!(verbose["segments"][1]["start"], json!(3600.0));
        assert_eq!(verbose["words"][0], json!({"word": "Hi", "start": 0.0, "end": 1.5, "probability": 0.5}));
    }

    #[test]
    fn names_of_formats_are_read() {
        for format in TranscriptFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("ass".parse::<TranscriptFormat>().unwrap_err().contains("srt"));
    }
}
