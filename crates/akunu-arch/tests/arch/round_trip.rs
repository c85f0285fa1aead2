//! Every folder of the test data has the same facts and tensors after conversion to GGUF.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::tensors::{Kind, Part};
use akunu_arch::{
    Card, GgufModel, LatentFacts, ModelConfig, QueryScaling, Rope, RopeFactors, RopeScaling, RopeStyle,
    Source, WeightProvider, Window, WindowPattern, open_model,
};
use akunu_format::blocks::dequantize_row;
use akunu_format::quantise::Mix;
use akunu_format::{Gguf, Metadata, Region, TensorInfo, Value};

/// Folders of `testdata`, with their names.
fn folders() -> Vec<(String, PathBuf)> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let mut all = Vec::new();
    for kind in ["models", "encoders"] {
        for entry in std::fs::read_dir(testdata.join(kind)).unwrap() {
            let path = entry.unwrap().path();
            all.push((path.file_name().unwrap().to_str().unwrap().to_string(), path));
        }
    }
    all.sort();
    all
}

fn convert(model: &dyn WeightProvider, vocabulary: Option<&Metadata>) -> GgufModel {
    let recipe = ConvertOptions { mix: Mix::find("F32").unwrap(), pure: false, vocabulary, imatrix: None };
    let conversion = Conversion::new(model, &recipe).unwrap();
    let bytes = conversion.write(Vec::new(), 2, &AtomicBool::new(false), &mut |_| {}).unwrap();
    GgufModel::from_gguf(Gguf::from_region(Region::from_vec(bytes)).unwrap()).unwrap()
}

/// GGUF's floats have 32 bits.
fn narrow(number: f64) -> f64 {
    f64::from(number as f32)
}

fn narrow_scaling(scaling: RopeScaling) -> RopeScaling {
    match scaling {
        // It is stored as a tensor.
        RopeScaling::None | RopeScaling::Llama3 { .. } => RopeScaling::None,
        RopeScaling::Linear { factor } => RopeScaling::Linear { factor: narrow(factor) },
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            attention_factor,
            exact_ramp,
        } => RopeScaling::Yarn {
            factor: narrow(factor),
            original_context,
            beta_fast: narrow(beta_fast),
            beta_slow: narrow(beta_slow),
            attention_factor: attention_factor.map(narrow),
            exact_ramp,
        },
        RopeScaling::LongRope { original_context, attention_factor } => {
            RopeScaling::LongRope { original_context, attention_factor: narrow(attention_factor) }
        }
    }
}

fn narrow_rope(rope: &Rope) -> Rope {
    let list = |factors: &[f64]| factors.iter().copied().map(narrow).collect();
    Rope {
        dims: rope.dims,
        base: narrow(rope.base),
        local_base: rope.local_base.map(narrow),
        scaling: narrow_scaling(rope.scaling),
        query_scaling: rope
            .query_scaling
            .map(|QueryScaling { rate, step }| QueryScaling { rate: narrow(rate), step }),
        factors: rope
            .factors
            .as_ref()
            .map(|all| RopeFactors { short: list(&all.short), long: list(&all.long) }),
    }
}

/// The facts in a form that both kinds of files can state, regardless of what is left to the card.
fn facts(card: &Card, config: &ModelConfig) -> ModelConfig {
    let slides = |layer: usize| card.layer_window(config, layer).is_some();
    let window = config.window.as_ref().map(|window| Window {
        size: window.size,
        pattern: WindowPattern::Layers((0..config.layer_count).map(slides).collect()),
    });
    ModelConfig {
        architecture: card.gguf_name().to_string(),
        source: Source::Gguf,
        window,
        rope: if card.rotary {
            narrow_rope(&config.rope)
        } else {
            Rope { base: 10_000.0, ..config.rope.clone() }
        },
        unrotated: (0..config.layer_count).map(|layer| !config.rotates(layer)).collect(),
        activation: Some(config.activation.unwrap_or(card.activation)),
        latent: config.latent.map(|latent| LatentFacts {
            // GGUF has a tenth of it.
            growth: (latent.growth * 1e6).round() / 1e6,
            ..latent
        }),
        // GGUF files contain the language model only.
        encoder: None,
        left_out: None,
        packed_as: None,
        fp8_activations: false,
        ..config.clone()
    }
}

fn values(model: &dyn WeightProvider, tensor: &TensorInfo) -> Vec<f32> {
    let mut values = vec![0.0; tensor.shape.iter().product()];
    dequantize_row(tensor.dtype, model.tensor_bytes(tensor), &mut values).unwrap();
    values
}

fn kind_of(card: &Card, tensor: &str) -> Kind {
    let (part, name) = match tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((_, name)) => (Part::Layer, name),
        None => (Part::Model, tensor),
    };
    let name = name.rsplit_once('.').unwrap().0;
    let rule = card.tensor_rules().find(|rule| rule.part == part && rule.name == name);
    rule.map_or(Kind::Matrix, |rule| rule.kind)
}

/// The values that a GGUF file should have for a tensor of a folder.
fn as_gguf(card: &Card, config: &ModelConfig, tensor: &TensorInfo, mut values: Vec<f32>) -> Vec<f32> {
    match kind_of(card, &tensor.name) {
        Kind::Norm if tensor.name.ends_with(".weight") => {
            values.iter_mut().for_each(|value| *value += card.norm_weight_offset);
            values
        }
        Kind::Rotated if (card.hf_rope, card.gguf_rope) == (RopeStyle::HalfSplit, RopeStyle::Interleaved) => {
            // Row i of the first half of a head and row i of the second become neighbours.
            let (head, pairs) = (config.head_dim, config.rope.dims / 2);
            assert_eq!(pairs * 2, head, "{}", tensor.name);
            let cols = if tensor.shape.len() == 1 { 1 } else { tensor.cols() };
            let rows: Vec<&[f32]> = values.chunks_exact(cols).collect();
            let from = |row: usize| row / head * head + row % head % 2 * pairs + row % head / 2;
            (0..rows.len()).flat_map(|row| rows[from(row)]).copied().collect()
        }
        _ => values,
    }
}

#[test]
fn folders_have_the_same_facts_and_tensors_as_gguf() {
    let all = folders();
    assert!(all.len() > 50, "{} folders", all.len());
    for (name, path) in all {
        let folder = open_model(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let gguf = convert(folder.as_ref(), None);
        let (before, after) = (folder.config(), gguf.config());
        let card = Card::find(&before.architecture).unwrap();
        assert_eq!(Card::find(&after.architecture), Some(card), "{name}");
        assert_eq!(facts(card, after), facts(card, before), "{name}");

        let mut names: Vec<&str> = gguf.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        names.retain(|name| *name != "rope_freqs.weight");
        let mut expected: Vec<&str> = folder.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{name}");
        for tensor in folder.tensors() {
            let again = gguf.tensor(&tensor.name).unwrap();
            assert_eq!(again.shape, tensor.shape, "{name}: {}", tensor.name);
            let expected = as_gguf(card, before, tensor, values(folder.as_ref(), tensor));
            assert!(values(&gguf, again) == expected, "{name}: {}", tensor.name);
        }
        let stretched = matches!(before.rope.scaling, RopeScaling::Llama3 { .. });
        assert_eq!(gguf.tensor("rope_freqs.weight").is_some(), stretched, "{name}");
    }
}

fn converted(name: &str) -> GgufModel {
    let path = folders().into_iter().find(|(folder, _)| folder == name).unwrap().1;
    convert(open_model(&path).unwrap().as_ref(), None)
}

/// Keys that llama.cpp requires or uses.
#[test]
fn keys_of_other_readers_are_written() {
    let number = |model: &GgufModel, key: &str| model.gguf().metadata().u32(key).unwrap();
    let bert = converted("xlm-roberta-reranker");
    assert_eq!(number(&bert, "bert.pooling_type"), Some(4));
    assert_eq!(number(&bert, "tokenizer.ggml.token_type_count"), Some(1));
    assert_eq!(number(&bert, "bert.context_length"), Some(32));
    assert_eq!(number(&bert, "bert.rope.dimension_count"), None);
    let labels = bert.gguf().metadata().strings("bert.classifier.output_labels").unwrap().unwrap();
    assert_eq!(labels.iter().collect::<Vec<_>>(), ["LABEL_0"]);
    assert_eq!(number(&converted("bert-mean"), "tokenizer.ggml.token_type_count"), Some(2));

    let modern = converted("modernbert-reranker");
    assert_eq!(number(&modern, "modern-bert.classifier.pooling_type"), Some(1));
    let metadata = modern.gguf().metadata();
    assert_eq!(metadata.str("modern-bert.hidden_activation").unwrap(), Some("gelu"));
    assert_eq!(metadata.bool("modern-bert.attention.causal").unwrap(), Some(false));

    let gemma = converted("embedding-gemma");
    assert_eq!(number(&gemma, "gemma-embedding.dense_2_feat_in"), Some(32));
    assert_eq!(number(&gemma, "gemma-embedding.dense_2_feat_out"), Some(96));
    assert_eq!(number(&gemma, "gemma-embedding.dense_3_feat_in"), Some(96));

    let flag = |name: &str, key: &str| converted(name).gguf().metadata().bool(key).unwrap();
    assert_eq!(flag("gpt-neox-sequential", "gptneox.use_parallel_residual"), Some(false));
    assert_eq!(flag("gpt-neox-pythia", "gptneox.use_parallel_residual"), Some(true));
    assert_eq!(flag("stablelm-parallel-qk-norm", "stablelm.use_parallel_residual"), Some(true));
}

/// The number of token types comes from the model, not from the vocabulary.
#[test]
fn a_vocabulary_from_another_file_does_not_change_the_model() {
    let (_, path) = folders().into_iter().find(|(name, _)| name == "roberta-mean").unwrap();
    let folder = open_model(&path).unwrap();
    let mut vocabulary = Metadata::default();
    let tokens = (0..folder.config().vocab_size).map(|id| id.to_string()).collect::<Vec<_>>();
    let tokens = akunu_format::Array::Strings(tokens.iter().map(String::as_str).collect());
    vocabulary.insert("tokenizer.ggml.tokens", Value::Array(tokens));
    vocabulary.insert("tokenizer.ggml.token_type_count", Value::U32(2));
    let gguf = convert(folder.as_ref(), Some(&vocabulary));
    assert_eq!(gguf.gguf().metadata().u32("tokenizer.ggml.token_type_count").unwrap(), Some(1));
}
