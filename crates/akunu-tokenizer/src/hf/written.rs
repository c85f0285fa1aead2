//! Writes the vocabulary of a GGUF file as `tokenizer.json`, for programs that read only that.

use akunu_format::Metadata;
use serde_json::{Map, Value as Json, json};

use crate::gguf::agree;
use crate::{
    HfTokenizer, Model, NativeTokenizer, Sidecar, TokenKind, TokenizerError, Vocabulary, pretokenizer,
};

/// The `tokenizer.json` of a GGUF file with a byte-level vocabulary, if reading it back gives the same ids. It does not
/// state which tokens stand around a text.
pub fn tokenizer_json(metadata: &Metadata) -> Result<Vec<u8>, TokenizerError> {
    let vocabulary = Vocabulary::from_gguf(metadata)?;
    let json = write(&vocabulary)?.to_string().into_bytes();
    let read_back = HfTokenizer::from_bytes(&json, &Sidecar::default())?;
    let checks = agree::Checks { composed: false, shown: true, around: false, pairs: false };
    agree::check(&NativeTokenizer::new(vocabulary)?, &read_back, checks).map_err(refused)?;
    Ok(json)
}

fn refused(what: impl Into<String>) -> TokenizerError {
    TokenizerError::NoJson { what: what.into() }
}

fn write(vocabulary: &Vocabulary) -> Result<Json, TokenizerError> {
    if vocabulary.model != Model::ByteLevel {
        return Err(refused("only byte-level vocabularies can be, and it is of another kind"));
    }
    let expressions = pretokenizer::expressions(&vocabulary.pre)
        .ok_or_else(|| refused(format!("the pre-tokenizer `{}` has no known expressions", vocabulary.pre)))?;
    let mut ids = Map::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        if ids.insert(token.into(), id.into()).is_some() {
            return Err(refused(format!("two tokens have the text of token {id}")));
        }
    }
    let kind = |id: usize| vocabulary.kinds.get(id).copied().unwrap_or(TokenKind::Normal);
    let added = vocabulary.tokens.iter().enumerate().filter_map(|(id, token)| {
        let special = match kind(id) {
            TokenKind::Control => true,
            TokenKind::UserDefined => false,
            _ => return None,
        };
        Some(json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        }))
    });
    let split = |regex: &str| {
        let pattern = json!({ "Regex": regex });
        json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false })
    };
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let steps: Vec<Json> = expressions.into_iter().map(split).chain([bytes]).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": vocabulary.composed.then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": vocabulary.ignore_merges,
            "vocab": ids,
            "merges": vocabulary.merges.iter().collect::<Vec<_>>(),
        },
    }))
}
