//! Arbitrary bytes as a file of whisper.cpp: the result is an error, or a container whose parts can all be read, also as
//! a model with a vocabulary.
#![no_main]

use akunu_arch::{GgmlModel, WeightProvider};
use akunu_format::{Ggml, Region};
use akunu_tokenizer::{EncodeOptions, SpeechTokens, Tokenizer, non_speech_tokens};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(ggml) = Ggml::from_region(Region::from_vec(data.to_vec())) else { return };
    let tokens: Vec<&[u8]> = ggml.tokens().collect();
    assert!(tokens.iter().map(|token| token.len()).sum::<usize>() <= data.len());
    for tensor in ggml.tensors() {
        assert_eq!(ggml.tensor_bytes(tensor).len(), tensor.bytes);
        assert!(tensor.rows().checked_mul(tensor.cols()).is_some());
    }
    let rows = ggml.shape().vocab as usize;
    if let Ok(tokenizer) = akunu_tokenizer::from_ranks(&tokens, rows) {
        let ids = tokenizer.encode("Hi there, 10 <|en|>", EncodeOptions::default());
        assert!(ids.is_ok_and(|ids| ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size())));
        let _ = (SpeechTokens::new(&tokenizer, rows), non_speech_tokens(&tokenizer));
    }
    let Ok(model) = GgmlModel::from_ggml(ggml) else { return };
    assert!(model.config().encoder.is_some());
    for tensor in model.tensors() {
        assert_eq!(model.tensor_bytes(tensor).len(), tensor.bytes);
        assert!(model.tensor(&tensor.name).is_some());
    }
});
