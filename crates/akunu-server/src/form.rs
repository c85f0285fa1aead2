//! A request's body as a form, and its fields, with errors that name the field. An empty text counts as absent.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;

use crate::app::App;
use crate::blocking::blocking;
use crate::body::{is_long, read};
use crate::memory::Charge;
use crate::multipart::{self, FormError, Part};
use crate::refusal::{Reason, Refusal};

/// Maximum bytes of a field that is not a file.
const MOST_TEXT: usize = 64 << 10;

/// A received body, with its memory.
#[derive(Debug)]
struct Received {
    bytes: Vec<u8>,
    charge: Charge,
}

#[derive(Clone, Debug)]
pub(crate) struct Form {
    received: Arc<Received>,
    parts: Vec<Part>,
}

/// A file in a form. Its memory is counted until the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct FormFile {
    received: Arc<Received>,
    part: Part,
}

impl FormFile {
    pub(crate) fn charge(&self) -> &Charge {
        &self.received.charge
    }
}

impl AsRef<[u8]> for FormFile {
    fn as_ref(&self) -> &[u8] {
        &self.received.bytes[self.part.content.clone()]
    }
}

impl FromRequest<App> for Form {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Form, Refusal> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let boundary = multipart::boundary(kind.unwrap_or_default()).ok_or_else(|| {
            let message =
                "the request's body must be a form: send it as multipart/form-data (curl: -F file=@talk.mp3)";
            Refusal::new(Reason::MediaType, message).code("unsupported_media_type")
        })?;
        let boundary = boundary.map_err(refuse)?;
        let charge = request.extensions().get().cloned().unwrap_or_else(|| Charge::new(app.memory()));
        let (limits, limit) = (app.limits(), app.limits().audio);
        let bytes = read(request.into_body(), limit, limits, &charge).await?;
        let is_long = is_long(&bytes);
        let parse = move || {
            let parts = multipart::parse(&bytes, &boundary).map_err(refuse)?;
            Ok(Form { received: Arc::new(Received { bytes, charge }), parts })
        };
        if is_long { blocking(parse).await? } else { parse() }
    }
}

fn refuse(error: FormError) -> Refusal {
    Refusal::invalid(format!("the form cannot be read: {error}")).code("invalid_form")
}

fn invalid(name: &str, expected: impl Display) -> Refusal {
    Refusal::invalid(format!("'{name}' must be {expected}")).param(name).code("invalid_value")
}

impl Form {
    /// The only part of a name.
    fn part(&self, name: &str) -> Result<Option<&Part>, Refusal> {
        let mut parts = self.parts.iter().filter(|part| part.name == name);
        let part = parts.next();
        match parts.next() {
            Some(_) => {
                let message = format!("the form has '{name}' more than once");
                Err(Refusal::invalid(message).param(name).code("invalid_value"))
            }
            None => Ok(part),
        }
    }

    fn text_of(&self, part: &Part) -> Result<&str, Refusal> {
        let name = &part.name;
        if part.is_file {
            return Err(invalid(name, "a text, not a file"));
        }
        if part.content.len() > MOST_TEXT {
            return Err(invalid(name, format_args!("at most {MOST_TEXT} bytes long")));
        }
        let bytes = &self.received.bytes[part.content.clone()];
        std::str::from_utf8(bytes).map_err(|_| invalid(name, "UTF-8"))
    }

    /// Whether there is a field of the name, or a list.
    pub(crate) fn has(&self, name: &str) -> bool {
        let is_given = |part: &Part| part.is_file || !part.content.is_empty();
        self.parts.iter().any(|part| part.name.trim_end_matches("[]") == name && is_given(part))
    }

    pub(crate) fn file(&self, name: &str) -> Result<FormFile, Refusal> {
        let part = self.part(name)?.ok_or_else(|| {
            Refusal::invalid(format!("'{name}' is missing: give an audio file"))
                .param(name)
                .code("missing_required_parameter")
        })?;
        if !part.is_file {
            return Err(invalid(name, "a file, with a file name"));
        }
        Ok(FormFile { received: self.received.clone(), part: part.clone() })
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let text = self.part(name)?.map(|part| self.text_of(part)).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// The texts of a list, whose fields are called `name[]` or `name`.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<&str>, Refusal> {
        let parts =
            self.parts.iter().filter(|part| part.name.strip_suffix("[]").unwrap_or(&part.name) == name);
        parts.map(|part| self.text_of(part)).collect()
    }

    /// Reads a text that is of a certain form.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        expected: impl Display,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let text = self.text(name)?;
        text.map(|text| read(text).ok_or_else(|| invalid(name, expected))).transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        self.read(name, "true or false", |text| text.to_ascii_lowercase().parse().ok())
    }

    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, Refusal> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, expected, |text| text.parse().ok().filter(|number| range.contains(number)))
    }
}
