//! Statistics of an answer.

use akunu::chat::Turn;
use akunu::{Engine, FinishReason};
use serde::Serialize;

use super::super::run::{Stats, finish, rate};
use crate::output;

#[derive(Clone, Debug, Serialize)]
pub struct ChatReport {
    model: String,
    device: &'static str,
    /// Prompt tokens of the conversation up to the answer: those reused from the cache, and those processed.
    prompt_tokens: usize,
    reused_tokens: usize,
    processed_tokens: usize,
    prompt_s: f64,
    prompt_tok_s: f64,
    generated_tokens: usize,
    generate_s: f64,
    generate_tok_s: f64,
    first_token_s: f64,
    context: usize,
    context_used: usize,
    forgotten_messages: usize,
    finish: &'static str,
    seed: u64,
    temperature: f32,
    #[serde(skip)]
    end: &'static str,
}

impl ChatReport {
    pub fn new(engine: &Engine, turn: &Turn, seed: u64, temperature: f32) -> ChatReport {
        let timings = &turn.timings;
        let processed = timings.prompt_tokens - timings.reused_tokens;
        // The first token is computed together with the prompt.
        let steps = timings.generated_tokens.saturating_sub(1);
        let (finish, end) = match &turn.finish {
            FinishReason::Eos(_) | FinishReason::StopId(_) => ("eos", "the model ended its turn"),
            FinishReason::ContextFull => ("context_full", "the context is full"),
            FinishReason::Cancelled => ("cancelled", "interrupted; the partial answer is kept"),
            other => finish(other),
        };
        ChatReport {
            model: engine.model().name().to_string(),
            device: engine.device().capabilities().name,
            prompt_tokens: timings.prompt_tokens,
            reused_tokens: timings.reused_tokens,
            processed_tokens: processed,
            prompt_s: timings.prompt_s,
            prompt_tok_s: rate(processed, timings.prompt_s),
            generated_tokens: timings.generated_tokens,
            generate_s: timings.generate_s,
            generate_tok_s: rate(steps, timings.generate_s),
            first_token_s: timings.ttft_s,
            context: engine.context(),
            // If the context is full, the last token has no position in it.
            context_used: (timings.prompt_tokens + timings.generated_tokens).min(engine.context()),
            forgotten_messages: turn.forgotten,
            finish,
            seed,
            temperature,
            end,
        }
    }

    pub fn print(&self, stats: Stats) {
        match stats {
            Stats::None => {}
            Stats::Json => output::json_note(self),
            Stats::Text => self.print_text(),
        }
    }

    pub fn print_text(&self) {
        output::note(&format!(
            "prompt    {:>6} tokens {:>9.1} tok/s   ({} reused, {} processed, first token after {:.0} ms)",
            self.prompt_tokens,
            self.prompt_tok_s,
            self.reused_tokens,
            self.processed_tokens,
            1e3 * self.first_token_s
        ));
        output::note(&format!(
            "answer    {:>6} tokens {:>9.1} tok/s   ({})",
            self.generated_tokens, self.generate_tok_s, self.end
        ));
        let share = 100.0 * rate(self.context_used, self.context as f64);
        output::note(&format!(
            "context   {:>6} of {} positions, {share:.0} %",
            self.context_used, self.context
        ));
    }
}
