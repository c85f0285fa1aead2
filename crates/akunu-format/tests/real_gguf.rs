//! Every GGUF file of the shared test data opens, and says what it should.

mod common;

use std::time::Instant;

use akunu_format::{DType, Gguf};

#[test]
fn vocabularies_without_tensors_open() {
    for (name, tokens) in [
        ("llama-spm", 32000),
        ("gpt-2", 50257),
        ("bert-bge", 30522),
        ("llama-bpe", 128256),
        ("qwen2", 151646),
    ] {
        let Some(path) = common::data("vocabularies_without_tensors_open", &format!("vocab/{name}.gguf"))
        else {
            return;
        };
        let started = Instant::now();
        let gguf = Gguf::open(&path).unwrap();
        let took = started.elapsed();
        let strings = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap();
        assert_eq!(strings.len(), tokens, "{name}");
        assert!(gguf.tensors().is_empty());
        let types = gguf.metadata().i32s("tokenizer.ggml.token_type").unwrap().unwrap();
        assert_eq!(types.len(), tokens);
        println!("{name}: opened in {took:?}");
    }
}

#[test]
fn stories_have_the_right_shapes() {
    let Some(path) = common::data("stories_have_the_right_shapes", "stories260K/stories260K-q4_0.gguf")
    else {
        return;
    };
    let gguf = Gguf::open(&path).unwrap();
    let gate = gguf.tensor("blk.0.ffn_gate.weight").unwrap();
    assert_eq!(gate.shape, [172, 64]);
    assert_eq!(gate.dtype, DType::Q4_0);
    assert_eq!(gguf.tensor_bytes(gate).len(), 172 * 64 / 32 * 18);
    let down = gguf.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.dtype, down.rows(), down.cols()), (DType::F32, 64, 172));
}
