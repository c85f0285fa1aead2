//! API keys.

use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::app::Caller;
use crate::error::ServeError;

/// The accepted API keys; without any, all requests are accepted. Only digests are stored. They have equal lengths and are compared in
/// constant time.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    digest: [u8; 32],
    priority: i32,
    /// For the log.
    name: Option<String>,
}

/// Maximum bytes of a file of keys.
const MAX_FILE: u64 = 16 << 20;

/// Maximum bytes of a key's name.
const MAX_NAME: usize = 64;

impl Keys {
    /// Keys that are separated by white space or commas.
    pub fn new(text: &str) -> Keys {
        let is_separator = |c: char| c.is_whitespace() || c == ',';
        let key = |text| Key { digest: digest(text), priority: 0, name: None };
        Keys(text.split(is_separator).filter(|key| !key.is_empty()).map(key).collect())
    }

    /// Reads a file with one key per line, optionally followed by a priority and `name=NAME`. Lines that begin with `#`
    /// are comments.
    pub fn from_file(path: &Path) -> Result<Keys, ServeError> {
        let shown = || path.display().to_string();
        let failed = |error| ServeError::File { path: shown(), error };
        let text = akunu_file::read_text(path, MAX_FILE).map_err(failed)?;
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let key = |(line, text)| key(text).ok_or_else(|| ServeError::Key { path: shown(), line });
        let keys = Keys(lines.map(key).collect::<Result<_, _>>()?);
        match keys.is_empty() {
            true => Err(ServeError::NoKeys { path: shown() }),
            false => Ok(keys),
        }
    }

    pub fn extend(&mut self, more: Keys) {
        self.0.extend(more.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What identifies a caller's key in later processes, too.
    pub(crate) fn digest(&self, caller: Caller) -> Option<[u8; 32]> {
        self.0.get(usize::try_from(caller.owner).ok()?).map(|key| key.digest)
    }

    /// The name of a caller's key in the log. Keys without a name are numbered.
    pub(crate) fn name(&self, caller: Caller) -> String {
        let key = usize::try_from(caller.owner).ok().and_then(|index| self.0.get(index));
        let name = key.and_then(|key| key.name.clone());
        name.unwrap_or_else(|| format!("key-{}", caller.owner.saturating_add(1)))
    }

    /// The caller whose key a request has. Always compares all keys.
    pub fn find(&self, headers: &HeaderMap) -> Option<Caller> {
        let given = digest(presented_key(headers)?);
        let (mut owner, mut priority, mut found) = (0u64, 0i32, Choice::from(0));
        for (index, key) in (0u64..).zip(&self.0) {
            let same = key.digest.ct_eq(&given);
            owner.conditional_assign(&index, same);
            priority.conditional_assign(&key.priority, same);
            found |= same;
        }
        bool::from(found).then_some(Caller { owner, priority: Some(priority) })
    }
}

/// `KEY [PRIORITY] [name=NAME]`
fn key(line: &str) -> Option<Key> {
    let mut words = line.split_whitespace();
    let mut key = Key { digest: digest(words.next()?), priority: 0, name: None };
    let mut words = words.peekable();
    if let Some(priority) = words.next_if(|word| !word.starts_with("name=")) {
        key.priority = priority.parse().ok()?;
    }
    if let Some(name) = words.next() {
        let name = name.strip_prefix("name=")?;
        let is_plain = |c: char| c.is_alphanumeric() || "-_.@+".contains(c);
        let is_name = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain);
        key.name = Some(name.to_string()).filter(|_| is_name);
        key.name.as_ref()?;
    }
    words.next().is_none().then_some(key)
}

/// `Authorization: Bearer KEY`, or `x-api-key: KEY`.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
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
            let owner = keys.find(&headers(name, value)).map(|caller| caller.owner);
            assert_eq!(owner, number, "{name}: {value}");
        }
    }

    #[test]
    fn a_file_has_one_key_per_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "# for tests\n\n  one \ntwo -3\n").unwrap();
        let keys = Keys::from_file(&path).unwrap();
        let caller = |owner, priority| Some(Caller { owner, priority: Some(priority) });
        assert_eq!(keys.find(&headers("x-api-key", "one")), caller(0, 0));
        assert_eq!(keys.find(&headers("x-api-key", "two")), caller(1, -3));
        std::fs::write(&path, "one\ntwo -3 name=batch.jobs\nthree name=alice@home\n").unwrap();
        let mut keys = Keys::new("zero");
        keys.extend(Keys::from_file(&path).unwrap());
        let found = |key| keys.find(&headers("x-api-key", key)).unwrap();
        let names = ["zero", "one", "two", "three"].map(|key| keys.name(found(key)));
        assert_eq!(names, ["key-1", "key-2", "batch.jobs", "alice@home"]);
        assert_eq!((found("two").priority, found("three").priority), (Some(-3), Some(0)));
        for line in [
            "two three",
            "two 3 4",
            "two 1e9",
            "two 9999999999",
            "two name=",
            "two name=a 3",
            "two name=a name=b",
            "two name=a/b",
            "two 3 alice",
        ] {
            std::fs::write(&path, format!("one\n{line}\n")).unwrap();
            assert!(Keys::from_file(&path).unwrap_err().to_string().starts_with("line 2 of"), "{line}");
        }
        std::fs::write(&path, "# empty\n").unwrap();
        assert!(Keys::from_file(&path).unwrap_err().to_string().contains("no API keys"));
        assert!(Keys::from_file(&folder.path().join("none")).is_err());
    }
}
