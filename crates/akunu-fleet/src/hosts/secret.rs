//! The secret that the leader and its workers share. Each proves to the other that it knows it: it sends an HMAC of the
//! other's nonce and its own, so that the secret never travels.

use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const BLOCK: usize = 64;
/// So short that it could be found by trying, with what a listener on the network has seen.
const LEAST: usize = 16;
/// The most bytes of one.
pub const MOST: usize = 4096;

pub(crate) type Nonce = [u8; 32];
pub(crate) type Proof = [u8; 32];

/// A shared secret. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(
        "the secret of the workers has {bytes} characters, which can be guessed; use at least {LEAST} random ones"
    )]
    Short { bytes: usize },
    #[error("the secret of the workers has {bytes} characters; use at most {MOST}")]
    Long { bytes: usize },
}

impl Secret {
    /// Spaces and line breaks at the ends are no part of it. It is checked where it is used.
    pub fn new(text: impl AsRef<[u8]>) -> Secret {
        Secret(text.as_ref().trim_ascii().to_vec())
    }

    pub(crate) fn check(&self) -> Result<(), SecretError> {
        match self.0.len() {
            bytes if bytes < LEAST => Err(SecretError::Short { bytes }),
            bytes if bytes > MOST => Err(SecretError::Long { bytes }),
            _ => Ok(()),
        }
    }

    /// For loopback addresses: what all programs of this machine know.
    pub(crate) fn public() -> Secret {
        Secret(b"Akunu, on one machine".to_vec())
    }

    pub(crate) fn prove(&self, parts: &[&[u8]]) -> Proof {
        hmac(&self.0, parts)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Compares in constant time.
pub(crate) fn is_proved(expected: &Proof, found: &[u8]) -> bool {
    bool::from(expected[..].ct_eq(found))
}

/// Numbers that nobody can know before. The keys of hash maps come from the system's source of random numbers, and a
/// thread that begins takes new ones; SipHash of different inputs under such a key cannot be told from random numbers.
pub(crate) fn nonce() -> Nonce {
    let keys = || (0..8u8).map(|index| RandomState::new().hash_one(index)).collect::<Vec<u64>>();
    let of_new_thread = std::thread::spawn(keys).join().unwrap_or_else(|_| keys());
    let mut hasher = Sha256::new();
    of_new_thread.into_iter().chain(keys()).for_each(|key| hasher.update(key.to_le_bytes()));
    hasher.finalize().into()
}

/// HMAC-SHA256 (RFC 2104) of the parts, each after its length, so that no two lists are alike.
fn hmac(key: &[u8], parts: &[&[u8]]) -> Proof {
    let mut message = Vec::new();
    for part in parts {
        message.extend((part.len() as u64).to_le_bytes());
        message.extend(*part);
    }
    hmac_of(key, &message)
}

fn hmac_of(key: &[u8], message: &[u8]) -> Proof {
    let mut padded = [0; BLOCK];
    match key.len() {
        0..=BLOCK => padded[..key.len()].copy_from_slice(key),
        _ => padded[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let with = |byte: u8| padded.map(|key| key ^ byte);
    let inner = Sha256::new().chain_update(with(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(with(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Cases 1, 2 and 6 of RFC 4231: a short key, a shorter one, and one that is longer than a block.
    #[test]
    fn proofs_are_hmac_sha256() {
        let cases: [(&[u8], &[u8], &str); 3] = [
            (&[0x0b; 20], b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ];
        for (key, message, expected) in cases {
            assert_eq!(hex(&hmac_of(key, message)), expected);
        }
    }

    #[test]
    fn proofs_differ_by_secret_and_by_where_parts_end() {
        let [a, b] = ["0123456789abcdef", "0123456789abcdeg"].map(Secret::new);
        let proof = a.prove(&[b"ab", b"c"]);
        assert!(is_proved(&proof, &a.prove(&[b"ab", b"c"])));
        assert!(!is_proved(&proof, &b.prove(&[b"ab", b"c"])));
        assert!(!is_proved(&proof, &a.prove(&[b"a", b"bc"])));
        assert!(!is_proved(&proof, &proof[..31]));
    }

    #[test]
    fn a_secret_is_long_enough_and_is_not_printed() {
        let checked = |text: &str| Secret::new(text).check();
        assert!(matches!(checked(" fifteen chars..  \n"), Err(SecretError::Short { bytes: 15 })));
        assert!(matches!(checked(&"x".repeat(MOST + 1)), Err(SecretError::Long { .. })));
        let secret = Secret::new("sixteen letters.\n");
        assert!(secret.check().is_ok());
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(secret, Secret::new("sixteen letters."));
    }

    #[test]
    fn nonces_differ() {
        let all: std::collections::HashSet<Nonce> = (0..64).map(|_| nonce()).collect();
        assert_eq!(all.len(), 64);
    }
}
