//! `akunu transcribe`: the text of audio files.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use akunu::audio::{Audio, Pcm, SampleFormat};
use akunu::transcribe::formats::timed_line;
use akunu::{
    EngineOptions, Event, KvType, Model, SpeechTask, Timestamps, TranscribeOptions, Transcriber,
    TranscriberOptions, Transcript, TranscriptFormat,
};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::args::{self, DeviceArgs};
use crate::failure::Failure;
use crate::out_file::OutFile;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::{interrupt, sources};

/// Transcribes audio files with a model of Whisper's kind
///
/// Prints the text of each file, segment by segment as it is found. Files are WAV, MP3, FLAC, OGG Vorbis or M4A of any rate
/// and number of channels; - is stdin.
#[derive(Debug, Args)]
pub struct TranscribeArgs {
    /// The model
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    first: Option<OsString>,
    /// The model, as an option
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The audio files
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Language that is spoken, as a code or a name: en, german [default: detected in the first 30 seconds]
    #[arg(short, long)]
    language: Option<String>,
    /// Translates to English: as --task translate
    #[arg(long, conflicts_with = "task")]
    translate: bool,
    /// Whether the text is in the language that is spoken or in English
    #[arg(long, value_parser = task())]
    task: Option<SpeechTask>,
    /// Times of segments or of words; none: the model writes no times, and the audio is cut where it is quiet
    ///
    /// With --format text, each line begins with its time.
    #[arg(long, value_parser = timestamps())]
    timestamps: Option<Timestamps>,
    /// Format of the transcript
    #[arg(long, value_parser = format(), default_value = "text", conflicts_with = "json")]
    format: TranscriptFormat,
    /// As --format verbose_json
    #[arg(long)]
    json: bool,
    /// Writes to a file, or to files in an existing folder
    #[arg(short, long, value_name = "OUT")]
    out: Option<PathBuf>,
    /// Text before the audio, from which the model takes names, spelling and style
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Texts that are followed at temperature 0; 1: greedy
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = args::count, help_heading = "Decoding")]
    beam: usize,
    /// Texts that are sampled at higher temperatures, of which the most probable one is taken
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = args::count, help_heading = "Decoding")]
    best_of: usize,
    /// Temperature of the first attempt at a window; those after it are each 0.2 higher, up to 1
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature, help_heading = "Decoding")]
    temperature: f32,
    /// Makes one attempt at each window
    #[arg(long, help_heading = "Decoding")]
    no_fallback: bool,
    /// Decodes each window without the text of those before
    #[arg(long, help_heading = "Decoding")]
    no_condition: bool,
    /// Windows that are decoded together; more than 1: the audio is cut where it is quiet, and windows do not wait for
    /// one another
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = args::count, help_heading = "Decoding")]
    batch: usize,
    /// Compression ratio of a text above which it counts as repeating itself
    #[arg(long, value_name = "RATIO", default_value_t = 2.4, help_heading = "Decoding")]
    compression_ratio: f32,
    /// Mean log probability of tokens below which a text counts as poor
    #[arg(long, value_name = "LOGPROB", default_value_t = -1.0, help_heading = "Decoding")]
    logprob: f32,
    /// Probability of no speech above which a window with a poor text counts as silence
    #[arg(long, value_name = "P", default_value_t = 0.6, help_heading = "Decoding")]
    no_speech: f32,
    /// Seed of sampling
    #[arg(long, default_value_t = 0, help_heading = "Decoding")]
    seed: u64,
    /// The input is samples without a container: RATE[:CHANNELS[:FORMAT]], with FORMAT i16 (default), i32 or f32, such as
    /// 16000 or 48000:2:f32
    #[arg(long, value_name = "PCM", value_parser = pcm)]
    pcm: Option<Pcm>,
    /// Storage type of the keys and values [default: f16]
    #[arg(long, value_parser = args::kv_type(), help_heading = "Engine")]
    kv_type: Option<KvType>,
    #[command(flatten)]
    device: DeviceArgs,
}

fn task() -> impl TypedValueParser<Value = SpeechTask> {
    PossibleValuesParser::new(["transcribe", "translate"]).map(|name| match name.as_str() {
        "translate" => SpeechTask::Translate,
        _ => SpeechTask::Transcribe,
    })
}

fn timestamps() -> impl TypedValueParser<Value = Timestamps> {
    PossibleValuesParser::new(["none", "segment", "word"]).map(|name| match name.as_str() {
        "none" => Timestamps::None,
        "word" => Timestamps::Word,
        _ => Timestamps::Segment,
    })
}

fn format() -> impl TypedValueParser<Value = TranscriptFormat> {
    PossibleValuesParser::new(TranscriptFormat::ALL.map(TranscriptFormat::name))
        .map(|name| TranscriptFormat::from_str(&name).unwrap_or_default())
}

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(value) if (0.0..=10.0).contains(&value) => Ok(value),
        _ => Err("it must be a number from 0 to 10".into()),
    }
}

fn pcm(text: &str) -> Result<Pcm, String> {
    let mut parts = text.split(':');
    let rate = parts.next().and_then(|rate| rate.parse().ok());
    let channels = parts.next().map_or(Some(1), |channels| channels.parse().ok());
    let format = match parts.next() {
        None | Some("i16") => Some(SampleFormat::I16),
        Some("i32") => Some(SampleFormat::I32),
        Some("f32") => Some(SampleFormat::F32),
        Some(_) => None,
    };
    match (rate, channels, format, parts.next()) {
        (Some(rate), Some(channels), Some(format), None) => Ok(Pcm { rate, channels, format }),
        _ => Err("it must be RATE[:CHANNELS[:FORMAT]], such as 16000 or 48000:2:f32".into()),
    }
}

impl TranscribeArgs {
    /// The model. With `-m`, the first argument is a file.
    fn take_model(&mut self) -> Option<PathBuf> {
        let first = self.first.take().map(PathBuf::from);
        let Some(model) = &self.model else { return first };
        self.files.splice(..0, first);
        Some(model.clone())
    }

    fn format(&self) -> TranscriptFormat {
        if self.json { TranscriptFormat::VerboseJson } else { self.format }
    }

    fn task(&self) -> SpeechTask {
        if self.translate { SpeechTask::Translate } else { self.task.unwrap_or_default() }
    }

    fn temperatures(&self) -> Vec<f32> {
        const STEP: f32 = 0.2;
        if self.no_fallback {
            return vec![self.temperature];
        }
        let higher = (1..).map(|i| self.temperature + STEP * i as f32).take_while(|&t| t < 1.0 + STEP / 2.0);
        std::iter::once(self.temperature).chain(higher).collect()
    }

    fn options(&self) -> TranscribeOptions {
        TranscribeOptions {
            language: self.language.clone(),
            task: self.task(),
            timestamps: self.timestamps.unwrap_or_default(),
            prompt: self.prompt.clone(),
            condition: !self.no_condition,
            parallel: self.batch > 1,
            beams: self.beam,
            best_of: self.best_of,
            temperatures: self.temperatures(),
            compression: Some(self.compression_ratio),
            log_probability: Some(self.logprob),
            no_speech: Some(self.no_speech),
            seed: self.seed,
            ..TranscribeOptions::default()
        }
    }

    fn transcriber(&self) -> TranscriberOptions {
        let samples = self.temperatures().iter().any(|&temperature| temperature > 0.0);
        let engine = EngineOptions {
            device: self.device.on.device.choice,
            threads: self.device.threads,
            backends: self.device.on.backends(),
            kv: self.kv_type.unwrap_or(EngineOptions::default().kv),
            ..EngineOptions::default()
        };
        let beams = self.beam.max(if samples { self.best_of } else { 1 });
        let word_times = self.timestamps == Some(Timestamps::Word);
        TranscriberOptions { engine, windows: self.batch, beams, word_times }
    }

    fn open(&self, path: &Path) -> Result<Audio, akunu::Error> {
        let is_stdin = path == Path::new("-");
        Ok(match (self.pcm, is_stdin) {
            (Some(pcm), true) => Audio::from_pcm(std::io::stdin(), pcm)?,
            (Some(pcm), false) => Audio::open_pcm(path, pcm)?,
            (None, true) => Audio::from_reader(std::io::stdin())?,
            (None, false) => Audio::open(path)?,
        })
    }

    /// Where the transcript of a file goes; `None`: stdout.
    fn target(&self, file: &Path) -> Option<PathBuf> {
        let out = self.out.as_deref()?;
        if !out.is_dir() {
            return Some(out.to_path_buf());
        }
        let stem = if file == Path::new("-") { Path::new("stdin") } else { file };
        let mut name = stem.file_stem().unwrap_or(stem.as_os_str()).to_os_string();
        name.push(".");
        name.push(self.format().suffix());
        Some(out.join(name))
    }

    /// Refuses what would replace an input, or one transcript by another.
    fn check_targets(&self) -> Result<(), Failure> {
        let is_by_segment = matches!(self.format(), TranscriptFormat::Srt | TranscriptFormat::Vtt);
        if self.files.len() > 1 && self.out.is_none() && is_by_segment {
            let problem = format!("{} of several files need a folder", self.format().name());
            return Err(Failure::usage(problem).hint("give one with -o"));
        }
        if let Some(out) = self.out.as_deref().filter(|out| self.files.len() > 1 && !out.is_dir()) {
            let problem =
                format!("{} is not a folder, and there are {} files", out.display(), self.files.len());
            return Err(Failure::usage(problem));
        }
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let inputs: Vec<&Path> = self.files.iter().map(|file| file.as_path()).collect();
        let mut targets: Vec<PathBuf> = Vec::new();
        for file in &self.files {
            let Some(target) = self.target(file) else { continue };
            sources::refuse_inputs(&target, &inputs)?;
            let path = real(&target);
            if targets.contains(&path) {
                let problem = format!("the transcripts of two files would both be {}", target.display());
                return Err(Failure::usage(problem).hint("transcribe them one by one, each with its own -o"));
            }
            targets.push(path);
        }
        Ok(())
    }
}

pub fn run(mut args: TranscribeArgs, out: &mut Output) -> Result<(), Failure> {
    let path = args.take_model();
    if args.files.is_empty() {
        return Err(
            Failure::usage("no audio file was given").hint("akunu transcribe MODEL talk.mp3, or - for stdin")
        );
    }
    args.check_targets()?;
    let args = &args;
    let model = super::open(path.as_deref(), args.device.no_mmap)?;
    let mut transcriber = Transcriber::new(model.clone(), &args.transcriber())?;
    for note in transcriber.engine().notes() {
        output::note(&format!("note: {note}"));
    }
    let mut failed = false;
    for file in &args.files {
        let done = transcribe(args, file, &model, &mut transcriber, out);
        match done {
            Err(Failure::Failed(mut message)) if args.files.len() > 1 => {
                message.error = format!("{}: {}", file.display(), message.error);
                Failure::Failed(message).report();
                failed = true;
            }
            other => other?,
        }
    }
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

fn transcribe(
    args: &TranscribeArgs,
    file: &Path,
    model: &Model,
    transcriber: &mut Transcriber,
    out: &mut Output,
) -> Result<(), Failure> {
    let mut target = match args.target(file) {
        Some(path) => Some(OutFile::open(&path, model.weights(), &[])?),
        None => None,
    };
    let audio = args.open(file)?;
    let listening = interrupt::listen();
    let mut job = transcriber.job(audio, &args.options())?.cancelled_by(listening.flag());
    // Text on a terminal is progress enough.
    let shows_text = args.out.is_none() && std::io::stdout().is_terminal() && args.format().is_by_segment();
    let mut progress = job.seconds().filter(|_| !shows_text).map(|seconds| {
        Progress::with_template(
            "transcribing",
            seconds as u64,
            "{spinner} {msg} {wide_bar} {pos}/{len} s {eta}",
        )
    });
    let mut write = |text: &str| match &mut target {
        Some(file) => file.append(text.as_bytes()),
        None => {
            out.generated(text)?;
            out.flush()
        }
    };
    let mut transcript = Transcript::default();
    if args.format().is_by_segment() {
        write(args.format().header())?;
    }
    while !job.is_over() {
        transcriber.step(&mut [&mut job])?;
        for event in job.events()? {
            match &event {
                Event::Segment(segment) if args.format().is_by_segment() => {
                    let is_timed = args.format() == TranscriptFormat::Text
                        && args.timestamps.is_some_and(|asked| asked != Timestamps::None);
                    write(&if is_timed { timed_line(segment) } else { args.format().segment(segment) })?;
                }
                Event::Progress { seconds } => {
                    if let Some(progress) = &mut progress {
                        progress.set(*seconds as u64);
                    }
                }
                other => {
                    if let Some(line) = note(other) {
                        match &progress {
                            Some(progress) => progress.note(&line),
                            None => output::note(&line),
                        }
                    }
                }
            }
            transcript.add(event);
        }
    }
    if listening.flag().load(std::sync::atomic::Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    if !args.format().is_by_segment() {
        write(&format!("{}\n", args.format().whole(&transcript, args.task())))?;
    }
    drop(progress);
    match target {
        Some(file) => file.finish(),
        None => Ok(()),
    }
}

/// What the user should know of.
fn note(event: &Event) -> Option<String> {
    match event {
        Event::Language { code, probability } if *probability < 1.0 => {
            Some(format!("note: the language is {code} (probability {probability:.2}); -l sets it"))
        }
        Event::Repetition { seconds } => {
            Some(format!("note: the text of the window at {seconds:.0} s repeats itself, and was cut"))
        }
        Event::Damage(damage) => {
            let packets =
                (damage.packets > 0).then(|| format!("{} packets could not be decoded", damage.packets));
            let ended = damage.ended.as_ref().map(|reason| format!("the file ends early: {reason}"));
            Some(format!("note: {}", [packets, ended].into_iter().flatten().collect::<Vec<_>>().join("; ")))
        }
        _ => None,
    }
}
