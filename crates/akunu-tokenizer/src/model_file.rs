//! `tokenizer.model`: a SentencePiece vocabulary, as a protocol buffer.

use akunu_format::Strings;

use crate::files;
use crate::hf::Sidecar;
use crate::protobuf::{Field, Fields};
use crate::{Model, NativeTokenizer, SpecialTokens, TokenKind, TokenizerError, Vocabulary};

const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

/// The tokenizer of a `tokenizer.model`. Settings of begin- and end-of-text tokens are read from
/// `tokenizer_config.json` and similar files.
pub fn from_model_file(path: impl AsRef<std::path::Path>) -> Result<NativeTokenizer, TokenizerError> {
    NativeTokenizer::new(read(path.as_ref())?)
}

/// The vocabulary of a `tokenizer.model`, with the settings of the files beside it.
pub(crate) fn read(path: &std::path::Path) -> Result<Vocabulary, TokenizerError> {
    let bytes = files::read(path)?;
    let mut vocabulary = Vocabulary::from_sentencepiece(&bytes)?;
    let sidecar = Sidecar::beside(path)?;
    vocabulary.special.add_bos = sidecar.add_bos.unwrap_or(vocabulary.special.add_bos);
    vocabulary.special.add_eos = sidecar.add_eos.unwrap_or(vocabulary.special.add_eos);
    Ok(vocabulary)
}

impl Vocabulary {
    /// The vocabulary of a `tokenizer.model`.
    pub fn from_sentencepiece(bytes: &[u8]) -> Result<Vocabulary, TokenizerError> {
        let mut vocabulary = Vocabulary::new(Model::Unigram, "");
        let (mut texts, mut trainer, mut rules) =
            (Strings::new(), Trainer::default(), NormalizerSpec::default());
        let mut denormalizer = NormalizerSpec::default();
        for field in Fields::of(bytes) {
            match field.map_err(|_| damaged())? {
                (1, Field::Bytes(piece)) => {
                    let (text, score, kind) = piece_of(piece)?;
                    texts.push(&[text]);
                    vocabulary.scores.push(score);
                    vocabulary.kinds.push(kind);
                }
                (2, Field::Bytes(message)) => trainer.read(message)?,
                (3, Field::Bytes(message)) => rules.read(message)?,
                (5, Field::Bytes(message)) => denormalizer.read(message)?,
                _ => {}
            }
        }
        if texts.is_empty() {
            return Err(TokenizerError::NotSentencePiece { what: "it contains no tokens" });
        }
        vocabulary.tokens = texts;
        vocabulary.model = match trainer.model {
            UNIGRAM => Model::Unigram,
            BPE => Model::SentencePiece,
            3 => {
                return Err(TokenizerError::Unsupported { what: "SentencePiece's word model".into() });
            }
            _ => {
                return Err(TokenizerError::Unsupported { what: "SentencePiece's character model".into() });
            }
        };
        let unsupported = [
            (rules.has_table, "normalization rules in uncompiled form"),
            (trainer.suffix, "treat_whitespace_as_suffix"),
            (!rules.escape_spaces, "escape_whitespaces=false"),
            (!denormalizer.charsmap.is_empty(), "denormalization rules"),
        ];
        if let Some((_, what)) = unsupported.iter().find(|(found, _)| *found) {
            return Err(TokenizerError::Unsupported { what: format!("SentencePiece's {what}") });
        }
        vocabulary.special = trainer.special(&vocabulary);
        vocabulary.unknown_surface = trainer.unknown_surface;
        vocabulary.add_space_prefix = rules.add_space;
        vocabulary.remove_extra_spaces = rules.remove_extra_spaces;
        vocabulary.splits_at_user_defined = false;
        vocabulary.charsmap = rules.charsmap;
        Ok(vocabulary)
    }
}

fn damaged() -> TokenizerError {
    TokenizerError::NotSentencePiece { what: "it contains an invalid field, or is truncated" }
}

fn piece_of(message: &[u8]) -> Result<(&str, f32, TokenKind), TokenizerError> {
    let (mut text, mut score, mut kind) = ("", 0.0, TokenKind::Normal);
    for field in Fields::of(message) {
        match field.map_err(|_| damaged())? {
            (1, Field::Bytes(bytes)) => {
                let valid = std::str::from_utf8(bytes);
                text = valid
                    .map_err(|_| TokenizerError::NotSentencePiece { what: "a token in it is not UTF-8" })?;
            }
            (2, Field::Four(bytes)) => score = f32::from_le_bytes(bytes),
            (3, Field::Number(number)) => kind = TokenKind::from_gguf(number.into()),
            _ => {}
        }
    }
    Ok((text, score, kind))
}

/// The settings of the trainer, with the format's defaults.
struct Trainer {
    model: u64,
    suffix: bool,
    /// −1 if there is none.
    unknown: i64,
    bos: i64,
    eos: i64,
    padding: i64,
    unknown_surface: String,
}

impl Default for Trainer {
    fn default() -> Trainer {
        Trainer {
            model: UNIGRAM,
            suffix: false,
            unknown: 0,
            bos: 1,
            eos: 2,
            padding: -1,
            unknown_surface: " \u{2047} ".into(),
        }
    }
}

impl Trainer {
    fn read(&mut self, message: &[u8]) -> Result<(), TokenizerError> {
        for field in Fields::of(message) {
            match field.map_err(|_| damaged())? {
                (3, Field::Number(model)) => self.model = model,
                (24, Field::Number(suffix)) => self.suffix = suffix != 0,
                (40, Field::Number(id)) => self.unknown = id.cast_signed(),
                (41, Field::Number(id)) => self.bos = id.cast_signed(),
                (42, Field::Number(id)) => self.eos = id.cast_signed(),
                (43, Field::Number(id)) => self.padding = id.cast_signed(),
                (44, Field::Bytes(text)) => {
                    self.unknown_surface = String::from_utf8_lossy(text).into_owned();
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An id is used only if the token at it has the right kind: files contain default ids even for tokens that do not
    /// exist.
    fn special(&self, vocabulary: &Vocabulary) -> SpecialTokens {
        let id = |id: i64, kind: TokenKind| {
            let id = usize::try_from(id).ok()?;
            vocabulary.kinds.get(id).filter(|&&found| found == kind).map(|_| id as u32)
        };
        let bos = id(self.bos, TokenKind::Control);
        SpecialTokens {
            bos,
            eos: id(self.eos, TokenKind::Control),
            unknown: id(self.unknown, TokenKind::Unknown),
            padding: id(self.padding, TokenKind::Control),
            // LLaMA-like models add a begin-of-text token; T5, which has none, adds an end-of-text token.
            add_bos: bos.is_some() && vocabulary.model == Model::SentencePiece,
            ..SpecialTokens::default()
        }
    }
}

/// The normalization settings.
struct NormalizerSpec {
    charsmap: Vec<u8>,
    add_space: bool,
    remove_extra_spaces: bool,
    escape_spaces: bool,
    has_table: bool,
}

impl Default for NormalizerSpec {
    fn default() -> NormalizerSpec {
        NormalizerSpec {
            charsmap: Vec::new(),
            add_space: true,
            remove_extra_spaces: true,
            escape_spaces: true,
            has_table: false,
        }
    }
}

impl NormalizerSpec {
    fn read(&mut self, message: &[u8]) -> Result<(), TokenizerError> {
        for field in Fields::of(message) {
            match field.map_err(|_| damaged())? {
                (2, Field::Bytes(map)) => self.charsmap = map.to_vec(),
                (3, Field::Number(flag)) => self.add_space = flag != 0,
                (4, Field::Number(flag)) => self.remove_extra_spaces = flag != 0,
                (5, Field::Number(flag)) => self.escape_spaces = flag != 0,
                (6, Field::Bytes(table)) => self.has_table = !table.is_empty(),
                _ => {}
            }
        }
        self.has_table &= self.charsmap.is_empty();
        Ok(())
    }
}
