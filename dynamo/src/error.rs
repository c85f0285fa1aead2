//! Dynamo's errors. Dynamo shows clients only what is stated to be public, which is done for errors of requests: their
//! messages have settings and numbers, and no text of a prompt.

use akunu::schedule::Refused;
use akunu::{Error, GrammarError};
use dynamo_backend_common::{BackendError, DynamoError, ErrorType};

/// A request that cannot be done as it asks.
pub(crate) fn invalid(message: impl Into<String>) -> DynamoError {
    public(ErrorType::Backend(BackendError::InvalidArgument), message)
}

/// The engine does not run, or runs no longer.
pub(crate) fn shut_down(message: impl Into<String>) -> DynamoError {
    let class = ErrorType::Backend(BackendError::EngineShutdown);
    DynamoError::builder().error_type(class).message(message).build()
}

pub(crate) fn internal(message: impl Into<String>) -> DynamoError {
    let class = ErrorType::Backend(BackendError::Unknown);
    DynamoError::builder().error_type(class).message(message).build()
}

/// Another worker may have a free slot.
fn overloaded(message: impl Into<String>) -> DynamoError {
    public(ErrorType::WorkerOverloaded, message)
}

fn public(class: ErrorType, message: impl Into<String>) -> DynamoError {
    let message = message.into();
    DynamoError::builder().error_type(class).message(message.clone()).public_message(message).build()
}

/// The error of a request.
pub(crate) fn of_engine(error: &Error) -> DynamoError {
    let message = error.to_string();
    match error {
        Error::Grammar(GrammarError::Busy { .. }) => overloaded(message),
        Error::Grammar(GrammarError::Vocabulary { .. }) => internal(message),
        Error::Grammar(_)
        | Error::EmptyPrompt
        | Error::NoTokenizer { .. }
        | Error::NothingToPick
        | Error::PromptTooLong { .. }
        | Error::Setting { .. }
        | Error::TokenOutsideVocabulary { .. } => invalid(message),
        _ => internal(message),
    }
}

pub(crate) fn of_refusal(refused: &Refused) -> DynamoError {
    match refused {
        Refused::Closed => shut_down(refused.to_string()),
        Refused::QueueFull { .. } | Refused::TooMany { .. } | Refused::TooLate { .. } => {
            overloaded(refused.to_string())
        }
    }
}
