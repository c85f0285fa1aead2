//! Limits on the work of one grammar.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Limits on compiling a grammar and on computing its masks. The first five count steps, so that they do not depend on the machine or its
/// load; the durations are the last resort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a grammar's text, or of a schema as JSON.
    pub source_bytes: usize,
    /// Symbols of a compiled grammar.
    pub symbols: usize,
    /// Steps for the regular expressions of a grammar while it is compiled; about 50,000 take a millisecond.
    pub compile_steps: u64,
    /// Steps for the regular expressions of a mask; about 14,000 take a millisecond.
    pub mask_steps: u64,
    /// Earley items of a mask; about 20,000 take a millisecond.
    pub mask_items: usize,
    /// States of the lexer of one answer, of 1 to 2 kB each.
    pub states: usize,
    /// How long a request waits for its grammar.
    pub compile_time: Duration,
    /// How long an answer waits for a mask.
    pub mask_time: Duration,
    /// Time for all masks of one answer.
    pub answer_time: Duration,
    /// Grammars that wait to be compiled, of all requests.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            source_bytes: 512 << 10,
            symbols: 100_000,
            compile_steps: 1_000_000,
            mask_steps: 70_000,
            mask_items: 50_000,
            states: 20_000,
            compile_time: Duration::from_secs(2),
            mask_time: Duration::from_secs(1),
            answer_time: Duration::from_secs(10),
            waiting: 64,
        }
    }
}

impl Limits {
    pub(crate) fn parser(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.compile_steps,
            step_lexer_fuel: self.mask_steps,
            step_max_items: self.mask_items,
            max_lexer_states: self.states,
            max_grammar_size: self.symbols,
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }
}
