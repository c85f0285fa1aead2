//! Arbitrary bytes as a vocabulary (`tokenizer.model`, `tokenizer.json`, GGUF), and as a text for it and for a valid
//! vocabulary.
#![no_main]

use std::sync::LazyLock;

use akunu_tokenizer::{
    EncodeOptions, HfTokenizer, Model, NativeTokenizer, Sidecar, StreamDecoder, TokenKind, Tokenizer,
    Vocabulary,
};
use libfuzzer_sys::fuzz_target;

/// A vocabulary with a token for every byte, some words, and an end of turn.
static GOOD: LazyLock<NativeTokenizer> = LazyLock::new(|| {
    let mut vocabulary = Vocabulary::new(Model::Unigram, "");
    let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte));
    let words = ["▁", "▁the", "th", "e", "é", "▁▁"].map(|word| (word.to_string(), TokenKind::Normal));
    let control = ["<unk>", "</s>"].map(|text| (text.to_string(), TokenKind::Control));
    let tokens: Vec<(String, TokenKind)> = control.into_iter().chain(words).chain(bytes).collect();
    vocabulary.kinds = tokens.iter().map(|token| token.1).collect();
    vocabulary.scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    vocabulary.tokens = tokens.into_iter().map(|token| token.0).collect();
    (vocabulary.special.eos, vocabulary.add_space_prefix) = (Some(1), false);
    NativeTokenizer::new(vocabulary).expect("a good vocabulary")
});

fn round_trip(tokenizer: &dyn Tokenizer, text: &str) -> Option<String> {
    for (add_special, parse_special) in [(false, false), (true, true)] {
        let ids = tokenizer.encode(text, EncodeOptions { add_special, parse_special }).ok()?;
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        let (mut decoder, mut out) = (StreamDecoder::new(), String::new());
        ids.iter().for_each(|&id| decoder.push(tokenizer, id, &mut out));
        decoder.finish(&mut out);
        assert_eq!(out, tokenizer.decode(&ids));
        if !parse_special {
            // A file may mark the unknown token as a control token, of which text without a token still consists.
            let unknown = tokenizer.special().unknown.filter(|&id| !tokenizer.is_end_of_generation(id));
            let is_text =
                |id: u32| unknown == Some(id) || tokenizer.token_kind(id) != Some(TokenKind::Control);
            assert!(ids.iter().all(|&id| is_text(id)), "{ids:?}");
        }
    }
    Some(tokenizer.decode(&tokenizer.encode(text, EncodeOptions::default()).ok()?))
}

/// Bytes of an input that are also a text. Longer ones take most of the time, and reach no other code.
const TEXT: usize = 256;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(&data[..data.len().min(TEXT)]);
    let again = round_trip(&*GOOD, &text).expect("every byte is a token");
    assert_eq!(again, text.replace('▁', " "));

    if data.first() == Some(&b'{') {
        if let Ok(tokenizer) = HfTokenizer::from_bytes(data, &Sidecar::default()) {
            let _ =
                tokenizer.encode("the cat. é </s>", EncodeOptions { add_special: true, parse_special: true });
        }
    } else if data.starts_with(b"GGUF") {
        let file = akunu_format::Gguf::from_region(akunu_format::Region::from_vec(data.to_vec()));
        if let Ok(file) = file
            && let Ok(tokenizer) = akunu_tokenizer::from_gguf(file.metadata())
        {
            let _ = round_trip(&tokenizer, "the cat. é </s>  two");
        }
    } else if let Ok(vocabulary) = Vocabulary::from_sentencepiece(data)
        && let Ok(tokenizer) = NativeTokenizer::new(vocabulary)
    {
        let _ = round_trip(&tokenizer, "the cat. é </s>  two");
        let _ = round_trip(&tokenizer, &text);
    }
});
