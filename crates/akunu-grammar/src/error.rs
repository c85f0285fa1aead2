//! Errors of grammars. They name what to change.

use std::time::Duration;

/// Why a grammar is refused, or cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// It is invalid, or not supported.
    #[error("the {what} is invalid or not supported: {reason}")]
    Invalid { what: &'static str, reason: String },

    /// No answer satisfies it.
    #[error("the {what} allows no answer: no value satisfies it ({reason})")]
    Unsatisfiable { what: &'static str, reason: String },

    #[error("the {what} is too large: {reason}; simplify it, or divide it into several requests")]
    TooLarge { what: &'static str, reason: String },

    #[error("the {what} is not compiled after {} ms: simplify it", limit.as_millis())]
    CompileTime { what: &'static str, limit: Duration },

    #[error("{waiting} formats of answers are waiting to be compiled; try again later")]
    Busy { waiting: usize },

    #[error("the request was cancelled while the format of its answer was compiled")]
    Cancelled,

    /// A panic in the grammar library.
    #[error("the {what} cannot be compiled: the grammar library panicked ({message})")]
    Panicked { what: &'static str, message: String },

    #[error("the vocabulary cannot be used for grammars: {reason}")]
    Vocabulary { reason: String },

    #[error(
        "the format of the answer is too complex to continue: {reason}; let its alternatives differ earlier"
    )]
    TooComplex { reason: String },

    #[error(
        "the tokens that may follow were not known after {} ms, because the format of the answer is too complex: \
         simplify it", limit.as_millis()
    )]
    MaskTime { limit: Duration },

    #[error("no token of this vocabulary can continue the answer in its format")]
    NothingFits,
}

impl GrammarError {
    /// Whether a smaller grammar may be accepted.
    pub fn is_of_size(&self) -> bool {
        matches!(self, GrammarError::TooLarge { .. } | GrammarError::CompileTime { .. })
    }

    /// Whether another format would be accepted.
    pub fn is_of_format(&self) -> bool {
        use GrammarError::{CompileTime, Invalid, Panicked, TooLarge, Unsatisfiable};
        matches!(
            self,
            Invalid { .. } | Unsatisfiable { .. } | TooLarge { .. } | CompileTime { .. } | Panicked { .. }
        )
    }

    /// Whether it is about the tools that may be called.
    pub fn is_of_tools(&self) -> bool {
        use GrammarError::{CompileTime, Invalid, Panicked, TooLarge, Unsatisfiable};
        let (Invalid { what, .. }
        | Unsatisfiable { what, .. }
        | TooLarge { what, .. }
        | CompileTime { what, .. }
        | Panicked { what, .. }) = self
        else {
            return false;
        };
        *what == crate::calls::WHAT
    }
}
