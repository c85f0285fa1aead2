//! Who may ask: API keys.

use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::error::ServeError;

/// Keys that are let in; with none of them, everybody is. Only their digests are kept: all are of one length, so comparing them takes
/// as long whatever they have in common.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<[u8; 32]>);

impl Keys {
    /// Any white space, or commas, between them.
    pub fn new(text: &str) -> Keys {
        let apart = |c: char| c.is_whitespace() || c == ',';
        Keys(text.split(apart).filter(|key| !key.is_empty()).map(digest).collect())
    }

    /// A key a line; lines with `#` in front are for people.
    pub fn from_file(path: &Path) -> Result<Keys, ServeError> {
        let failed = |error| ServeError::File { path: path.display().to_string(), error };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys = Keys(lines.map(digest).collect());
        match keys.is_empty() {
            true => Err(ServeError::NoKeys { path: path.display().to_string() }),
            false => Ok(keys),
        }
    }

    pub fn extend(&mut self, more: Keys) {
        self.0.extend(more.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the key that a request comes with. Looks at all of them, whichever it is.
    pub fn find(&self, headers: &HeaderMap) -> Option<u64> {
        let given = digest(given(headers)?);
        let (mut number, mut found) = (0u64, Choice::from(0));
        for (index, key) in (0u64..).zip(&self.0) {
            let same = key.ct_eq(&given);
            number.conditional_assign(&index, same);
            found |= same;
        }
        bool::from(found).then_some(number)
    }
}

/// `Authorization: Bearer KEY`, or `x-api-key: KEY`.
fn given(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))])
    }

    #[test]
    fn a_key_comes_in_either_header() {
        let keys = Keys::new("first second,third\n");
        for (name, value, number) in [
            ("authorization", "Bearer first", Some(0)),
            ("authorization", "bearer second", Some(1)),
            ("x-api-key", "third", Some(2)),
            ("authorization", "Basic first", None),
            ("authorization", "first", None),
            ("authorization", "Bearer firs", None),
            ("x-api-key", "", None),
            ("other", "first", None),
        ] {
            assert_eq!(keys.find(&headers(name, value)), number, "{name}: {value}");
        }
    }

    #[test]
    fn a_file_has_a_key_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "# for tests\n\n  one \ntwo\n").unwrap();
        let keys = Keys::from_file(&path).unwrap();
        assert_eq!(keys.find(&headers("x-api-key", "two")), Some(1));
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(Keys::from_file(&path).unwrap_err().to_string().contains("no key"));
        assert!(Keys::from_file(&folder.path().join("none")).is_err());
    }
}
