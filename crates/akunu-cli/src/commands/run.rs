//! `akunu run`: a prompt in, text out.

use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use akunu::chat::ChatTemplates;
use akunu::{
    Constraints, Engine, FinishReason, GenerateOptions, Generated, Model, Overflow, Piece, Sampling, Session,
    Timings,
};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::args::{self, GeneratingArgs};
use crate::failure::Failure;
use crate::format::{self, FormatArgs};
use crate::ids::{self, Ids};
use crate::interrupt;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::prompt::{Prompt, PromptArgs};
use crate::samplers::SamplerArgs;

const EXAMPLES: &str = "\
Examples:
  akunu run \"Once upon a time\"                   the model inside the binary
  akunu run model.gguf \"The capital of France is\" --temp 0 -n 20
  git log -5 | akunu run model.gguf \"In short:\"   piped text, then the prompt
  akunu run model.gguf -f prompt.txt -c 16384 --kv-type q8_0
  akunu run model.gguf --prompt-ids 1,2,3 --ids  token ids in and out";

/// Continues a text
///
/// Prints the prompt and its continuation token by token, until the model ends the text, -n tokens are generated, or
/// the context is full. Ctrl-C stops after the current token; printed text is kept.
///
/// The text of a pipe or of a file on stdin is the prompt, or comes before it on lines of its own. Where stdin is
/// something else, or with < /dev/null, nothing is read.
#[derive(Debug, Args)]
#[command(
    after_long_help = EXAMPLES,
    override_usage = "akunu run [OPTIONS] [MODEL] PROMPT\n       akunu run [OPTIONS] [MODEL] -p PROMPT | -f FILE | --prompt-ids IDS\n       COMMAND | akunu run [OPTIONS] [MODEL] [PROMPT]"
)]
pub struct RunArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Maximum tokens to generate [default: until the text ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = args::count, allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// End the text before this string; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = args::stop)]
    stop: Vec<String>,
    /// Also end the text at these token ids
    #[arg(long, value_name = "IDS", value_parser = ids::parse)]
    stop_ids: Option<Ids>,
    /// Continue when the model would end the text
    #[arg(long)]
    ignore_eos: bool,
    /// When the context is full, keep the first KEEP tokens, drop the older half of the rest and continue
    #[arg(long, value_name = "KEEP", num_args = 0..=1, require_equals = true, default_missing_value = "0",
        value_parser = args::count_or_zero)]
    context_shift: Option<usize>,
    /// Print the generated token ids instead of text
    #[arg(long)]
    ids: bool,
    /// Print only the generated text, without the prompt
    #[arg(long)]
    no_echo: bool,
    /// Format of statistics on stderr [default: text]
    #[arg(long, value_enum)]
    stats: Option<Stats>,
    /// No notes, and no statistics unless --stats is given
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: GeneratingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stats {
    /// Two lines
    Text,
    /// One line with an object
    Json,
    /// None
    None,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0: greedy decoding [default: the model's suggestion, or 0.8]
    #[arg(long, alias = "temperature", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Top-k: only the K most likely tokens; 0: all [default: the model's suggestion, or 40]
    #[arg(long, value_name = "K", value_parser = args::count_or_zero, allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Top-p: only the most likely tokens with this total probability; 1: all [default: the model's suggestion, or
    /// 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Min-p: only tokens with at least this probability relative to the most likely; 0: all [default: the model's
    /// suggestion, or 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Repetition penalty of recent tokens; 1: off [default: the model's suggestion, or 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Frequency penalty: subtracted per occurrence; 0: off [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Presence penalty: subtracted once for tokens that occur; 0: off [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Number of recent tokens that penalties apply to [default: the model's suggestion, or 64]
    #[arg(long, value_name = "N", value_parser = args::count_or_zero, allow_negative_numbers = true)]
    pub repeat_last_n: Option<usize>,
    /// Adds X to the logit of token ID; -inf excludes it; may be repeated
    #[arg(long, value_name = "ID=X", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Random seed; the same seed gives the same text [default: a new one each time]
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub more: SamplerArgs,
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be an integer from 0 to {}", u64::MAX))
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let wanted = || "it must be a token id, = and a number, such as 13=-2.5 or 2=-inf".to_string();
    let (id, bias) = text.split_once('=').ok_or_else(wanted)?;
    Ok((id.trim().parse().map_err(|_| wanted())?, bias.trim().parse().map_err(|_| wanted())?))
}

/// The sampling settings that the model suggests, with defaults for the others.
pub fn default_sampling(model: &Model) -> Sampling {
    let usual = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::default() };
    Sampling::suggested(&model.config().sampling, &usual)
}

impl SamplingArgs {
    /// Checks what does not depend on a model, before one is loaded.
    pub fn check(&self) -> Result<(), Failure> {
        let given = self.more.over(self.over(Sampling::default()));
        given.check(usize::MAX).map_err(|error| Failure::usage(error.to_string()))
    }

    /// Options take precedence over the model's suggestions and the defaults.
    pub fn sampling(&self, model: &Model) -> Sampling {
        let sampling = self.more.over_for(self.over(default_sampling(model)), model);
        Sampling { seed: self.seed.unwrap_or_else(random_seed), ..sampling }
    }

    /// The settings of this struct's own options on top of others.
    fn over(&self, suggested: Sampling) -> Sampling {
        Sampling {
            temperature: self.temp.unwrap_or(suggested.temperature),
            top_k: self.top_k.unwrap_or(suggested.top_k),
            top_p: self.top_p.unwrap_or(suggested.top_p),
            min_p: self.min_p.unwrap_or(suggested.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(suggested.repeat_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or_default(),
            presence_penalty: self.presence_penalty.unwrap_or_default(),
            repeat_last_n: self.repeat_last_n.unwrap_or(suggested.repeat_last_n),
            logit_bias: self.logit_bias.clone(),
            ..suggested
        }
    }
}

/// Short enough to be typed again.
fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() >> 32
}

pub fn run(args: RunArgs, out: &mut Output) -> Result<(), Failure> {
    let RunArgs { prompt, max_tokens, stop, stop_ids, ignore_eos, context_shift, sampling, .. } = args;
    let quiet = args.quiet;
    sampling.check()?;
    let format = args.format.read()?;
    let (path, prompt) = prompt.resolve()?;
    let model = super::open_generating(path.as_deref(), args.engine.engine.device.no_mmap)?;
    let ids = prompt.ids(&model)?;
    let listening = interrupt::listen();
    let cancel = listening.flag();
    let constrain = |format| Constraints::new(model.clone()).get(&format, None, Some(&cancel));
    let constraint = format.map(constrain).map(format::check).transpose()?;
    // Nothing asks for the flag while workers join and the model is loaded, so Ctrl-C ends the process then.
    drop(listening);
    let mut engine = super::engine(&model, &args.engine.options(), quiet)?;
    let cancel = interrupt::flag();
    akunu::check_prompt(&ids, engine.vocab_size(), engine.context())?;
    let options = GenerateOptions {
        max_tokens,
        sampling: sampling.sampling(&model),
        stop_strings: stop,
        stop_ids: stop_ids.map(|Ids(ids)| ids).unwrap_or_default(),
        visible_ids: Vec::new(),
        logprobs: None,
        ignore_eos,
        constraint,
        overflow: context_shift.map_or(Overflow::Stop, |keep| Overflow::Shift { keep }),
        cancel: Some(cancel),
    };
    options.sampling.check(engine.vocab_size())?;
    let is_text = matches!(prompt, Prompt::Text(_));
    if let (Some(path), true) = (&path, is_text && !quiet && !args.ids && options.constraint.is_none()) {
        note_of_chat(&model, path);
    }

    let echo = match prompt {
        Prompt::Text(text) if !args.ids && !args.no_echo => text,
        _ => String::new(),
    };
    let progress = Some(Progress::new("reading the prompt", ids.len() as u64));
    let mut printer = Printer { out, progress, echo, ids: args.ids, at_line_start: true, failure: None };
    let outcome = generate(&mut engine, &ids, &options, &mut printer);
    drop(printer.progress.take());
    if outcome.is_ok() {
        printer.begin()?;
    }
    // If an error follows printed text, it goes on a separate line.
    printer.end_line()?;
    let generated = outcome?;
    engine.keep_on_disk()?;
    let stats = args.stats.unwrap_or(if quiet { Stats::None } else { Stats::Text });
    report(stats, &engine, &generated, &options);
    match generated.finish {
        FinishReason::Cancelled => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}

/// Programs with a `run` that answers like a chat are common.
fn note_of_chat(model: &Model, path: &Path) {
    let chats =
        ChatTemplates::find(model.metadata(), Some(path)).is_ok_and(|templates| !templates.is_empty());
    if chats {
        output::note(
            "note: run continues a text; akunu chat MODEL -p \"…\" answers it, in the model's chat format",
        );
    }
}

fn generate(
    engine: &mut Engine,
    ids: &[u32],
    options: &GenerateOptions,
    printer: &mut Printer<'_>,
) -> Result<Generated, Failure> {
    let mut session = engine.session()?;
    let mut feed = Timings::default();
    if let (Some(cancel), Some(progress)) = (&options.cancel, &mut printer.progress) {
        feed = feed_long_prompt(engine, &mut session, ids, cancel, progress)?;
    }
    let mut generated = engine.generate(&mut session, ids, options, &mut |piece| printer.piece(piece))?;
    generated.timings.prompt_s += feed.prompt_s;
    generated.timings.ttft_s += feed.prompt_s;
    let fed = feed.prompt_tokens - feed.reused_tokens;
    generated.timings.reused_tokens -= fed.min(generated.timings.reused_tokens);
    match printer.failure.take() {
        Some(failure) => Err(failure),
        None => Ok(generated),
    }
}

/// Processes a long prompt except its last pass, so that the progress bar moves and Ctrl-C is handled in between.
/// Generation then finds these tokens in the session.
fn feed_long_prompt(
    engine: &mut Engine,
    session: &mut Session,
    ids: &[u32],
    cancel: &AtomicBool,
    progress: &mut Progress,
) -> Result<Timings, Failure> {
    let chunk = engine.plan().options.prefill_rows;
    let mut feed = Timings::default();
    if ids.len() <= chunk {
        return Ok(feed);
    }
    let started = Instant::now();
    while feed.prompt_tokens + chunk < ids.len() && !cancel.load(Ordering::Relaxed) {
        feed.prompt_tokens += chunk;
        let before = session.len();
        let reused = engine.prefill(session, &ids[..feed.prompt_tokens])?.reused;
        feed.reused_tokens += reused.saturating_sub(before);
        progress.set(feed.prompt_tokens as u64);
    }
    feed.prompt_s = started.elapsed().as_secs_f64();
    if cancel.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(feed) }
}

/// Prints text as it is generated. A write error ends the generation and is returned afterwards.
#[derive(Debug)]
struct Printer<'a> {
    out: &'a mut Output,
    /// Present until the first text is printed.
    progress: Option<Progress>,
    /// The prompt, printed together with the first text, so that the progress bar does not come between them.
    echo: String,
    ids: bool,
    at_line_start: bool,
    failure: Option<Failure>,
}

impl Printer<'_> {
    fn print(&mut self, text: &str) -> Result<(), Failure> {
        if !text.is_empty() {
            self.at_line_start = text.ends_with('\n');
        }
        self.out.generated(text)?;
        self.out.flush()
    }

    /// Removes the progress bar and prints the prompt, once.
    fn begin(&mut self) -> Result<(), Failure> {
        drop(self.progress.take());
        let echo = std::mem::take(&mut self.echo);
        if echo.is_empty() { Ok(()) } else { self.print(&echo) }
    }

    fn piece(&mut self, piece: Piece<'_>) -> ControlFlow<()> {
        let printed = self.begin().and_then(|()| self.print_piece(piece));
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failure = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    fn print_piece(&mut self, piece: Piece<'_>) -> Result<(), Failure> {
        if self.ids {
            let words: Vec<String> = piece.ids.iter().map(u32::to_string).collect();
            let gap = if self.at_line_start || words.is_empty() { "" } else { " " };
            self.print(&format!("{gap}{}", words.join(" ")))
        } else {
            self.print(piece.text)
        }
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        if self.at_line_start { Ok(()) } else { self.print("\n") }
    }
}

/// Output of `--stats json`.
#[derive(Debug, Serialize)]
struct RunReport<'a> {
    model: &'a str,
    device: &'a str,
    prompt_tokens: usize,
    prompt_s: f64,
    prompt_tok_s: f64,
    generated_tokens: usize,
    generate_s: f64,
    generate_tok_s: f64,
    first_token_s: f64,
    load_s: f64,
    context: usize,
    finish: &'static str,
    seed: u64,
    temperature: f32,
}

fn report(stats: Stats, engine: &Engine, generated: &Generated, options: &GenerateOptions) {
    let timings = &generated.timings;
    let fed = timings.prompt_tokens - timings.reused_tokens.min(timings.prompt_tokens);
    // The first token is computed together with the prompt.
    let steps = timings.generated_tokens.saturating_sub(1);
    let report = RunReport {
        model: engine.model().name(),
        device: engine.device().capabilities().name,
        prompt_tokens: timings.prompt_tokens,
        prompt_s: timings.prompt_s,
        prompt_tok_s: rate(fed, timings.prompt_s),
        generated_tokens: timings.generated_tokens,
        generate_s: timings.generate_s,
        generate_tok_s: rate(steps, timings.generate_s),
        first_token_s: timings.ttft_s,
        load_s: engine.load_time().as_secs_f64(),
        context: engine.context(),
        finish: finish(&generated.finish).0,
        seed: options.sampling.seed,
        temperature: options.sampling.temperature,
    };
    match stats {
        Stats::None => {}
        Stats::Json => output::json_note(&report),
        Stats::Text => {
            output::note(&format!(
                "\nprompt    {:>6} tokens {:>9.1} tok/s   (first token after {:.0} ms)",
                report.prompt_tokens,
                report.prompt_tok_s,
                1e3 * report.first_token_s
            ));
            let seed = match options.sampling.temperature {
                0.0 => String::new(),
                _ => format!(", seed {}", report.seed),
            };
            output::note(&format!(
                "generated {:>6} tokens {:>9.1} tok/s   ({}{seed})",
                report.generated_tokens,
                report.generate_tok_s,
                finish(&generated.finish).1
            ));
        }
    }
}

pub fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The reason why a text ended: for JSON, and for the text output.
pub fn finish(reason: &FinishReason) -> (&'static str, &'static str) {
    match reason {
        FinishReason::Eos(_) => ("eos", "the model ended the text"),
        FinishReason::StopString(_) => ("stop_string", "stopped at --stop"),
        FinishReason::StopId(_) => ("stop_id", "stopped at --stop-ids"),
        FinishReason::MaxTokens => ("max_tokens", "stopped at -n"),
        FinishReason::ContextFull => {
            ("context_full", "the context is full: -c sets a larger one, --context-shift continues")
        }
        FinishReason::Cancelled => ("cancelled", "interrupted"),
        FinishReason::Complete => ("complete", "the requested value is complete"),
        FinishReason::Callback => ("closed", "the reader closed the stream"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logit_biases_are_an_id_and_a_number() {
        assert_eq!(logit_bias("13=-2.5"), Ok((13, -2.5)));
        assert_eq!(logit_bias("2=-inf"), Ok((2, f32::NEG_INFINITY)));
        assert!(logit_bias("13").is_err());
        assert!(logit_bias("x=1").is_err());
    }
}
