//! Every GGUF file of the shared test data opens with the right configuration.

use std::time::Instant;

use akunu_arch::{RopeScaling, Source, open_model};
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
        let Some(path) =
            akunu_testing::data("vocabularies_without_tensors_open", &format!("vocab/{name}.gguf"))
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
    let Some(path) =
        akunu_testing::data("stories_have_the_right_shapes", "stories260K/stories260K-q4_0.gguf")
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

#[test]
fn every_real_gguf_has_the_right_config() {
    for name in ["", "-f16", "-bf16", "-q8_0", "-q4_0", "-q4_1", "-q5_0", "-q5_1"] {
        let file = format!("stories260K/stories260K{name}.gguf");
        let Some(path) = akunu_testing::data("every_real_gguf_has_the_right_config", &file) else { return };
        let model = open_model(&path).unwrap();
        let config = model.config();
        assert_eq!((config.architecture.as_str(), config.source), ("llama", Source::Gguf));
        assert_eq!((config.vocab_size, config.hidden_size, config.layer_count), (512, 64, 5));
        assert_eq!((config.head_count, config.kv_head_count, config.head_dim), (8, 4, 8));
        assert_eq!((config.ffn_size, config.rope.dims, config.rope.base), (172, 8, 10_000.0));
        assert_eq!(config.norm_epsilon, 1e-5);
        assert_eq!((config.rope.scaling, config.rope.local_base), (RopeScaling::None, None));
        assert!(config.window.is_none() && config.attention_scale.is_none() && config.activation.is_none());
        println!("{file}: {config:?}");
    }
    for file in ["golden/tiny_llama_f32.gguf", "golden/tiny_llama_f16.gguf"] {
        let Some(path) = akunu_testing::data("every_real_gguf_has_the_right_config", file) else { return };
        let model = open_model(&path).unwrap();
        println!("{file}: {:?}", model.config());
        for tensor in model.tensors() {
            println!("  {tensor:?}");
        }
    }
}
