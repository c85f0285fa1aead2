//! The tokenizers of this crate behind one type, with everything that all models share.

use akunu_format::Strings;

use crate::bytelevel::ByteLevel;
use crate::bytes::{append_bytes, byte_of_hex};
use crate::eog::{self, Candidate};
use crate::hash::Pieces;
use crate::hf::{compose, is_composed};
use crate::pretokenizer::PreTokenizer;
use crate::scratch::{Pool, Scratch};
use crate::sentencepiece::{SPACE_MARK, SentencePiece};
use crate::special::{Fragment, SpecialTexts};
use crate::template::Template;
use crate::wordpiece::WordPiece;
use crate::{
    EncodeOptions, MAX_TEXT, Model, SpecialTokens, TokenKind, Tokenizer, TokenizerError, Vocabulary,
};

/// Maximum size of a token's text in bytes.
const MAX_TOKEN: usize = 1 << 14;

/// Tokens of more than `LONG` bytes, of which there may be `MAX_LONG`. Published vocabularies have hardly any.
const LONG: usize = 256;
const MAX_LONG: usize = 64;

/// A tokenizer made from a [`Vocabulary`].
#[derive(Debug)]
pub struct NativeTokenizer {
    model: Encoder,
    texts: Strings,
    kinds: Vec<TokenKind>,
    /// The bytes that each token adds to a text.
    pieces: Pieces,
    special_texts: SpecialTexts,
    marks_are_spaces: bool,
    special: SpecialTokens,
    template: Template,
    end_of_generation: Vec<u32>,
    add_space_prefix: bool,
    /// See [`Tokenizer::skips_leading_spaces`].
    skip_leading_spaces: bool,
    composed: bool,
    notes: Vec<String>,
    scratch: Pool,
}

#[derive(Debug)]
enum Encoder {
    SentencePiece(Box<SentencePiece>),
    ByteLevel(Box<ByteLevel>),
    WordPiece(WordPiece),
}

impl NativeTokenizer {
    pub fn new(mut vocabulary: Vocabulary) -> Result<NativeTokenizer, TokenizerError> {
        check(&vocabulary)?;
        let mut kinds = vocabulary.kinds.clone();
        kinds.resize(vocabulary.tokens.len(), TokenKind::Normal);
        mark_control_tokens(&vocabulary, &mut kinds);
        let pieces = pieces(&vocabulary, &kinds);
        let unknown = vocabulary.special.unknown;
        vocabulary.special.unknown = unknown.filter(|&id| !has_another_role(&vocabulary, id));
        let model = match vocabulary.model {
            Model::SentencePiece | Model::Unigram => {
                Encoder::SentencePiece(Box::new(SentencePiece::new(&vocabulary, &kinds, &pieces)?))
            }
            Model::ByteLevel => {
                let pre = PreTokenizer::named(&vocabulary.pre)?;
                Encoder::ByteLevel(Box::new(ByteLevel::new(&vocabulary, pre, &kinds, &pieces)?))
            }
            Model::WordPiece => Encoder::WordPiece(WordPiece::new(&vocabulary, &kinds, &pieces)),
        };
        let with_ids = || (0u32..).zip(vocabulary.tokens.iter()).zip(&kinds);
        let candidates: Vec<Candidate<'_>> = with_ids()
            .filter(|((_, text), kind)| is_special(**kind) && eog::is_end_text(text))
            .map(|((id, text), _)| Candidate { id, text })
            .collect();
        let (end_of_generation, eot) = eog::collect(&vocabulary.special, &candidates);
        Ok(NativeTokenizer {
            model,
            pieces,
            special_texts: special_texts(&vocabulary, &kinds),
            marks_are_spaces: marks_are_spaces(&vocabulary, &kinds),
            special: SpecialTokens { eot, unknown, ..vocabulary.special },
            template: Template::from_flags(&vocabulary.special, vocabulary.model),
            end_of_generation,
            skip_leading_spaces: vocabulary.remove_extra_spaces,
            composed: vocabulary.composed,
            notes: vocabulary.notes,
            add_space_prefix: vocabulary.add_space_prefix,
            texts: vocabulary.tokens,
            kinds,
            scratch: Pool::default(),
        })
    }

    fn encode_fragments(
        &self,
        text: &str,
        options: EncodeOptions,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if options.add_special {
            ids.extend(self.template.before());
        }
        let spaced = Some(text).filter(|text| self.marks_are_spaces && text.contains(SPACE_MARK));
        let spaced = spaced.map(|text| text.replace(SPACE_MARK, " "));
        let text = spaced.as_deref().unwrap_or(text);
        // A space is added to the first word of a text, and to the first word after a special token.
        let mut add_space = self.add_space_prefix;
        self.special_texts.split(text, options.parse_special, |fragment| match fragment {
            Fragment::Token(id) => {
                ids.push(id);
                add_space = self.add_space_prefix;
                Ok(())
            }
            Fragment::Text(text) => {
                let space = std::mem::take(&mut add_space);
                match &self.model {
                    Encoder::SentencePiece(model) => model.encode(text, space, &self.pieces, scratch, ids),
                    Encoder::ByteLevel(model) if self.composed && !is_composed(text) => {
                        model.encode(&compose(text), &self.pieces, scratch, ids)
                    }
                    Encoder::ByteLevel(model) => model.encode(text, &self.pieces, scratch, ids),
                    Encoder::WordPiece(model) => model.encode(text, &self.pieces, scratch, ids),
                }
            }
        })?;
        if options.add_special {
            ids.extend(self.template.after());
        }
        Ok(())
    }
}

impl Tokenizer for NativeTokenizer {
    fn encode_into(
        &self,
        text: &str,
        options: EncodeOptions,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if text.len() > MAX_TEXT {
            return Err(TokenizerError::TextTooLong { len: text.len(), max: MAX_TEXT });
        }
        let before = ids.len();
        let result = self.scratch.with(|scratch| self.encode_fragments(text, options, scratch, ids));
        if result.is_err() {
            ids.truncate(before);
        }
        result
    }

    fn template(&self) -> &Template {
        &self.template
    }

    fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    fn token_text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize)
    }

    fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    fn find_token(&self, text: &str) -> Option<u32> {
        (0u32..).zip(self.texts.iter()).find(|(_, token)| *token == text).map(|(id, _)| id)
    }

    fn special(&self) -> &SpecialTokens {
        &self.special
    }

    fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    fn describe(&self) -> String {
        match &self.model {
            Encoder::SentencePiece(model) => model.describe().into(),
            Encoder::ByteLevel(_) => "byte-level BPE".into(),
            Encoder::WordPiece(_) => "WordPiece".into(),
        }
    }

    fn has_space_prefix(&self) -> bool {
        // WordPiece begins every word with a space, including the first.
        self.add_space_prefix || matches!(self.model, Encoder::WordPiece(_))
    }

    fn first_bytes(&self, id: u32) -> Option<&[u8]> {
        let bytes = self.pieces.get(id)?;
        // The text of an unknown token and a byte are not what encoding adds.
        let kept = matches!(self.kinds[id as usize], TokenKind::Byte | TokenKind::Unknown);
        let removed = (self.has_space_prefix() || self.skip_leading_spaces) && !kept;
        Some(if removed { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes })
    }

    fn skips_leading_spaces(&self) -> bool {
        self.skip_leading_spaces
    }

    fn replaces_each_byte(&self) -> bool {
        matches!(self.model, Encoder::SentencePiece(_))
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Whether text without a token must not become this token, because it also begins, ends or separates texts.
fn has_another_role(vocabulary: &Vocabulary, unknown: u32) -> bool {
    let special = &vocabulary.special;
    [special.bos, special.eos, special.eot, special.separator].contains(&Some(unknown))
        || vocabulary.tokens.get(unknown as usize).is_some_and(eog::is_end_text)
}

/// The tokens that are matched before the model sees a text.
fn special_texts(vocabulary: &Vocabulary, kinds: &[TokenKind]) -> SpecialTexts {
    let mut special = SpecialTexts::new();
    let marks_are_spaces = marks_are_spaces(vocabulary, kinds);
    for ((id, text), &kind) in (0u32..).zip(vocabulary.tokens.iter()).zip(kinds) {
        if kind == TokenKind::UserDefined && !vocabulary.splits_at_user_defined {
            continue;
        }
        let strip = vocabulary.strip_after_special && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
        match marks_are_spaces {
            true => special.insert(id, &text.replace(SPACE_MARK, " "), kind, strip),
            false => special.insert(id, text, kind, strip),
        }
    }
    special
}

/// Whether tokens are matched in a text whose space marks are spaces, as for SentencePiece, because some of them contain
/// spaces.
fn marks_are_spaces(vocabulary: &Vocabulary, kinds: &[TokenKind]) -> bool {
    let mut texts = vocabulary.tokens.iter().zip(kinds);
    is_sentence_piece(vocabulary.model)
        && vocabulary.splits_at_user_defined
        && texts.any(|(text, kind)| *kind == TokenKind::UserDefined && text.contains([' ', SPACE_MARK]))
}

fn is_sentence_piece(model: Model) -> bool {
    matches!(model, Model::SentencePiece | Model::Unigram)
}

/// Rejects tokens that are too long, and too many long ones. Each position of a text is compared with the tokens that
/// begin there. A trie branches at most once for each byte of a short token and once for each long token, so both limit
/// the time per byte of text.
pub(crate) fn limit_lengths(tokens: &Strings) -> Result<(), TokenizerError> {
    if let Some((id, text)) = tokens.iter().enumerate().find(|(_, text)| text.len() > MAX_TOKEN) {
        return Err(TokenizerError::TokenTooLong { id, len: text.len(), max: MAX_TOKEN });
    }
    let count = tokens.iter().filter(|text| text.len() > LONG).count();
    if count > MAX_LONG {
        let problem = format!("{count} tokens have more than {LONG} bytes (more than {MAX_LONG})");
        return Err(TokenizerError::TokenList { problem });
    }
    Ok(())
}

fn is_special(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined)
}

/// Checks lengths and ids; the models check what they need themselves.
fn check(vocabulary: &Vocabulary) -> Result<(), TokenizerError> {
    let tokens = vocabulary.tokens.len();
    if tokens == 0 {
        return Err(TokenizerError::Empty);
    }
    limit_lengths(&vocabulary.tokens)?;
    let lengths = [
        ("tokenizer.ggml.scores", vocabulary.scores.len()),
        ("tokenizer.ggml.token_type", vocabulary.kinds.len()),
    ];
    for (key, found) in lengths {
        if found != 0 && found != tokens {
            return Err(TokenizerError::WrongLength { key, found, tokens });
        }
    }
    // The last id and the one below mean "none" in the lookup tables.
    if tokens >= u32::MAX as usize {
        return Err(TokenizerError::WrongLength { key: "tokenizer.ggml.tokens", found: tokens, tokens });
    }
    let special = &vocabulary.special;
    let ids = [
        ("tokenizer.ggml.bos_token_id", special.bos, special.add_bos),
        ("tokenizer.ggml.eos_token_id", special.eos, special.add_eos),
        ("tokenizer.ggml.seperator_token_id", special.separator, special.add_separator),
        ("tokenizer.ggml.eot_token_id", special.eot, false),
        ("tokenizer.ggml.unknown_token_id", special.unknown, false),
        ("tokenizer.ggml.padding_token_id", special.padding, false),
        ("tokenizer.ggml.mask_token_id", special.mask, false),
    ];
    for (key, id, needed) in ids {
        match id {
            Some(id) if id as usize >= tokens => {
                return Err(TokenizerError::IdOutOfRange { key, id: id.into(), tokens });
            }
            None if needed => return Err(TokenizerError::MissingSpecial { key }),
            _ => {}
        }
    }
    Ok(())
}

/// Some files mark `<|im_end|>` and similar tokens as normal. If merges produce such a token, it stays text; if it is a
/// well-known end-of-generation token that cannot be produced otherwise, it becomes a control token.
fn mark_control_tokens(vocabulary: &Vocabulary, kinds: &mut [TokenKind]) {
    let suspects: Vec<(usize, &str)> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|&(id, text)| kinds[id] == TokenKind::Normal && eog::is_end_text(text))
        .collect();
    let mut texts: Vec<&str> = suspects.iter().map(|suspect| suspect.1).collect();
    texts.sort_unstable();
    texts.dedup();
    if texts.is_empty() {
        return;
    }
    for merge in vocabulary.merges.iter() {
        if let Some((left, right)) = merge.split_once(' ') {
            texts.retain(|text| text.strip_prefix(left) != Some(right));
        }
    }
    for (id, text) in suspects {
        if texts.contains(&text) {
            kinds[id] = TokenKind::Control;
        }
    }
}

/// The bytes that each token adds to a text.
fn pieces(vocabulary: &Vocabulary, kinds: &[TokenKind]) -> Pieces {
    let mut pieces = Pieces::default();
    let spaced = is_sentence_piece(vocabulary.model);
    for (text, kind) in vocabulary.tokens.iter().zip(kinds) {
        pieces.push_with(|out| match kind {
            TokenKind::Control => {}
            TokenKind::Unknown => out.extend_from_slice(vocabulary.unknown_surface.as_bytes()),
            TokenKind::UserDefined if !spaced => out.extend_from_slice(text.as_bytes()),
            TokenKind::Byte => match byte_of_hex(text) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(text.as_bytes()),
            },
            TokenKind::Normal | TokenKind::Unused if vocabulary.model == Model::ByteLevel => {
                append_bytes(text, out);
            }
            TokenKind::Normal | TokenKind::Unused | TokenKind::UserDefined => {
                for (at, part) in text.split(SPACE_MARK).enumerate() {
                    if at > 0 {
                        out.push(b' ');
                    }
                    out.extend_from_slice(part.as_bytes());
                }
            }
        });
    }
    pieces
}
