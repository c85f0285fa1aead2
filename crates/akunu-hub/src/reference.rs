//! `hf:OWNER/NAME[@REVISION][:FILE or QUANT]`.

use std::fmt;
use std::str::FromStr;

use crate::Error;
use crate::names::Known;

/// Prefix of a model name that is not a path.
pub const PREFIX: &str = "hf:";

const MAX_NAME: usize = 96;

/// A model repository: its owner and name, both validated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repo {
    owner: String,
    name: String,
}

impl Repo {
    /// `None` if the hub could not have such a repository.
    pub fn new(owner: &str, name: &str) -> Option<Repo> {
        (is_name(owner) && is_name(name)).then(|| Repo { owner: owner.into(), name: name.into() })
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// A model on the hub, or some of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub repo: Repo,
    /// A branch, a tag or a commit; the default is `main`.
    pub revision: Option<String>,
    /// A file, or a quantisation such as `Q4_K_M`.
    pub selector: Option<String>,
}

impl Reference {
    pub const DEFAULT_REVISION: &'static str = "main";

    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(Reference::DEFAULT_REVISION)
    }

    /// Whether an argument is intended as a reference, well-formed or not, or is a short name.
    pub fn is_reference(text: &str) -> bool {
        text.starts_with(PREFIX) || Known::find(text).is_some()
    }

    /// The model of a short name, or a reference.
    pub fn named(text: &str) -> Result<Reference, Error> {
        match Known::find(text) {
            Some(known) => known.reference().parse(),
            None => text.parse(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.selector {
            Some(selector) => write!(f, ":{selector}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Reference, Error> {
        let wrong = |reason| Error::Name { text: text.to_string(), reason };
        let rest = text.strip_prefix(PREFIX).ok_or_else(|| wrong("it does not begin with hf:"))?;
        let (place, selector) = match rest.split_once(':') {
            Some((place, selector)) => (place, Some(selector)),
            None => (rest, None),
        };
        let (repo, revision) = match place.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (place, None),
        };
        let (owner, name) = repo.split_once('/').ok_or_else(|| wrong("it must be OWNER/NAME"))?;
        if name.contains('/') {
            return Err(wrong("a file name must follow a colon"));
        }
        let repo = Repo::new(owner, name).ok_or_else(|| {
            wrong("owner and name may contain letters, digits, '-', '_' and '.', and must not begin or end with '-' or '.'")
        })?;
        if revision.is_some_and(|revision| !is_revision(revision)) {
            return Err(wrong("the revision is not a valid branch, tag or commit"));
        }
        if selector.is_some_and(|selector| !is_safe_path(selector)) {
            return Err(wrong("the part after the colon is neither a file path nor a quantisation"));
        }
        Ok(Reference { repo, revision: revision.map(str::to_string), selector: selector.map(str::to_string) })
    }
}

/// The rules of the hub. `--` would make the folder name in the cache ambiguous, and the hub forbids it too.
fn is_name(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: char| matches!(c, '-' | '.');
    !text.is_empty()
        && text.len() <= MAX_NAME
        && text.chars().all(inside)
        && !text.starts_with(ends)
        && !text.ends_with(ends)
        && !text.contains("--")
        && !text.contains("..")
}

pub(crate) fn is_revision(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+');
    text.len() <= 255 && text.chars().all(inside) && is_safe_path(text)
}

/// Whether this is a relative path that cannot leave its folder, on any system, and that a file can have.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part.len() <= 255 && part != "." && part != "..";
    let refused = |c: char| c.is_control() || c == '\\' || (cfg!(windows) && c == ':');
    path.len() <= 1024 && !path.contains(refused) && path.split('/').all(part)
}

/// Whether this is a Git object id or a SHA-256, and therefore safe as a file name.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether this is a full commit id, as used for snapshot names.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Reference, Error> {
        text.parse()
    }

    #[test]
    fn every_part_is_found() {
        let found = parse("hf:some-owner/Some_Model.v1-GGUF@refs/pr/3:dir/model-Q4_K_M.gguf").unwrap();
        assert_eq!(found.repo, Repo::new("some-owner", "Some_Model.v1-GGUF").unwrap());
        assert_eq!(found.revision(), "refs/pr/3");
        assert_eq!(found.selector.as_deref(), Some("dir/model-Q4_K_M.gguf"));
        let plain = parse("hf:a/b").unwrap();
        assert_eq!((plain.revision(), plain.selector.as_deref()), ("main", None));
        assert_eq!(parse("hf:a/b:q8_0").unwrap().selector.as_deref(), Some("q8_0"));
    }

    #[test]
    fn malformed_names_are_refused_with_the_reason() {
        for text in [
            "a/b",
            "hf:",
            "hf:a",
            "hf:/b",
            "hf:a/",
            "hf:a/b/c",
            "hf:a/..",
            "hf:../b",
            "hf:a/b@",
            "hf:a/b:",
            "hf:a b/c",
            "hf:a/b@../x",
            "hf:a/b@/x",
            "hf:a/b:../x",
            "hf:a/b:/etc/passwd",
            "hf:a/b:x/../y",
            "hf:a--b/c",
            "hf:-a/b",
            "hf:a/b.",
            "hf:a/b:x\\y",
            "hf:a/b:x\ny",
            "hf:a/b@x?y",
            "hf:ä/b",
            "hf:a/b@x y",
        ] {
            assert!(matches!(parse(text), Err(Error::Name { .. })), "{text}");
        }
    }

    proptest! {
        #[test]
        fn accepted_references_round_trip(text in "hf:[a-zA-Z0-9./_@:-]{0,40}") {
            if let Ok(found) = parse(&text) {
                prop_assert_eq!(found.to_string(), text);
            }
        }

        #[test]
        fn no_safe_path_leaves_its_folder(path in "[a./\\\\\n:]{0,12}") {
            if is_safe_path(&path) {
                let inside = std::path::Path::new(&path).components();
                prop_assert!(inside.into_iter().all(|c| matches!(c, std::path::Component::Normal(_))));
            }
        }
    }
}
