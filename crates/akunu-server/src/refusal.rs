//! Errors of requests, independent of the protocol.

use akunu::{Error, GrammarError};
use akunu_format::escaped;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The request is invalid.
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    Method,
    TooLarge,
    /// The body is not of a type that the path takes.
    MediaType,
    /// The client sent its request too slowly.
    TooSlow,
    TooMany,
    Internal,
    Unavailable,
    /// Another server, which this one asked, failed.
    Upstream,
    /// The answer exceeded the server's time limit.
    Overdue,
}

impl Reason {
    pub fn status(self) -> StatusCode {
        match self {
            Reason::Invalid => StatusCode::BAD_REQUEST,
            Reason::Unauthorized => StatusCode::UNAUTHORIZED,
            Reason::Forbidden => StatusCode::FORBIDDEN,
            Reason::NotFound => StatusCode::NOT_FOUND,
            Reason::Method => StatusCode::METHOD_NOT_ALLOWED,
            Reason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Reason::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Reason::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Reason::Upstream => StatusCode::BAD_GATEWAY,
            Reason::Overdue => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl Reason {
    /// The code of errors that have no code of their own, for the log.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Reason::Invalid => "invalid",
            Reason::Unauthorized => "unauthorized",
            Reason::Forbidden => "forbidden",
            Reason::NotFound => "not_found",
            Reason::Method => "method",
            Reason::TooLarge => "too_large",
            Reason::MediaType => "media_type",
            Reason::TooSlow => "too_slow",
            Reason::TooMany => "too_many",
            Reason::Internal => "internal",
            Reason::Unavailable => "unavailable",
            Reason::Upstream => "upstream",
            Reason::Overdue => "overdue",
        }
    }
}

/// Both may quote a field of the request, and clients show them on terminals.
fn printable(text: &str) -> String {
    escaped(text, &['\n', '\t'])
}

/// An error response. Handlers return it, and a middleware writes it in the error format of the path's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
    /// The invalid field.
    pub param: Option<String>,
    /// A code for programs, such as `model_not_found`.
    pub code: Option<&'static str>,
    /// Seconds after which the client may retry.
    pub retry_after: Option<u64>,
    /// Whether the message is the engine's, so that it may contain paths of the server's files.
    pub may_name_files: bool,
}

impl Refusal {
    pub fn new(reason: Reason, message: impl Into<String>) -> Refusal {
        Refusal {
            reason,
            message: printable(&message.into()),
            param: None,
            code: None,
            retry_after: None,
            may_name_files: false,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(Reason::Invalid, message)
    }

    pub fn internal(message: impl Into<String>) -> Refusal {
        Refusal::new(Reason::Internal, message)
    }

    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Refusal {
        self.param = Some(printable(&param.into()));
        self
    }

    /// Names the field with what is too long for the context, if that is the reason.
    #[must_use]
    pub fn too_long_in(self, param: &str) -> Refusal {
        match self.code {
            Some("context_length_exceeded") if self.param.is_none() => self.param(param),
            _ => self,
        }
    }

    #[must_use]
    pub fn code(mut self, code: &'static str) -> Refusal {
        self.code = Some(code);
        self
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Refusal {
        self.retry_after = Some(seconds);
        self
    }

    #[must_use]
    pub fn may_name_files(mut self) -> Refusal {
        self.may_name_files = true;
        self
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.reason.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let text = error.to_string();
        match error {
            Error::PromptTooLong { prompt, context } => Refusal::invalid(format!(
                "the prompt has {prompt} tokens, and the context length of this model is {context}; shorten the prompt"
            ))
            .code("context_length_exceeded"),
            Error::TextTooLong { index, tokens, longest } => Refusal::invalid(format!(
                "text number {} has {tokens} tokens, and this model takes at most {longest}; shorten it, or set \
                 \"truncate\": true",
                index + 1
            ))
            .code("context_length_exceeded"),
            Error::EmptyText { .. } | Error::UnknownPrompt { .. } | Error::ManyLabels { .. } => {
                Refusal::invalid(text)
            }
            Error::Grammar(GrammarError::Busy { .. }) => {
                Refusal::new(Reason::TooMany, text).code("queue_full").retry_after(1)
            }
            Error::Grammar(GrammarError::Vocabulary { .. }) => Refusal::internal(text),
            Error::Grammar(_) => Refusal::invalid(text),
            Error::TokenOutsideVocabulary { place, .. } => {
                let param = match place {
                    "text" => "input",
                    "logit bias" => "logit_bias",
                    other => other,
                };
                Refusal::invalid(text).param(param).code("invalid_value")
            }
            Error::EmptyPrompt | Error::Setting { .. } => Refusal::invalid(text),
            Error::Conversation { .. } | Error::NothingToAnswer | Error::NothingToPick => {
                Refusal::invalid(text)
            }
            Error::Audio(error) => Refusal::invalid(format!("the audio cannot be transcribed: {error}"))
                .param("file")
                .code("invalid_audio"),
            Error::UnknownLanguage { .. } => Refusal::invalid(text).param("language").code("invalid_value"),
            Error::EnglishOnly { .. } => Refusal::invalid(text).code("invalid_value"),
            Error::Chat(_) | Error::Tokenizer(_) | Error::NoTokenizer { .. } => {
                Refusal::invalid(text).may_name_files()
            }
            _ => Refusal::internal(text).may_name_files(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_of_english_only_does_not_know_is_the_clients_error() {
        let refusal = Refusal::from(Error::EnglishOnly { asked: "to translate".into() });
        assert_eq!((refusal.reason, refusal.code), (Reason::Invalid, Some("invalid_value")));
        assert_eq!(refusal.message, "this model knows English only, and was asked to translate");
    }
}
