//! Every SafeTensors model of the shared test data opens with the right configuration, or is rejected with the reason.

use akunu_arch::{
    Activation, EncoderFacts, Pooling, RopeScaling, SafeTensorsModel, Source, Window, WindowPattern,
    open_model,
};
use akunu_format::{DType, FormatError};

#[test]
fn golden_models_open() {
    for (name, layers, vocab, head_dim) in
        [("llama", 2, 11, 4), ("qwen3", 2, 13, 6), ("gemma", 2, 13, 6), ("gemma3", 3, 13, 6)]
    {
        let file = format!("golden/tiny_{name}.safetensors");
        let Some(path) = akunu_testing::data("golden_models_open", &file) else { return };
        let model = open_model(&path).unwrap();
        let config = model.config();
        assert_eq!(config.source, Source::HuggingFace);
        assert_eq!(
            (config.layer_count, config.vocab_size, config.head_dim),
            (layers, vocab, head_dim),
            "{name}"
        );
        assert_eq!((config.hidden_size, config.ffn_size, config.context_length), (8, 12, 16));
        assert_eq!((config.head_count, config.kv_head_count, config.rope.dims), (2, 1, head_dim));
        for layer in 0..layers {
            let q = model.tensor(&format!("blk.{layer}.attn_q.weight")).unwrap();
            assert_eq!((q.shape.as_slice(), q.dtype), ([2 * head_dim, 8].as_slice(), DType::F32));
            assert_eq!(model.tensor_bytes(q).len(), 2 * head_dim * 8 * 4);
        }
        assert_eq!(model.tensor("blk.0.attn_q_norm.weight").is_some(), name.ends_with('3'));
        assert_eq!(model.tensor("blk.0.post_attention_norm.weight").is_some(), name == "gemma3");
        assert!(model.tensor("blk.0.ffn_norm.weight").is_some());
        let activation = if name.starts_with("gemma") { Activation::GeluTanh } else { Activation::Silu };
        assert_eq!(config.activation, Some(activation));
        assert_eq!(config.rope.scaling, RopeScaling::None);
    }
}

#[test]
fn gemma_3_has_its_window_scale_and_two_bases() {
    let Some(path) =
        akunu_testing::data("gemma_3_has_its_window_scale_and_two_bases", "golden/tiny_gemma3.safetensors")
    else {
        return;
    };
    let model = open_model(&path).unwrap();
    let config = model.config();
    assert_eq!(config.architecture, "gemma3_text");
    assert_eq!(config.window, Some(Window { size: 4, pattern: WindowPattern::FullEvery(3) }));
    assert_eq!(config.attention_scale, Some((12f64.powf(-0.5)) as f32));
    assert_eq!((config.rope.base, config.rope.local_base), (1000.0, Some(10.0)));
    assert_eq!((config.attention_soft_cap, config.logit_soft_cap), (None, None));
}

#[test]
fn a_hugging_face_folder_opens() {
    let Some(path) = akunu_testing::data("a_hugging_face_folder_opens", "stories260K/hf") else { return };
    let model = SafeTensorsModel::open(&path).unwrap();
    let model: &dyn akunu_arch::WeightProvider = &model;
    let config = model.config();
    assert_eq!((config.architecture.as_str(), config.vocab_size, config.layer_count), ("llama", 512, 5));
    assert_eq!((&config.eos_ids[..], config.bos_id), (&[2][..], Some(1)));
    assert!(model.tensor("output.weight").is_none() || model.tensor("token_embd.weight").is_some());
}

#[test]
fn models_without_a_card_are_rejected_by_name() {
    const TEST: &str = "models_without_a_card_are_rejected_by_name";
    let Some(path) = akunu_testing::data(TEST, "golden/tiny_whisper.safetensors") else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(path, folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "t5"}"#).unwrap();
    let error = open_model(folder.path()).unwrap_err();
    assert!(matches!(error.kind(), FormatError::Unsupported { key, .. } if key == "model_type"), "{error}");
    assert!(error.to_string().contains("`model_type` is t5"), "{error}");
}

#[test]
fn a_model_that_hears_has_the_facts_of_its_encoder() {
    const TEST: &str = "a_model_that_hears_has_the_facts_of_its_encoder";
    let Some(path) = akunu_testing::data(TEST, "golden/tiny_whisper.safetensors") else { return };
    let model = open_model(&path).unwrap();
    let config = model.config();
    let encoder = EncoderFacts {
        layer_count: 2,
        head_count: 2,
        ffn_size: 24,
        positions: 13,
        bands: 80,
        multilingual: None,
    };
    assert_eq!((config.encoder, config.layer_count, config.context_length), (Some(encoder), 2, 12));
    assert_eq!(model.tensor("enc.conv1.weight").unwrap().shape, [12, 240]);
    assert_eq!(model.tensor("enc.blk.1.ffn_up.weight").unwrap().shape, [24, 12]);
    assert_eq!(model.tensor("blk.1.cross_attn_k.weight").unwrap().shape, [12, 12]);
}

/// With sentence-transformers files, and a table of position ids that carries no information.
#[test]
fn an_encoder_opens_with_its_embedding_settings() {
    const TEST: &str = "an_encoder_opens_with_its_embedding_settings";
    let Some(path) = akunu_testing::data(TEST, "minilm") else { return };
    let model = open_model(&path).unwrap();
    let config = model.config();
    assert!(config.bidirectional);
    assert_eq!((config.context_length, config.hidden_size, config.layer_count), (512, 384, 6));
    let facts = &config.embedding;
    assert_eq!((facts.pooling, facts.max_text_tokens), (Some(Pooling::Mean), Some(256)));
    assert!(model.tensor("cls.weight").is_none() && model.tensor("position_embd.weight").is_some());
}
