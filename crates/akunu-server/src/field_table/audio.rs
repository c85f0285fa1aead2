//! The fields of the forms with audio, in OpenAI's protocol.

use super::{Group, POST, Route, done, refused};

pub(crate) const AUDIO: Route = Route {
    paths: &["/v1/audio/transcriptions", "/v1/audio/translations"],
    groups: &[&AUDIO_FIELDS],
    is_form: true,
    ..POST
};

const SPEAKERS: &str = "speakers are not told apart";

const AUDIO_FIELDS: Group = Group {
    title: "Audio, OpenAI (forms)",
    fields: &[
        done("file", r#""talk.mp3""#, "WAV, MP3, FLAC and others, required"),
        done("model", r#""speech""#, "a name or an alias; the first model if it is left out"),
        done("language", r#""en""#, "found in the audio unless a request says otherwise"),
        done("prompt", r#""A talk.""#, "a text before the transcript"),
        done("response_format", r#""text""#, "`json`, `text`, `srt`, `vtt`, `verbose_json` and others"),
        done("temperature", "0.5", "0 to 1; 0: higher ones where the text repeats itself"),
        done("stream", "true", "server-sent events, with `json` and `text`"),
        done("timestamp_granularities", r#"["word"]"#, "`segment` and `word`, with `verbose_json`")
            .with(r#""response_format": "verbose_json""#),
        done("chunking_strategy", r#""auto""#, "`auto`: windows are independent, and processed together"),
        refused("include", r#"["logprobs"]"#, "log probabilities of tokens are not available"),
        refused("known_speaker_names", r#"["a"]"#, SPEAKERS),
        refused("known_speaker_references", r#"["a"]"#, SPEAKERS),
        refused("languages", r#"["en"]"#, "give one 'language', or none"),
        refused("keywords", r#"["akunu"]"#, "give a 'prompt' with the words"),
    ],
};
