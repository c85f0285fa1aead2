//! `tokenizer.model` files with many settings and kinds of tokens, compared with SentencePiece
//! (`golden/unigram_and_bpe.py`), also after they are written as GGUF.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use akunu_tokenizer::{
    EncodeOptions, NativeTokenizer, StreamDecoder, Tokenizer, TokenizerError, Vocabulary, from_gguf,
    gguf_vocabulary,
};

type Ids = Vec<u32>;

#[derive(serde::Deserialize)]
struct Golden {
    name: String,
    model: String,
    encoded: Vec<(String, Ids)>,
    decoded: Vec<(Ids, String)>,
}

impl Golden {
    fn all() -> Vec<Golden> {
        serde_json::from_str(include_str!("../golden/unigram_and_bpe.json")).unwrap()
    }

    fn model(&self) -> Vec<u8> {
        (0..self.model.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&self.model[at..at + 2], 16).unwrap())
            .collect()
    }

    /// Differences of `tokenizer`.
    fn differences(&self, tokenizer: &NativeTokenizer, in_gguf: bool) -> Vec<String> {
        let plain = EncodeOptions::default();
        let mut wrong = Vec::new();
        for (text, ids) in &self.encoded {
            let found = tokenizer.encode(text, plain).unwrap();
            if found != *ids {
                wrong.push(format!("{}: {text:?} is {found:?}, not {ids:?}", self.name));
            }
        }
        let unknown = tokenizer.special().unknown.unwrap();
        for (ids, text) in &self.decoded {
            // GGUF files do not state the text of the unknown token.
            if in_gguf && ids.contains(&unknown) {
                continue;
            }
            let (found, streamed) = (tokenizer.decode(ids), streamed(tokenizer, ids));
            if found != *text || streamed != *text {
                wrong.push(format!("{}: {ids:?} is {found:?} and {streamed:?}, not {text:?}", self.name));
            }
        }
        wrong
    }
}

fn streamed(tokenizer: &NativeTokenizer, ids: &[u32]) -> String {
    let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
    ids.iter().for_each(|&id| decoder.push(tokenizer, id, &mut out));
    decoder.finish(&mut out);
    out
}

#[test]
fn texts_and_ids_are_those_of_sentencepiece() {
    let goldens = Golden::all();
    assert_eq!(goldens.len(), 18);
    let mut wrong = Vec::new();
    for golden in goldens {
        let vocabulary = Vocabulary::from_sentencepiece(&golden.model()).unwrap();
        let tokenizer = NativeTokenizer::new(vocabulary).unwrap();
        wrong.extend(golden.differences(&tokenizer, false));
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn models_that_gguf_can_represent_have_the_same_ids_in_it() {
    let folder = std::env::temp_dir().join(format!("akunu-unigram-and-bpe-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path: PathBuf = folder.join("tokenizer.model");
    let mut refused = Vec::new();
    for golden in Golden::all() {
        std::fs::write(&path, golden.model()).unwrap();
        match gguf_vocabulary(&folder, 400) {
            Ok(vocabulary) => {
                let tokenizer = from_gguf(&vocabulary.metadata).unwrap();
                let wrong = golden.differences(&tokenizer, true);
                assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            }
            Err(TokenizerError::NoGguf { .. }) => refused.push(golden.name),
            Err(error) => panic!("{}: {error}", golden.name),
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    // Readers of GGUF match user-defined tokens first, and add a space after them if they add one before a text; BPE in
    // GGUF has no normalization. All of these remove extra spaces or have user-defined tokens.
    let expected = [
        "unigram like Gemma",
        "unigram with user-defined tokens",
        "unigram with user-defined tokens that keeps spaces",
        "unigram with unused tokens",
        "bpe that removes spaces",
        "bpe with user-defined tokens",
        "bpe with user-defined tokens that keeps spaces",
        "bpe without a prefix",
        "bpe with control tokens",
        "bpe with unused tokens",
    ];
    assert_eq!(refused, expected);
}
