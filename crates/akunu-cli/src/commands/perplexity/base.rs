//! Files of a base model's predictions, for `perplexity --kl`. Numbers are little-endian:
//!
//! ```text
//! magic            8 bytes "AKUNU-KL"
//! version          u32, 1
//! vocabulary       u32, size V
//! window, stride   u32, u32
//! tokens           u64, number N of tokens of the text
//! scored           u64, number of rows: the tokens that windows score
//! ids              u32 × N
//! row, per scored token in order:
//!   log_p          f64, ln p of the token
//!   top            u32, the most likely id (the lowest of equals)
//!   step           f32
//!   codes          u16 × V: ln p of an id is −code × step, plus a constant that makes the sum of p 1;
//!                  code 65535 is p = 0
//! ```
//!
//! A row has 16 + 2 V bytes. The step is 1/65534 of the distance between the largest and the smallest logit, so ln p of
//! an id is exact to half of that: about 0.0003 for logits from −20 to 20.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use akunu::{ScoredToken, Windows};

const MAGIC: [u8; 8] = *b"AKUNU-KL";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 8 + 4 * 4 + 2 * 8;
/// Of a row, before its codes.
const ROW_BYTES: u64 = 16;
const LARGEST: u16 = u16::MAX - 1;
const IMPOSSIBLE: u16 = u16::MAX;

/// The header of a file about these tokens, and their ids.
pub fn header(vocab: usize, windows: Windows, ids: &[u32]) -> Vec<u8> {
    let small = [VERSION, vocab as u32, windows.window as u32, windows.stride as u32];
    let large = [ids.len() as u64, windows.scored(ids.len()) as u64];
    let mut bytes = MAGIC.to_vec();
    bytes.extend(small.iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(large.iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    bytes
}

/// The row of a token, whose logits are finite or −∞.
pub fn row(token: &ScoredToken<'_>) -> Vec<u8> {
    let finite = || token.logits.iter().copied().filter(|logit| logit.is_finite());
    let (max, min) = (finite().fold(f32::MIN, f32::max), finite().fold(f32::MAX, f32::min));
    let max = f64::from(max);
    let step = ((max - f64::from(min)) / f64::from(LARGEST)) as f32;
    let code = |logit: f32| match logit {
        f32::NEG_INFINITY => IMPOSSIBLE,
        _ if step == 0.0 => 0,
        // The conversion saturates.
        _ => (((max - f64::from(logit)) / f64::from(step)).round() as u16).min(LARGEST),
    };
    let mut bytes = token.log_p.to_le_bytes().to_vec();
    bytes.extend((top(token.logits) as u32).to_le_bytes());
    bytes.extend(step.to_le_bytes());
    bytes.extend(token.logits.iter().flat_map(|&logit| code(logit).to_le_bytes()));
    bytes
}

/// The place of the largest logit, the first of equals.
pub fn top(logits: &[f32]) -> usize {
    let largest = logits.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1));
    largest.map_or(0, |(at, _)| at)
}

/// Why a file cannot be used as the base.
#[derive(Debug)]
pub enum BaseError {
    Io(io::Error),
    /// It is a file of another kind, with these first bytes.
    Kind(Vec<u8>),
    Version(u32),
    Damaged(&'static str),
    Truncated {
        bytes: u64,
        expected: u64,
    },
    Vocabulary {
        base: u32,
        model: usize,
    },
    /// The texts differ from this token on, counted from 1.
    Text {
        token: usize,
    },
    TextLength {
        base: u64,
        given: usize,
    },
    Windows {
        base: Windows,
        given: Windows,
    },
}

impl fmt::Display for BaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BaseError::Io(error) => write!(f, "it cannot be read: {error}"),
            BaseError::Kind(bytes) => {
                write!(f, "it is not a file of --save-logits: it begins with “{}”", bytes.escape_ascii())
            }
            BaseError::Version(version) => {
                write!(f, "its version is {version}, but this program reads version {VERSION}")
            }
            BaseError::Damaged(problem) => write!(f, "it is damaged: {problem}"),
            BaseError::Truncated { bytes, expected } => {
                write!(f, "it is cut short: it has {bytes} of {expected} bytes")
            }
            BaseError::Vocabulary { base, model } => {
                write!(f, "its model has a vocabulary of {base} ids, but this model of {model}")
            }
            BaseError::Text { token } => {
                write!(f, "it was made from another text: token {token} is a different one")
            }
            BaseError::TextLength { base, given } => {
                write!(f, "it was made from another text: that has {base} tokens, and this one {given}")
            }
            BaseError::Windows { base, given } => write!(
                f,
                "it was made with windows of {} tokens and stride {}, not {} and {}",
                base.window, base.stride, given.window, given.stride
            ),
        }
    }
}

impl BaseError {
    pub fn hint(&self) -> &'static str {
        match self {
            BaseError::Windows { .. } => "leave out -c and --stride to take those of the base",
            BaseError::Vocabulary { .. } => "both models must have the same vocabulary",
            _ => "akunu perplexity BASE_MODEL FILE --save-logits BASE writes it, from the same text",
        }
    }
}

impl From<io::Error> for BaseError {
    fn from(error: io::Error) -> BaseError {
        BaseError::Io(error)
    }
}

/// What the base model predicted for a token.
#[derive(Debug)]
pub struct Prediction<'a> {
    pub log_p: f64,
    pub top: usize,
    step: f64,
    codes: &'a [u8],
}

impl Prediction<'_> {
    /// ln p of each id, without the constant; −∞ for p = 0.
    fn relative(&self) -> impl Iterator<Item = f64> {
        let codes = self.codes.as_chunks().0.iter().map(|code| u16::from_le_bytes(*code));
        codes.map(|code| if code == IMPOSSIBLE { f64::NEG_INFINITY } else { -f64::from(code) * self.step })
    }

    /// The Kullback–Leibler divergence of the distribution of these logits from the base's, in nats: Σ p (ln p − ln q).
    pub fn divergence(&self, logits: &[f32]) -> f64 {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let others = max + logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum::<f64>().ln();
        let (mut sum, mut weighted) = (0.0, 0.0);
        for (relative, &logit) in self.relative().zip(logits) {
            let weight = relative.exp();
            if weight > 0.0 {
                sum += weight;
                weighted += weight * (relative - (f64::from(logit) - others));
            }
        }
        // The rounding of sums could make it negative.
        (weighted / sum - sum.ln()).max(0.0)
    }
}

/// A file that is read row by row.
#[derive(Debug)]
pub struct Base {
    reader: BufReader<File>,
    pub windows: Windows,
    vocab: usize,
    row: Vec<u8>,
}

impl Base {
    /// Opens a file made with the same vocabulary from the same text.
    pub fn open(path: &Path, vocab: usize, ids: &[u32]) -> Result<Base, BaseError> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut reader = BufReader::new(file);
        let mut magic = Vec::new();
        reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if magic != MAGIC {
            return Err(BaseError::Kind(magic));
        }
        if bytes < HEADER_BYTES {
            return Err(BaseError::Truncated { bytes, expected: HEADER_BYTES });
        }
        let [version, base, window, stride] = [(); 4].map(|()| number(&mut reader).map(u32::from_le_bytes));
        let [tokens, scored] = [(); 2].map(|()| number(&mut reader).map(u64::from_le_bytes));
        let (version, base, tokens, scored) = (version?, base?, tokens?, scored?);
        if version != VERSION {
            return Err(BaseError::Version(version));
        }
        let windows = Windows { window: window? as usize, stride: stride? as usize };
        let row_bytes = ROW_BYTES + 2 * u64::from(base);
        let ids_bytes = tokens.checked_mul(4).and_then(|ids| ids.checked_add(HEADER_BYTES));
        let all = scored.checked_mul(row_bytes).and_then(|rows| rows.checked_add(ids_bytes?));
        let expected = all.ok_or(BaseError::Damaged("its sizes are too large"))?;
        if bytes < expected {
            return Err(BaseError::Truncated { bytes, expected });
        }
        if bytes > expected {
            return Err(BaseError::Damaged("more follows its last row"));
        }
        if base as usize != vocab {
            return Err(BaseError::Vocabulary { base, model: vocab });
        }
        if tokens != ids.len() as u64 {
            return Err(BaseError::TextLength { base: tokens, given: ids.len() });
        }
        for (at, &id) in ids.iter().enumerate() {
            if u32::from_le_bytes(number(&mut reader)?) != id {
                return Err(BaseError::Text { token: at + 1 });
            }
        }
        let is_possible = windows.window >= 2 && (1..=windows.window).contains(&windows.stride);
        if !is_possible || windows.scored(ids.len()) as u64 != scored {
            return Err(BaseError::Damaged("its windows do not have as many tokens as it has rows"));
        }
        Ok(Base { reader, windows, vocab, row: vec![0; row_bytes as usize] })
    }

    /// The next row.
    pub fn next(&mut self) -> Result<Prediction<'_>, BaseError> {
        self.reader.read_exact(&mut self.row).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => BaseError::Damaged("it ended while it was read"),
            _ => BaseError::Io(error),
        })?;
        let (fields, codes) = self.row.split_at(ROW_BYTES as usize);
        let mut fields = fields;
        let log_p = f64::from_le_bytes(number(&mut fields)?);
        let top = u32::from_le_bytes(number(&mut fields)?) as usize;
        let step = f64::from(f32::from_le_bytes(number(&mut fields)?));
        let is_sound = log_p <= 0.0 && top < self.vocab && step.is_finite() && step >= 0.0;
        if !is_sound || codes.iter().all(|&byte| byte == 0xff) {
            return Err(BaseError::Damaged("a row is not one of predictions"));
        }
        Ok(Prediction { log_p, top, step, codes })
    }
}

fn number<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { window: 4, stride: 4 };

    fn log_softmax(logits: &[f32]) -> Vec<f64> {
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        logits.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
    }

    fn token<'a>(id: u32, logits: &'a [f32]) -> ScoredToken<'a> {
        ScoredToken { id, log_p: log_softmax(logits)[id as usize], logits }
    }

    /// A file of three tokens, two of which are scored.
    fn file() -> (Vec<u8>, [Vec<f32>; 2]) {
        let logits = [vec![0.5, -3.0, 2.0, 2.0], vec![f32::NEG_INFINITY, 1.0, 1.0, 1.0]];
        let mut bytes = header(4, WINDOWS, &[0, 2, 1]);
        bytes.extend(row(&token(2, &logits[0])));
        bytes.extend(row(&token(1, &logits[1])));
        (bytes, logits)
    }

    fn open(bytes: &[u8], vocab: usize, ids: &[u32]) -> Result<Base, BaseError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        std::fs::write(&path, bytes).unwrap();
        Base::open(&path, vocab, ids)
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let (bytes, logits) = file();
        let mut base = open(&bytes, 4, &[0, 2, 1]).unwrap();
        assert_eq!(base.windows, WINDOWS);
        let other = [0.3f32, -1.0, 0.0, 4.0];
        for (logits, (id, top)) in logits.iter().zip([(2, 2), (1, 1)]) {
            let (p, q) = (log_softmax(logits), log_softmax(&other));
            let row = base.next().unwrap();
            assert_eq!((row.log_p, row.top), (p[id], top));
            assert!(row.divergence(logits) < 1e-9);
            let terms = p.iter().zip(&q).filter(|(p, _)| p.is_finite()).map(|(p, q)| p.exp() * (p - q));
            let expected: f64 = terms.sum();
            assert!((row.divergence(&other) - expected).abs() < 1e-4 * expected, "{expected}");
        }
        assert!(matches!(base.next(), Err(BaseError::Damaged(_))));
    }

    #[test]
    fn a_possible_token_that_the_model_excludes_diverges_infinitely() {
        let (bytes, _) = file();
        let mut base = open(&bytes, 4, &[0, 2, 1]).unwrap();
        assert_eq!(base.next().unwrap().divergence(&[f32::NEG_INFINITY, 0.0, 0.0, 0.0]), f64::INFINITY);
        assert!(base.next().unwrap().divergence(&[f32::NEG_INFINITY, 0.0, 0.0, 0.0]) < 1e-9);
    }

    #[test]
    fn other_files_are_refused_by_kind() {
        let (bytes, _) = file();
        let ids = [0, 2, 1];
        let refused = |bytes: &[u8]| open(bytes, 4, &ids).unwrap_err();
        for length in 8..bytes.len() {
            assert!(matches!(refused(&bytes[..length]), BaseError::Truncated { .. }), "{length}");
        }
        for length in 0..8 {
            assert!(matches!(refused(&bytes[..length]), BaseError::Kind(_)), "{length}");
        }
        let changed = |at: usize, byte: u8| {
            let mut changed = bytes.clone();
            changed[at] = byte;
            changed
        };
        assert!(matches!(refused(&changed(8, 2)), BaseError::Version(2)));
        assert!(matches!(refused(&changed(16, 1)), BaseError::Damaged(_)));
        assert!(matches!(refused(&[&bytes[..], &[0]].concat()), BaseError::Damaged(_)));
        // Counts whose product overflows.
        assert!(matches!(refused(&changed(39, 0xff)), BaseError::Damaged(_)));
        assert!(matches!(open(&bytes, 5, &ids), Err(BaseError::Vocabulary { base: 4, model: 5 })));
        assert!(matches!(open(&bytes, 4, &[0, 2, 3]), Err(BaseError::Text { token: 3 })));
        assert!(matches!(open(&bytes, 4, &[0, 2]), Err(BaseError::TextLength { base: 3, given: 2 })));
        let rows = HEADER_BYTES as usize + 12;
        let mut of_bad_row = open(&changed(rows + 8, 4), 4, &ids).unwrap();
        assert!(matches!(of_bad_row.next(), Err(BaseError::Damaged(_))));
    }
}
