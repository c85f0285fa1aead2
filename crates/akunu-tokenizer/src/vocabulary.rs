//! A vocabulary as stated in files: plain data, validated when a tokenizer is made from it.

use akunu_format::{Array, Metadata, Strings, Value};

use crate::TokenizerError;
use crate::pretokenizer;

/// The tokenization algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// `llama`: SentencePiece's BPE: pieces are merged in the order of their scores.
    SentencePiece,
    /// `t5`: SentencePiece's Unigram: the tokens whose scores have the highest sum.
    Unigram,
    /// `gpt2`: byte-level BPE: the bytes of a word are merged in the order of a list of merges.
    ByteLevel,
    /// `bert`: WordPiece: the longest matching token, from left to right.
    WordPiece,
}

/// The kind of a token. The numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Normal = 1,
    /// The token for text that has no other token.
    Unknown = 2,
    /// Begins, ends or structures a text. Never part of user text.
    Control = 3,
    /// Text that is always one token, regardless of the model.
    UserDefined = 4,
    Unused = 5,
    /// One byte of a character that has no token of its own.
    Byte = 6,
}

impl TokenKind {
    pub(crate) fn from_gguf(kind: i128) -> TokenKind {
        match kind {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        }
    }
}

/// The special token ids, and which of them are added to a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begin of text (`[CLS]` in WordPiece vocabularies).
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    pub unknown: Option<u32>,
    pub separator: Option<u32>,
    pub padding: Option<u32>,
    pub mask: Option<u32>,
    /// Before the text, after it, and where the middle begins, in prompts to fill in a middle; as far as the
    /// file states them.
    pub infill: [Option<u32>; 3],
    pub add_bos: bool,
    pub add_eos: bool,
    /// Add the separator between two texts. In WordPiece vocabularies it also ends every text.
    pub add_separator: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Vocabulary {
    pub model: Model,
    /// The name of the pre-tokenizer, for byte-level BPE.
    pub pre: String,
    /// Token texts by id, as in the file: `▁the`, `Ġthe`, `<0x0A>`.
    pub tokens: Strings,
    /// One per token (SentencePiece), or empty.
    pub scores: Vec<f32>,
    /// One per token, or empty: then all are normal.
    pub kinds: Vec<TokenKind>,
    /// Pairs of token texts separated by a space, by rank (byte-level BPE).
    pub merges: Strings,
    pub special: SpecialTokens,
    /// Add a space before a text, so that its first word is tokenized as elsewhere (SentencePiece).
    pub add_space_prefix: bool,
    /// SentencePiece's `precompiled_charsmap` for normalization; empty if there is none.
    pub charsmap: Vec<u8>,
    /// The decoded text of the unknown token.
    pub unknown_surface: String,
    /// Remove leading and trailing spaces, and collapse repeated ones (SentencePiece).
    pub remove_extra_spaces: bool,
    /// User-defined tokens are matched before a text is normalized, and the text after one begins like a whole text, as
    /// in llama.cpp. Otherwise they are part of the model, as in SentencePiece itself.
    pub splits_at_user_defined: bool,
    /// A word that is a token is not split, whether merges produce it or not (byte-level BPE).
    pub ignore_merges: bool,
    /// Text is composed (NFC) first (byte-level BPE).
    pub composed: bool,
    /// Special tokens consume the whitespace after them, except for those that begin and end texts (Phi-3).
    pub strip_after_special: bool,
    /// What the file does not state, for the user.
    pub notes: Vec<String>,
    /// WordPiece: lower-case, and strip accents.
    pub lowercase: bool,
    pub strip_accents: bool,
}

impl Vocabulary {
    /// A vocabulary without tokens, with the default settings of `model` (and `pre`).
    pub fn new(model: Model, pre: &str) -> Vocabulary {
        let llama_like = model == Model::ByteLevel && pretokenizer::begins_with_bos(pre);
        Vocabulary {
            model,
            pre: pre.to_string(),
            tokens: Strings::new(),
            scores: Vec::new(),
            kinds: Vec::new(),
            merges: Strings::new(),
            special: SpecialTokens {
                add_bos: matches!(model, Model::SentencePiece | Model::WordPiece) || llama_like,
                add_eos: model == Model::Unigram,
                add_separator: model == Model::WordPiece,
                ..SpecialTokens::default()
            },
            add_space_prefix: matches!(model, Model::SentencePiece | Model::Unigram),
            charsmap: Vec::new(),
            unknown_surface: String::new(),
            remove_extra_spaces: false,
            splits_at_user_defined: true,
            ignore_merges: model == Model::ByteLevel && pretokenizer::ignores_merges(pre),
            composed: model == Model::ByteLevel && pretokenizer::composes(pre),
            strip_after_special: false,
            notes: Vec::new(),
            lowercase: model == Model::WordPiece,
            strip_accents: model == Model::WordPiece,
        }
    }

    /// The vocabulary of a GGUF file.
    pub fn from_gguf(metadata: &Metadata) -> Result<Vocabulary, TokenizerError> {
        const MODEL: &str = "tokenizer.ggml.model";
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const MERGES: &str = "tokenizer.ggml.merges";
        let name = metadata.str(MODEL)?.ok_or(TokenizerError::MissingKey { key: MODEL })?;
        let model = match name {
            "llama" => Model::SentencePiece,
            "t5" => Model::Unigram,
            "gpt2" => Model::ByteLevel,
            "bert" => Model::WordPiece,
            other => return Err(TokenizerError::UnknownModel { name: crate::error::printable(other) }),
        };
        // Old files have no such key, which means `default`.
        let pre = metadata.str("tokenizer.ggml.pre")?;
        let mut vocabulary = Vocabulary::new(model, pre.unwrap_or("default"));
        if pre.is_none() && model == Model::ByteLevel {
            vocabulary.notes.push(
                "the file does not name a pre-tokenizer (`tokenizer.ggml.pre`); `default` is used, so text may be split \
                 otherwise than in training. Files converted since May 2024 name it"
                    .to_string(),
            );
        }
        // As in the published `tokenizer.json`; GGUF files cannot state it.
        let architecture = metadata.get("general.architecture");
        vocabulary.strip_after_special =
            model == Model::SentencePiece && architecture == Some(&Value::String("phi3".into()));
        vocabulary.tokens =
            metadata.strings(TOKENS)?.ok_or(TokenizerError::MissingKey { key: TOKENS })?.clone();
        match metadata.strings(MERGES)? {
            Some(merges) => vocabulary.merges = merges.clone(),
            None if model == Model::ByteLevel => return Err(TokenizerError::MissingKey { key: MERGES }),
            None => {}
        }
        vocabulary.scores = scores(metadata)?;
        vocabulary.kinds = kinds(metadata)?;
        vocabulary.read_special(metadata)?;
        vocabulary.read_settings(metadata)?;
        Ok(vocabulary)
    }

    fn read_special(&mut self, metadata: &Metadata) -> Result<(), TokenizerError> {
        let tokens = self.tokens.len();
        let known = |id: u32| Some(id).filter(|&id| (id as usize) < tokens);
        let special = &mut self.special;
        // Defaults of each model.
        match self.model {
            Model::SentencePiece => {
                (special.unknown, special.bos, special.eos) = (known(0), known(1), known(2));
            }
            Model::WordPiece => {
                (special.padding, special.unknown, special.bos) = (known(0), known(100), known(101));
                (special.separator, special.mask) = (known(102), known(103));
            }
            Model::Unigram => (special.eos, special.unknown) = (known(1), known(2)),
            Model::ByteLevel => {}
        }
        if let Some(cls) = special_id(metadata, "tokenizer.ggml.cls_token_id", tokens)? {
            special.bos = cls;
        }
        let ids = [
            ("tokenizer.ggml.bos_token_id", &mut special.bos),
            ("tokenizer.ggml.eos_token_id", &mut special.eos),
            ("tokenizer.ggml.eot_token_id", &mut special.eot),
            ("tokenizer.ggml.unknown_token_id", &mut special.unknown),
            ("tokenizer.ggml.seperator_token_id", &mut special.separator), // as GGUF spells it
            ("tokenizer.ggml.padding_token_id", &mut special.padding),
            ("tokenizer.ggml.mask_token_id", &mut special.mask),
        ];
        for (key, id) in ids {
            if let Some(stated) = special_id(metadata, key, tokens)? {
                *id = stated;
            }
        }
        // By their earlier names, too. They are seldom used, so an invalid one does not make the file
        // unusable.
        for (id, keys) in special.infill.iter_mut().zip([
            ["tokenizer.ggml.prefix_token_id", "tokenizer.ggml.fim_pre_token_id"],
            ["tokenizer.ggml.suffix_token_id", "tokenizer.ggml.fim_suf_token_id"],
            ["tokenizer.ggml.middle_token_id", "tokenizer.ggml.fim_mid_token_id"],
        ]) {
            for key in keys {
                let stated = metadata.u32(key).ok().flatten().filter(|stated| (*stated as usize) < tokens);
                *id = stated.or(*id);
            }
        }
        // Default ids are used only if such tokens exist. Errors in explicit ids are reported later.
        let flags = [
            ("tokenizer.ggml.add_bos_token", &mut special.add_bos, special.bos),
            ("tokenizer.ggml.add_eos_token", &mut special.add_eos, special.eos),
            ("tokenizer.ggml.add_sep_token", &mut special.add_separator, special.separator),
        ];
        for (key, flag, id) in flags {
            *flag = metadata.bool(key)?.unwrap_or(*flag && id.is_some());
        }
        // A WordPiece file that states how texts end needs no second separator between two of them.
        let states = |key: &str| metadata.get(&format!("tokenizer.ggml.add_{key}_token")).is_some();
        if self.model == Model::WordPiece && special.add_eos && !states("sep") {
            special.add_separator = false;
        }
        Ok(())
    }

    fn read_settings(&mut self, metadata: &Metadata) -> Result<(), TokenizerError> {
        if let Some(prefix) = metadata.bool("tokenizer.ggml.add_space_prefix")? {
            self.add_space_prefix = prefix && matches!(self.model, Model::SentencePiece | Model::Unigram);
        }
        // Files of SentencePiece's BPE contain a table too, which must not be applied.
        if self.model == Model::Unigram {
            const MAP: &str = "tokenizer.ggml.precompiled_charsmap";
            self.charsmap = bytes(metadata, MAP)?;
            let extra = metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?;
            self.remove_extra_spaces = extra.unwrap_or(false);
        }
        if let Some(lowercase) = metadata.bool("tokenizer.ggml.normalizer.lowercase")? {
            (self.lowercase, self.strip_accents) = (lowercase, lowercase);
        }
        if let Some(strip) = metadata.bool("tokenizer.ggml.normalizer.strip_accents")? {
            self.strip_accents = strip;
        }
        Ok(())
    }
}

/// `Some(None)`: the file states that there is no such token, as converters do with −1.
fn special_id(
    metadata: &Metadata,
    key: &'static str,
    tokens: usize,
) -> Result<Option<Option<u32>>, TokenizerError> {
    match metadata.get(key).and_then(Value::to_i128) {
        Some(id) if id < 0 || id == u32::MAX as i128 => return Ok(Some(None)),
        _ => {}
    }
    match metadata.u32(key)? {
        Some(id) if id as usize >= tokens => Err(TokenizerError::IdOutOfRange { key, id: id.into(), tokens }),
        stated => Ok(stated.map(Some)),
    }
}

fn scores(metadata: &Metadata) -> Result<Vec<f32>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.scores";
    Ok(match metadata.get(KEY) {
        // Some converters write ranks instead.
        Some(Value::Array(Array::I32(ranks))) => ranks.iter().map(|&rank| rank as f32).collect(),
        _ => metadata.f32s(KEY)?.map(|scores| scores.to_vec()).unwrap_or_default(),
    })
}

/// An array of bytes, signed or unsigned.
fn bytes(metadata: &Metadata, key: &str) -> Result<Vec<u8>, TokenizerError> {
    Ok(match metadata.get(key) {
        Some(Value::Array(Array::U8(bytes))) => bytes.to_vec(),
        Some(Value::Array(Array::I8(bytes))) => bytes.iter().map(|&byte| byte as u8).collect(),
        None => Vec::new(),
        Some(_) => return Err(TokenizerError::Normalization { what: "is not an array of bytes" }),
    })
}

fn kinds(metadata: &Metadata) -> Result<Vec<TokenKind>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let kinds = metadata.i32s(KEY)?.map(|kinds| kinds.to_vec()).unwrap_or_default();
    Ok(kinds.into_iter().map(|kind| TokenKind::from_gguf(kind.into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, from_gguf};

    fn strings(texts: &[&str]) -> Value {
        Value::Array(Array::Strings(texts.iter().copied().collect()))
    }

    fn file(model: &str, tokens: &[&str]) -> Metadata {
        let mut metadata = Metadata::default();
        metadata.insert("tokenizer.ggml.model", Value::String(model.into()));
        metadata.insert("tokenizer.ggml.tokens", strings(tokens));
        metadata
    }

    fn error(metadata: &Metadata) -> String {
        from_gguf(metadata).unwrap_err().to_string()
    }

    #[test]
    fn a_minimal_file_gets_the_defaults_of_its_model() {
        let vocabulary = Vocabulary::from_gguf(&file("llama", &["<unk>", "<s>", "</s>", "▁a"])).unwrap();
        assert_eq!(vocabulary.pre, "default");
        let special = vocabulary.special;
        assert_eq!((special.unknown, special.bos, special.eos), (Some(0), Some(1), Some(2)));
        assert!(special.add_bos && !special.add_eos && vocabulary.add_space_prefix);

        // Too few tokens for the default ids: no tokens are added, and there is no error.
        let tokenizer = from_gguf(&file("llama", &["a"])).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.special().add_bos), (None, false));
    }

    #[test]
    fn missing_and_unknown_things_are_named() {
        assert!(error(&Metadata::default()).contains("tokenizer.ggml.model"));
        assert!(error(&file("rwkv", &["a"])).contains("`rwkv`"));
        assert!(error(&file("gpt2", &["a"])).contains("tokenizer.ggml.merges"));
        assert!(error(&file("llama", &[])).contains("no tokens"));
        let mut metadata = file("gpt2", &["a"]);
        metadata.insert("tokenizer.ggml.merges", strings(&[]));
        metadata.insert("tokenizer.ggml.pre", Value::String("newest".into()));
        assert!(error(&metadata).contains("`newest`"));
        metadata.insert("tokenizer.ggml.pre", Value::U32(3));
        assert!(error(&metadata).contains("tokenizer.ggml.pre"));
    }

    #[test]
    fn wrong_lengths_ids_and_merges_are_named() {
        let mut metadata = file("llama", &["a", "b", "c"]);
        metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; 2])));
        assert!(error(&metadata).contains("3 tokens, but `tokenizer.ggml.scores` has 2"));
        metadata.insert("tokenizer.ggml.scores", Value::Array(Array::I32(vec![0; 3])));
        metadata.insert("tokenizer.ggml.eos_token_id", Value::U32(3));
        assert!(error(&metadata).contains("`tokenizer.ggml.eos_token_id` is 3"));
        metadata.insert("tokenizer.ggml.eos_token_id", Value::I32(-1));
        assert_eq!(from_gguf(&metadata).unwrap().eos(), None);
        metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(true));
        assert!(error(&metadata).contains("asks for the token `tokenizer.ggml.eos_token_id`"));

        let mut metadata = file("gpt2", &["a", "b", "ab", "<s>", "<", "s>"]);
        let merges = |metadata: &mut Metadata, merge: &str| {
            metadata.insert("tokenizer.ggml.merges", strings(&["a b", merge]));
        };
        for (merge, message) in [
            ("ab a", "merge 1, `ab a`, contains `aba`"),
            ("a x", "contains `x`"),
            ("ab", "not two tokens"),
            ("", "not two tokens"),
        ] {
            merges(&mut metadata, merge);
            assert!(error(&metadata).contains(message), "{}", error(&metadata));
        }
        // A merge may spell a control token, but text does not become it.
        merges(&mut metadata, "< s>");
        metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 3, 1, 1])));
        assert!(from_gguf(&metadata).is_ok());
    }

    #[test]
    fn a_normal_end_of_turn_is_a_control_token_unless_merges_produce_it() {
        let mut metadata = file("gpt2", &["a", "<|im_end|>", "</", "s>", "</s>"]);
        metadata.insert("tokenizer.ggml.merges", strings(&["</ s>"]));
        let tokenizer = from_gguf(&metadata).unwrap();
        assert!(tokenizer.is_control(1) && !tokenizer.is_control(4));
        assert_eq!((tokenizer.end_of_generation(), tokenizer.special().eot), (&[1][..], Some(1)));
    }
}
