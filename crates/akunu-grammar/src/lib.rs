//! Grammars that constrain answers: what a model may say next, as a mask over its vocabulary.
//!
//! ```text
//! ResponseFormat ─Workers::compile─▶ Grammar ─Session─▶ Mask of the tokens that may follow
//! ```
//!
//! The masks are computed by `llguidance`. `schema` turns a JSON Schema into the keywords that it supports. Grammars are compiled, and
//! masks computed, by threads of their own ([`Workers`]): a model's pass runs in the meantime, and a costly grammar delays only the
//! answers that it belongs to. Whatever goes wrong ends an answer with an error, and never lets a token through.

#![forbid(unsafe_code)]

mod calls;
mod compiler;
mod error;
mod format;
mod gbnf;
mod lark;
mod limits;
mod pool;
pub mod schema;
mod session;
mod vocabulary;

pub use calls::{
    CallForm, CallLiterals, CallPart, CallTags, Calls, NAME_AND_ARGUMENTS, ValueKind, WithoutCalls,
    fits_tags, value_kind,
};
pub use compiler::{Client, Grammar, Workers};
pub use error::GrammarError;
pub use format::{Reasoning, ResponseFormat, Tool};
pub use limits::Limits;
pub use session::{Mask, Session};
pub use vocabulary::Vocabulary;

/// The message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
