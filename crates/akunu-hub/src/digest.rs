//! Checksums: the SHA-256 of a large file, or the Git object id of a small one.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::reference::is_hex;

/// The expected checksum of a file; also the name of its blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Sha256(String),
    /// The SHA-1 of `blob SIZE\0` and the contents.
    Git(String),
}

impl Sum {
    pub fn sha256(hex: &str) -> Option<Sum> {
        let hex = hex.strip_prefix("sha256:").unwrap_or(hex);
        is_hex(hex, 64).then(|| Sum::Sha256(hex.to_string()))
    }

    pub fn git(hex: &str) -> Option<Sum> {
        is_hex(hex, 40).then(|| Sum::Git(hex.to_string()))
    }

    pub fn hex(&self) -> &str {
        match self {
            Sum::Sha256(hex) | Sum::Git(hex) => hex,
        }
    }

    /// A hasher for a file of this size.
    pub fn summer(&self, size: u64) -> Summer {
        match self {
            Sum::Sha256(_) => Summer::Sha256(Sha256::new()),
            Sum::Git(_) => Summer::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Summer {
    Sha256(Sha256),
    Git(Sha1),
}

impl Summer {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Summer::Sha256(state) => state.update(bytes),
            Summer::Git(state) => state.update(bytes),
        }
    }

    pub fn hex(self) -> String {
        let bytes = match self {
            Summer::Sha256(state) => state.finalize().to_vec(),
            Summer::Git(state) => state.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex_of(sum: &Sum, bytes: &[u8]) -> String {
        let mut summer = sum.summer(bytes.len() as u64);
        summer.update(bytes);
        summer.hex()
    }

    #[test]
    fn sums_are_what_sha256sum_and_git_say() {
        let sha256 = Sum::sha256(&"0".repeat(64)).unwrap();
        let expected = "a948904f2f0f479b8f8197694b30184b0d2ed1c1cd2a1ec0fb85d299a192a447";
        assert_eq!(hex_of(&sha256, b"hello world\n"), expected);
        let git = Sum::git(&"0".repeat(40)).unwrap();
        assert_eq!(hex_of(&git, b"hello world\n"), "3b18e512dba79e4c8300dd08aeb37f8e728b8dad");
    }

    #[test]
    fn what_is_no_sum_is_none() {
        for text in ["", "../../x", &"g".repeat(64), &"0".repeat(63), &"A".repeat(64)] {
            assert!(Sum::sha256(text).is_none() && Sum::git(text).is_none(), "{text}");
        }
    }
}
