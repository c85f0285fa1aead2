//! Checksums: the SHA-256 of a large file, or the Git object id of a small one.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::reference::is_hex;

/// The expected checksum of a file; also the name of its blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Sha256(String),
    /// The SHA-1 of `blob SIZE\0` and the contents.
    Git(String),
}

impl Checksum {
    pub fn sha256(hex: &str) -> Option<Checksum> {
        let hex = hex.strip_prefix("sha256:").unwrap_or(hex);
        is_hex(hex, 64).then(|| Checksum::Sha256(hex.to_string()))
    }

    pub fn git(hex: &str) -> Option<Checksum> {
        is_hex(hex, 40).then(|| Checksum::Git(hex.to_string()))
    }

    pub fn hex(&self) -> &str {
        match self {
            Checksum::Sha256(hex) | Checksum::Git(hex) => hex,
        }
    }

    /// A hasher for a file of this size.
    pub fn hasher(&self, size: u64) -> Hasher {
        match self {
            Checksum::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Checksum::Git(_) => Hasher::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(state) => state.update(bytes),
            Hasher::Git(state) => state.update(bytes),
        }
    }

    pub fn hex(self) -> String {
        let bytes = match self {
            Hasher::Sha256(state) => state.finalize().to_vec(),
            Hasher::Git(state) => state.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex_of(sum: &Checksum, bytes: &[u8]) -> String {
        let mut hasher = sum.hasher(bytes.len() as u64);
        hasher.update(bytes);
        hasher.hex()
    }

    #[test]
    fn checksums_match_sha256sum_and_git() {
        let sha256 = Checksum::sha256(&"0".repeat(64)).unwrap();
        let expected = "a948904f2f0f479b8f8197694b30184b0d2ed1c1cd2a1ec0fb85d299a192a447";
        assert_eq!(hex_of(&sha256, b"hello world\n"), expected);
        let git = Checksum::git(&"0".repeat(40)).unwrap();
        assert_eq!(hex_of(&git, b"hello world\n"), "3b18e512dba79e4c8300dd08aeb37f8e728b8dad");
    }

    #[test]
    fn invalid_checksums_are_none() {
        for text in ["", "../../x", &"g".repeat(64), &"0".repeat(63), &"A".repeat(64)] {
            assert!(Checksum::sha256(text).is_none() && Checksum::git(text).is_none(), "{text}");
        }
    }
}
